"""`hpctl cluster scale GROUP N`: more instances, or fewer by name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from hpctl.clusters.commands.change_view import (
    ApiCallView,
    NodeRemovalsPrompt,
    NodeRemovalView,
    print_outcome_and_exit,
    select_wait_result_fields,
)
from hpctl.clusters.commands.context import (
    ClusterCommandContext,
    add_cluster_options,
    complete_group_name,
    read_existing_cluster_fleet,
    read_local_cluster_state,
    resolve_cluster_context,
)
from hpctl.clusters.commands.node_orders import (
    drain_and_delete_nodes,
    make_node_removal_views,
    plan_node_removal,
    removal_now_option,
    require_slurm_for_node_removal,
    summarize_node_removals,
)
from hpctl.clusters.commands.waiting import (
    WaitOptions,
    add_wait_and_timing_options,
    confirm_or_exit,
    dry_run_option,
    follow_cluster_progress,
    yes_option,
)
from hpctl.clusters.node_lookup import find_instance_group, resolve_nodes_by_names
from hpctl.clusters.node_order_plan import make_named_removal_candidates, pick_nodes_to_remove
from hpctl.clusters.progress import build_in_service_wait_condition
from hpctl.toolkit import output
from hpctl.toolkit.arguments import GROUP, NODES

if TYPE_CHECKING:
    from hpctl.clusters.fleet import Fleet, NodeRow
    from hpctl.clusters.node_order_plan import RemovalCandidate


class _InstanceGroupScaling(Struct):
    """One group's change under way, and how its end is reported."""

    here: ClusterCommandContext
    fleet: Fleet
    group: str
    target: int
    now: bool
    dry_run: bool
    yes: bool
    waiting: WaitOptions
    as_json: bool

    @property
    def name(self) -> str:
        """Return the cluster's."""
        return str(self.fleet.description["ClusterName"])

    def up(self, count: int) -> None:
        """More instances, or as many."""
        from hpctl.clusters import apply

        more = count - self.target
        if self.dry_run:
            orders = apply.plan_group_growth_api_calls(self.fleet.description, self.group, count)
            views = tuple(ApiCallView(op, {"ClusterName": self.name, **of}) for op, of in orders)
            return self.tell("dry_run" if views else "unchanged", orders=views)
        if more:
            where = f"{self.group} of {self.name}"
            confirm_or_exit(f"Add {more} instance(s) to {where}, paid for from now on?", self.yes)
            apply.grow_instance_group(
                self.here.aws, self.here.cluster, self.group, count, self.waiting.patience
            )
        return self.end(count, changed=bool(more))

    def down(self, count: int | None, names: str | None) -> None:
        """Fewer, by name."""
        answer = read_local_cluster_state(self.here)
        picks = self.picks(answer.join(self.fleet.rows, self.here), count, names)
        going = make_node_removal_views(picks)
        order = plan_node_removal(self.fleet, picks, answer)
        if self.dry_run:
            return self.tell("dry_run", removals=going)
        require_slurm_for_node_removal(self.here, answer, self.now)
        self.ask(going)
        floor = {} if count is None else {self.group: count}
        done, interrupted = drain_and_delete_nodes(self.here, order, self.waiting, self.now, floor)
        outcome, why = summarize_node_removals(done, interrupted)
        going = make_node_removal_views(picks, done)
        if outcome:
            pick_up = f"hpctl cluster wait {self.name}"
            return self.tell(outcome, why=why, removals=going, pick_up=pick_up)
        return self.end(self.target - len(picks) if count is None else count, going=going)

    def picks(
        self, rows: Sequence[NodeRow], count: int | None, names: str | None
    ) -> tuple[RemovalCandidate, ...]:
        """Return the nodes that go. Raises UsageError where names and count contradict each
        other."""

        if names is None:
            assert count is not None
            return pick_nodes_to_remove(rows, self.group, self.target, count)
        chosen = make_named_removal_candidates(resolve_nodes_by_names(rows, [names]), self.group)
        left = self.target - len(chosen)
        if count not in (None, left):
            raise click.UsageError(
                f"group {self.group} has {self.target} instances; without the {len(chosen)} named "
                f"nodes it has {left}, not {count}: give {left}, or name other nodes"
            )
        return chosen

    def ask(self, going: tuple[NodeRemovalView, ...]) -> None:
        """Show on standard error what goes and what runs there, and ask."""
        if self.yes or not going:
            return
        output.draw_value_on_stderr(output.draw_declared_view, NodeRemovalsPrompt(going))
        jobs = set(chain.from_iterable(one.jobs for one in going))
        about = f"; {len(jobs)} job(s) {'END' if self.now else 'are waited for'}" if jobs else ""
        confirm_or_exit(f"Remove these {len(going)} node(s), with their volumes{about}?", self.yes)

    def end(
        self, count: int, *, changed: bool = True, going: tuple[NodeRemovalView, ...] = ()
    ) -> None:
        """Follow the group to its count, and tell."""

        last = None
        if self.waiting.wait:
            # Of this group alone: others may be scaled by others meanwhile.
            judge = build_in_service_wait_condition({self.group: count}, self.waiting.patience_s)
            last = follow_cluster_progress(self.here.aws, self.here.cluster, judge, self.waiting)
        fields = {
            **select_wait_result_fields(last),
            "removals": going,
            "pick_up": f"hpctl cluster wait {self.name}",
        }
        if not changed and fields["outcome"] in ("ordered", "reached"):
            fields["outcome"] = "unchanged"
        self.tell(**fields)

    def tell(self, outcome: str, **fields: Any) -> None:
        """Print the end, and leave with its exit code."""
        print_outcome_and_exit("scale", self.name, self.as_json, outcome=outcome, **fields)


@click.command()
@click.argument("group", type=GROUP, shell_complete=complete_group_name)
@click.argument("count", metavar="[N]", type=click.IntRange(0, 6758), required=False)
@click.option(
    "--nodes",
    "names",
    metavar="NODE[,NODE]",
    type=NODES,
    help="Remove these, by any of their names or a hostlist, instead of a choice of idle ones.",
)
@removal_now_option
@dry_run_option
@yes_option
@add_wait_and_timing_options
@output.json_option
@add_cluster_options
def scale(
    group: str,
    count: int | None,
    names: str | None,
    now: bool,
    dry_run: bool,
    yes: bool,
    waiting: WaitOptions,
    as_json: bool,
    **where: Any,
) -> None:
    """Give an instance group N instances.

    Fewer: nodes go by name, broken ones first, then idle ones; they are drained, and their jobs
    waited for, where Slurm is at hand. Exit code: 0 done (or ordered), 1 failed or refused, 3 not
    done in time, 130 interrupted by Ctrl-C.
    """

    here = resolve_cluster_context(**where)
    fleet = read_existing_cluster_fleet(here)
    target = int(find_instance_group(fleet.description, group).get("TargetCount", 0))
    if names is None and count is None:
        raise click.UsageError(
            "the command gives no size: write the number of instances that the group should have, "
            "or --nodes"
        )
    scaling = _InstanceGroupScaling(here, fleet, group, target, now, dry_run, yes, waiting, as_json)
    if names is not None or count is None or count < target:
        return scaling.down(count, names)
    return scaling.up(count)
