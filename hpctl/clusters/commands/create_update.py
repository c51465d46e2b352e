"""`hpctl cluster create` and `update`: a cluster from its spec, once, however often asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from hpctl.clusters.commands.change_view import (
    ApiCallView,
    NodeRemovalsPrompt,
    NodeRemovalView,
    SpecChangesPrompt,
    print_outcome_and_exit,
    select_wait_result_fields,
)
from hpctl.clusters.commands.context import (
    ClusterCommandContext,
    LocalClusterState,
    add_aws_options,
    make_missing_cluster_error,
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
from hpctl.clusters.diff import diff_request_with_cluster, format_instance_types
from hpctl.clusters.node_order_plan import pick_nodes_to_remove, rank_removal_candidate
from hpctl.clusters.order_call import choose_node_id_for_api_call
from hpctl.clusters.progress import build_in_service_wait_condition, build_migration_wait_condition
from hpctl.engine.aws_account import make_aws_client_for_command
from hpctl.toolkit import output
from hpctl.toolkit.arguments import aws_options, spec_argument, validate_option
from hpctl.toolkit.errors import HpctlError, OrderOutcomeUnknown, ResourceNotFound

if TYPE_CHECKING:
    from hpctl.clusters.apply import ClusterUpdatePlan
    from hpctl.clusters.diff import ClusterDiff
    from hpctl.clusters.fleet import Fleet
    from hpctl.clusters.migration import LegacyParametersMigration
    from hpctl.clusters.node_order_plan import NodeOrderPlan as Order
    from hpctl.clusters.node_order_plan import RemovalCandidate
    from hpctl.clusters.progress import ClusterProgress


@click.command()
@spec_argument
@validate_option
@dry_run_option
@yes_option
@add_wait_and_timing_options
@output.json_option
@aws_options
def create(
    path: str,
    validate: bool,
    dry_run: bool,
    yes: bool,
    waiting: WaitOptions,
    as_json: bool,
    **where: Any,
) -> None:
    """Create the cluster of a spec, or go on with a create that was interrupted.

    FILE is the cluster file. Exit code: 0 in service (or ordered), 1 failed or refused, 3 not
    there in time, 130 interrupted by Ctrl-C: the service continues.
    """
    from hpctl.clusters import apply, spec
    from hpctl.clusters.apply import describe_cluster
    from hpctl.clusters.commands.validate import validate_spec_or_exit
    from hpctl.clusters.request import make_create_cluster_request

    read = spec.read_cluster_spec(path)
    request = make_create_cluster_request(read)
    name = str(request["ClusterName"])
    aws = make_aws_client_for_command(**where)
    found = describe_cluster(aws, name)
    if found is None and validate:
        validate_spec_or_exit(path, read, aws)
    if dry_run:
        if found is not None:
            apply.adopt_existing_cluster(request, found)
        orders = () if found else (ApiCallView("CreateCluster", request),)
        outcome = "dry_run" if orders else "unchanged"
        return print_outcome_and_exit("create", name, as_json, outcome=outcome, orders=orders)
    if found is None:
        confirm_or_exit(
            f"Create cluster {name} with {_describe_purchased_instances(request)}?"
            " They are paid for from now on.",
            yes,
        )
    made = apply.create_cluster(aws, request, waiting.patience)
    if made.adopted:
        output.echo(f"cluster {name} is there already, made from this spec: going on", err=True)
    judge = build_in_service_wait_condition(
        apply.count_requested_instances(request), waiting.patience_s
    )
    last = follow_cluster_progress(aws, name, judge, waiting) if waiting.wait else None
    fields = {
        "arn": made.arn,
        **select_wait_result_fields(last),
        "pick_up": f"hpctl cluster wait {name}",
    }
    return print_outcome_and_exit("create", name, as_json, **fields)


def _describe_purchased_instances(request: Mapping[str, Any]) -> str:
    """Return what is bought, group by group."""

    groups = request["InstanceGroups"]
    return ", ".join(f"{g['InstanceCount']} x {format_instance_types(g, ' or ')}" for g in groups)


@click.command()
@spec_argument
@validate_option
@removal_now_option
@dry_run_option
@yes_option
@add_wait_and_timing_options
@output.json_option
@add_aws_options
def update(
    path: str,
    validate: bool,
    now: bool,
    dry_run: bool,
    yes: bool,
    waiting: WaitOptions,
    as_json: bool,
    **where: Any,
) -> None:
    """Update a cluster to match its spec, after showing the difference.

    FILE is the cluster file. It grows first and shrinks last, by named nodes as `scale` does. Exit
    code: 0 done (or ordered), 1 failed or refused, 3 not done in time, 130 interrupted by Ctrl-C.
    """
    from hpctl.clusters import apply, spec
    from hpctl.clusters.commands.validate import validate_spec_or_exit
    from hpctl.clusters.request import make_create_cluster_request

    read = spec.read_cluster_spec(path)
    request = make_create_cluster_request(read)
    here = resolve_cluster_context(cluster=str(request["ClusterName"]), **where)
    try:
        found = here.aws.service("sagemaker").read("describe_cluster", ClusterName=here.cluster)
    except ResourceNotFound as error:
        raise make_missing_cluster_error(here.aws, here.cluster, error) from error
    changes = diff_request_with_cluster(request, found, _read_tags(here, found, request))
    run = _ClusterUpdate(here, changes, waiting, now, as_json, str(found.get("FailureMessage", "")))
    plan = (
        apply.plan_cluster_update(request, found, changes)
        if not changes.impossible_changes
        else None
    )
    if plan is None:
        why = "parts of this cannot be changed in place; nothing was done"
        return run.tell("failed", why=why, changes=changes.changes)
    if plan.empty:
        return run.tell("unchanged")
    # What only leaves, or bears another tag, needs nothing of the account.
    if validate and plan.update:
        validate_spec_or_exit(path, read, here.aws)
    picks = run.picks(plan)
    if changes.migrates:
        run.migrates(found, request, Path(path).with_suffix(".legacy"))
    if dry_run:
        orders, going = (
            _list_planned_api_calls(plan, str(found["ClusterArn"]), run.migration),
            make_node_removal_views(picks),
        )
        return run.tell("dry_run", orders=orders, removals=going, changes=changes.changes)
    order = run.order(picks) if picks else None
    run.ask(picks, yes)
    return run.go(plan, picks, order)


class _ClusterUpdate(Struct):
    """An update under way: what is changed where, and how its end is reported."""

    here: ClusterCommandContext
    changes: ClusterDiff
    waiting: WaitOptions
    now: bool
    as_json: bool
    failure: str = ""
    migration: LegacyParametersMigration | None = None
    known_now: LocalClusterState | None = None
    fleet: Fleet | None = None

    def picks(self, plan: ClusterUpdatePlan) -> tuple[RemovalCandidate, ...]:
        """Return the nodes that go: chosen in groups that shrink, all of groups that leave."""
        from hpctl.clusters.fleet_reading import read_fleet

        if not plan.shrink and not plan.leaving:
            return ()
        self.fleet = read_fleet(self.here.aws, self.here.cluster, details=False)
        self.known_now = read_local_cluster_state(self.here)
        rows = self.known_now.join(self.fleet.rows, self.here)
        picked: list[RemovalCandidate] = []
        for group in plan.shrink:
            picked += pick_nodes_to_remove(rows, group, plan.before[group], plan.final[group])
        return (
            *picked,
            *(rank_removal_candidate(row) for row in rows if row.group in plan.leaving),
        )

    def migrates(self, found: Mapping[str, Any], request: Mapping[str, Any], backup: Path) -> None:
        """Look whether the migration may be begun. Raises HpctlError where it may not."""
        from hpctl.clusters import migration
        from hpctl.clusters.apply import make_busy_cluster_error

        if found["ClusterStatus"] != "InService":
            raise make_busy_cluster_error(self.here.cluster, str(found["ClusterStatus"]))
        self.migration = migration.prepare_cluster_migration(self.here.aws, found, request, backup)
        if self.migration.strategy not in ("", "Merge"):
            self.known_now = read_local_cluster_state(self.here)
            view = self.known_now.slurm
            here = view.jobs.values() if view else ()
            running = [int(j.id) for j in here if j.running or j.completing] if view else None
            migration.require_no_jobs_for_slurm_config_strategy(self.migration.strategy, running)

    def order(self, picks: tuple[RemovalCandidate, ...]) -> Order:
        """Return the order for the nodes that go. Raises HpctlError where one may not."""
        assert self.known_now is not None
        assert self.fleet is not None
        require_slurm_for_node_removal(self.here, self.known_now, self.now)
        return plan_node_removal(self.fleet, picks, self.known_now)

    def ask(self, picks: tuple[RemovalCandidate, ...], yes: bool) -> None:
        """Show the difference on standard error, and ask."""
        output.draw_value_on_stderr(
            output.draw_declared_view, SpecChangesPrompt(self.changes.changes)
        )
        if picks:
            output.draw_value_on_stderr(
                output.draw_declared_view, NodeRemovalsPrompt(make_node_removal_views(picks))
            )
        jobs = set(chain.from_iterable(one.row.jobs for one in picks))
        about = f" {len(jobs)} job(s) {'END' if self.now else 'are waited for'}." if jobs else ""
        if self.migration:
            for file in self.migration.files:
                text = f"{file} is removed from S3 and kept in {self.migration.backup}/."
                output.echo(output.wrap_text_to_screen(text), err=True)
            about = " There is no way back; submit no jobs meanwhile."
        confirm_or_exit(f"Change cluster {self.changes.cluster} as shown?{about}", yes)

    def go(
        self, plan: ClusterUpdatePlan, picks: tuple[RemovalCandidate, ...], order: Order | None
    ) -> None:
        """Grow and change, then shrink; each part is followed before the next begins."""
        from hpctl.clusters import apply

        aws, cluster, patience = self.here.aws, self.here.cluster, self.waiting.patience
        last: ClusterProgress | None = None
        if plan.update or plan.tags_set or plan.tags_gone:
            with self._remove_legacy_parameters_or_restore():
                apply.apply_cluster_update(aws, plan, patience)
            if self.waiting.wait or order or plan.leaving or self.migration:
                last = self._wait_for_group_targets(plan.targets)
                if last.verdict.value != "reached":
                    return self.tell(
                        **select_wait_result_fields(last)
                        | self._describe_unfinished_migration_files(last)
                    )
        going: tuple[NodeRemovalView, ...] = ()
        if order is not None:
            floor = {group: plan.final[group] for group in plan.shrink}
            done, interrupted = drain_and_delete_nodes(
                self.here, order, self.waiting, self.now, floor
            )
            outcome, why = summarize_node_removals(done, interrupted)
            going = make_node_removal_views(picks, done)
            if outcome:
                return self.tell(outcome, why=why, removals=going)
        if plan.leaving:
            apply.delete_instance_groups(
                aws,
                cluster,
                plan.leaving,
                patience,
                {choose_node_id_for_api_call(p.row) for p in picks},
            )
        if plan.shrink or plan.leaving:
            last = (
                self._wait_for_group_targets(plan.final, plan.leaving)
                if self.waiting.wait
                else None
            )
        return self.tell(**select_wait_result_fields(last), removals=going)

    @contextlib.contextmanager
    def _remove_legacy_parameters_or_restore(self) -> Iterator[None]:
        """The legacy files, if any, are saved and away; back where nothing was ordered."""
        if self.migration is None:
            yield
            return
        self.migration.save()
        try:
            self.migration.remove(self.here.aws)
            yield
        except OrderOutcomeUnknown:
            raise
        except HpctlError as error:
            text = f"{error}; {self._restore_legacy_parameters_files()}"
            raise HpctlError(text, error.hint) from error

    def _restore_legacy_parameters_files(self) -> str:
        """Restore the legacy files; what became of that."""
        assert self.migration is not None
        if not self.migration.files:
            return "nothing was removed from S3"
        try:
            self.migration.restore(self.here.aws)
        except HpctlError as error:
            return f"put back to S3 by hand what is in {self.migration.backup}/: {error}"
        return "provisioning_parameters.json is back in S3"

    def _describe_unfinished_migration_files(self, last: ClusterProgress) -> dict[str, str]:
        """Return what becomes of the legacy files where a migration did not reach its end."""
        if self.migration is None:
            return {}
        if last.verdict.value == "failed":
            return {"why": f"{last.why}; {self._restore_legacy_parameters_files()}"}
        return {
            "why": f"the same command continues from here, also where the service rolls the change "
            f"back; until then {self.migration.backup}/ has what is away from S3"
        }

    def _wait_for_group_targets(
        self, targets: Mapping[str, int], leaving: tuple[str, ...] = ()
    ) -> ClusterProgress:

        judge = build_in_service_wait_condition(
            targets, self.waiting.patience_s, leaving, self.failure
        )
        if self.migration:
            judge = build_migration_wait_condition(judge, self.failure)
        return follow_cluster_progress(self.here.aws, self.here.cluster, judge, self.waiting)

    def tell(self, outcome: str, **fields: Any) -> None:
        """Print the end, and leave with its exit code."""
        name = self.changes.cluster
        fields |= {"outcome": outcome, "pick_up": f"hpctl cluster wait {name}"}
        print_outcome_and_exit("update", name, self.as_json, **fields)


def _read_tags(
    here: ClusterCommandContext, found: Mapping[str, Any], request: Mapping[str, Any]
) -> Mapping[str, str] | None:
    """Return the cluster's tags; None where they may not be listed and the spec says nothing."""
    try:
        listed = here.aws.service("sagemaker").pages(
            "list_tags", "Tags", ResourceArn=found["ClusterArn"]
        )
        # Tags that begin with aws: are AWS's own.
        return {t["Key"]: t["Value"] for t in listed if not t["Key"].startswith("aws:")}
    except HpctlError:
        if request.get("Tags"):
            raise
        return None


def _list_planned_api_calls(
    plan: ClusterUpdatePlan, arn: str, migration: LegacyParametersMigration | None
) -> tuple[ApiCallView, ...]:
    orders = [
        ApiCallView("DeleteObject", {"Bucket": file.bucket, "Key": file.key})
        for file in (migration.files if migration else ())
        if file.there
    ]
    if plan.update:
        orders.append(ApiCallView("UpdateCluster", {"ClusterName": plan.cluster, **plan.update}))
    if plan.tags_set:
        tags = [{"Key": key, "Value": value} for key, value in plan.tags_set.items()]
        orders.append(ApiCallView("AddTags", {"ResourceArn": arn, "Tags": tags}))
    if plan.tags_gone:
        untag = {"ResourceArn": arn, "TagKeys": list(plan.tags_gone)}
        orders.append(ApiCallView("DeleteTags", untag))
    if plan.leaving:
        gone = {"ClusterName": plan.cluster, "InstanceGroupsToDelete": list(plan.leaving)}
        orders.append(ApiCallView("UpdateCluster", gone))
    return tuple(orders)
