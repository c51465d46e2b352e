"""`hpctl cluster scale GROUP N`: more instances, or fewer by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from hpctl.cli import output
from hpctl.cli.arguments import GROUP, NODES
from hpctl.cli.cluster.at_hand import Place, complete_group, fleet_of, known, place, place_options
from hpctl.cli.cluster.change import (
    CallView,
    ClusterChangeView,
    RemovalView,
    draw_removals,
    followed,
    tell,
)
from hpctl.cli.cluster.node_orders import (
    ended,
    need_slurm,
    order_for,
    removal_now_option,
    removals,
    take_out,
)
from hpctl.cli.cluster.waiting import (
    Waiting,
    confirm,
    dry_run_option,
    follow,
    wait_options,
    yes_option,
)

if TYPE_CHECKING:
    from hpctl.clusters.names import Fleet, NodeRow
    from hpctl.clusters.node_orders import Pick


class Asked(Struct, frozen=True):
    """What the command was asked for."""

    group: str
    dry_run: bool
    yes: bool
    now: bool
    waiting: Waiting
    as_json: bool


@click.command()
@click.argument("group", type=GROUP, shell_complete=complete_group)
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
@wait_options
@output.json_option
@place_options
def scale(
    group: str,
    count: int | None,
    names: str | None,
    now: bool,
    dry_run: bool,
    yes: bool,
    waiting: Waiting,
    as_json: bool,
    **where: Any,
) -> None:
    """Give an instance group N instances.

    Fewer: nodes go by name, broken ones first, then idle ones; they are drained, and their jobs
    waited for, where Slurm is at hand. Exit code: 0 done (or ordered), 1 failed or refused, 3 not
    done in time, 130 interrupted by Ctrl-C.
    """
    from hpctl.clusters.names import find_group

    asked = Asked(group, dry_run, yes, now, waiting, as_json)
    here = place(**where)
    fleet = fleet_of(here)
    target = int(find_group(fleet.described, group).get("TargetCount", 0))
    if names is None and count is None:
        raise click.UsageError("say how many instances the group shall have, or --nodes")
    if names is not None or (count is not None and count < target):
        return _down(here, fleet, target, count, names, asked)
    assert count is not None
    return _up(here, fleet, target, count, asked)


def _up(here: Place, fleet: Fleet, target: int, count: int, asked: Asked) -> None:
    from hpctl.clusters import apply

    name = str(fleet.described["ClusterName"])
    more = count - target
    if asked.dry_run:
        orders = apply.grow_orders(fleet.described, asked.group, count)
        views = tuple(CallView(call, {"ClusterName": name, **request}) for call, request in orders)
        outcome = "dry_run" if views else "unchanged"
        view = ClusterChangeView(output.now(), "scale", name, outcome, orders=views)
        return tell(view, asked.as_json)
    if more:
        question = f"Add {more} instance(s) to {asked.group} of {name}, paid for from now on?"
        confirm(question, asked.yes)
        apply.grow(here.aws, here.cluster, asked.group, count, asked.waiting.patience)
    return _end(here, fleet, count, asked, changed=bool(more))


def _down(
    here: Place, fleet: Fleet, target: int, count: int | None, names: str | None, asked: Asked
) -> None:
    told = known(here)
    rows = told.join(fleet.rows, here)
    picks = _picks(rows, target, count, names, asked.group)
    name = str(fleet.described["ClusterName"])
    going = removals(picks)
    order = order_for(fleet, picks, told)
    if asked.dry_run:
        view = ClusterChangeView(output.now(), "scale", name, "dry_run", removals=going)
        return tell(view, asked.as_json)
    need_slurm(here, told, asked.now)
    _agreed(going, asked)
    floor = {} if count is None else {asked.group: count}
    done, interrupted = take_out(here, order, asked.waiting, asked.now, floor)
    outcome, why = ended(done, interrupted)
    going = removals(picks, done)
    if outcome:
        more: dict[str, Any] = {"removals": going, "pick_up": f"hpctl cluster wait {name}"}
        view = ClusterChangeView(output.now(), "scale", name, outcome, why, **more)
        return tell(view, asked.as_json)
    count = target - len(picks) if count is None else count
    return _end(here, fleet, count, asked, changed=True, going=going)


def _picks(
    rows: Sequence[NodeRow], target: int, count: int | None, names: str | None, group: str
) -> tuple[Pick, ...]:
    from hpctl.clusters.names import resolve_all
    from hpctl.clusters.node_orders import named, pick

    if names is None:
        assert count is not None
        return pick(rows, group, target, count)
    chosen = named(resolve_all(rows, [names]), group)
    if count is not None and count != target - len(chosen):
        raise click.UsageError(
            f"{group} has {target}: without these {len(chosen)} it has {target - len(chosen)}, "
            f"not {count}"
        )
    return chosen


def _agreed(going: tuple[RemovalView, ...], asked: Asked) -> None:
    """Show on standard error what goes and what runs there, and ask."""
    if asked.yes or not going:
        return
    output.on_stderr(draw_removals, going)
    jobs = {job for r in going for job in r.jobs}
    about = f"; {len(jobs)} job(s) {'END' if asked.now else 'are waited for'}" if jobs else ""
    confirm(f"Remove these {len(going)} node(s), with their volumes{about}?", asked.yes)


def _end(
    here: Place,
    fleet: Fleet,
    count: int,
    asked: Asked,
    *,
    changed: bool,
    going: tuple[RemovalView, ...] = (),
) -> None:
    from hpctl.clusters.progress import in_service

    name = str(fleet.described["ClusterName"])
    last = None
    if asked.waiting.wait:
        # Of this group alone: others may be scaled by others meanwhile.
        judge = in_service({asked.group: count}, asked.waiting.patience_s)
        last = follow(here.aws, here.cluster, judge, asked.waiting)
    fields = followed(last)
    if not changed and fields["outcome"] in ("ordered", "reached"):
        fields["outcome"] = "unchanged"
    view = ClusterChangeView(
        as_of=output.now(),
        command="scale",
        cluster=name,
        removals=going,
        pick_up=f"hpctl cluster wait {name}",
        **fields,
    )
    tell(view, asked.as_json)
