"""`hpctl cluster software-update` and `health-check`: long orders for whole groups."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, ClassVar

import click
from msgspec import Struct
from msgspec.structs import replace

from hpctl.clusters import health_verdict, maintenance, maintenance_following, maintenance_orders
from hpctl.clusters.commands.context import (
    ClusterCommandContext,
    LocalClusterState,
    add_cluster_options,
    add_groups_option,
    cluster_argument,
    nodes_argument,
    read_existing_cluster_fleet,
    read_local_cluster_state,
    resolve_cluster_context,
)
from hpctl.clusters.commands.waiting import (
    FOLLOW,
    GIVE_UP,
    combine_click_options,
    confirm_or_exit,
    make_duration_option,
    make_wait_option,
    yes_option,
)
from hpctl.clusters.fleet import Fleet, NodeRow
from hpctl.clusters.maintenance import CHECKS, ClusterMaintenanceProgress, GroupMaintenanceProgress
from hpctl.clusters.node_lookup import find_instance_group, resolve_nodes_by_names
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import (
    Column,
    Columns,
    ItemTextLines,
    JsonOnly,
    Layout,
    RowTable,
    TextLine,
    make_state_column,
)
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.lazy_commands import INTERRUPTED
from hpctl.toolkit.output import DRY_RUN, ExitCode
from hpctl.toolkit.tables import BAD, DIM, GOOD, WARN
from hpctl.vocabulary.ports import AwsClientFactory

EVERY_S = maintenance.EVERY_S


OUTCOMES = {
    "dry_run": (DRY_RUN, DIM),
    "ordered": ("ordered; it continues", WARN),
    "interrupted": ("interrupted; it continues in the service: hpctl cluster wait", WARN),
    "done": ("done", GOOD),
    "failed": ("failed", BAD),
}
_RESULTS = {"passed": GOOD, "failed": BAD, "replaced": WARN, "rebooted": WARN, "gone": WARN}


def _format_group_maintenance_line(group: GroupMaintenanceProgress) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in sorted(group.nodes.items()))
    new = f"; {group.updated} of {group.total} have {group.desired}" if group.desired else ""
    return f"{group.name}: {group.status}: {counts or 'no node'}{new}"


class HealthCheckedNode(Struct, frozen=True):
    """A node after its deep health checks: passed, rebooted, replaced, failed or gone."""

    node: str
    instance_id: str
    new_instance_id: str
    result: str
    message: str

    columns: ClassVar[Columns] = (
        Column("NODE", "node"),
        make_state_column("INSTANCE", "instance_id"),
        Column("RESULT", "result", style=_RESULTS),
        make_state_column("NEW INSTANCE", "new_instance_id"),
        Column("WHY", "message", fold=True),
    )


class ClusterMaintenanceView(Struct, frozen=True):
    """What was ordered for groups, and its progress. `outcome`: dry_run, ordered, done, failed,
    interrupted; `jobs` run on the groups' nodes, null where Slurm is not at hand.
    """

    as_of: datetime
    cluster: str
    operation: str
    request: Mapping[str, Any]
    jobs: tuple[int, ...] | None
    outcome: str
    failed: str
    groups: tuple[GroupMaintenanceProgress, ...]
    nodes: tuple[HealthCheckedNode, ...]

    layout: ClassVar[Layout] = (
        TextLine(
            lambda view: f"{view.operation} {json.dumps(view.request, indent=2)}",
            when=lambda view: view.outcome == "dry_run",
        ),
        ItemTextLines("groups", _format_group_maintenance_line),
        RowTable("nodes"),
        TextLine("{end}", style=lambda view: OUTCOMES[view.outcome][1]),
    )
    json_only: ClassVar[JsonOnly] = ("cluster", "jobs")

    @property
    def end(self) -> str:
        """Return how it ended, and what failed."""
        text = OUTCOMES[self.outcome][0]
        return f"{text}: {self.failed}" if self.failed else text


_common = combine_click_options(
    click.option("--dry-run", is_flag=True, help="Print what would be ordered; order nothing."),
    yes_option,
    make_wait_option(FOLLOW),
    make_duration_option("timeout", "6h", GIVE_UP),
    make_duration_option("every", f"{EVERY_S:g}s", "How often to look."),
    output.json_option,
    add_cluster_options,
)


@click.command("software-update")
@cluster_argument
@add_groups_option("Only this group; repeatable.")
@click.option("--release", default="", help="This image release of the groups named by --group.")
@click.option("--image-id", "image", default="", help="A custom AMI, or `default`.")
@click.option("--batch", default="", metavar="N|P%", help="How many nodes of a group at once.")
@click.option("--rollback-batch", default="", metavar="N|P%", help="The same for a rollback.")
@make_duration_option("interval", None, "How long a batch must be fine before the next.", most="1h")
@click.option(
    "--alarm", "alarms", multiple=True, help="A CloudWatch alarm that rolls back; repeatable."
)
@_common
def software_update(
    name: str | None, groups: tuple[str, ...], release: str, image: str, batch: str,
    rollback_batch: str, interval_s: float | None, alarms: tuple[str, ...], dry_run: bool,
    yes: bool, wait: bool, every_s: float, timeout_s: float, as_json: bool, cluster: str | None,
    **where: Any,
) -> None:  # fmt: skip
    """Give groups the newest image, in rolling batches.

    The root volumes are replaced and the lifecycle scripts run again; jobs are not waited for.
    Exit code: 0 done, 1 failed or rolled back, 3 not done in time, 130 interrupted.
    """
    here, fleet = _read_in_service_fleet(name or cluster, where)
    every = _select_instance_group_names(fleet, groups)
    if release and not groups:
        raise click.UsageError(
            "--release works only with --group: name the instance groups to update"
        )
    try:
        update = maintenance_orders.SoftwareUpdateOptions(
            groups=groups,
            release=release,
            image=image,
            batch=batch,
            rollback_batch=rollback_batch,
            interval_s=interval_s,
            alarms=alarms,
        )
        request = maintenance_orders.make_software_update_request(here.cluster, update)
    except ValueError as error:
        raise click.UsageError(
            f"the value of --batch or --rollback-batch is not valid: {error}"
        ) from error
    rows = tuple(row for row in fleet.rows if row.group in every)
    view = _make_maintenance_view(here, "UpdateClusterSoftware", request, rows)
    _print_jobs_affected_by_maintenance(
        view, rows, f"update the software of {len(rows)} node(s) of {', '.join(every)}"
    )
    if batch:
        output.echo(output.wrap_text_to_screen(f"hpctl: {maintenance_orders.NO_BATCHES}"), err=True)
    if dry_run:
        return _show_maintenance_view_and_exit(view, as_json)
    confirm_or_exit("update the software?", yes)
    aws, cluster_name = here.aws, here.cluster
    maintenance_orders.send_maintenance_order(
        aws, "update_cluster_software", request,
        lambda: maintenance_orders.is_software_updating(aws, cluster_name), time.sleep,
    )  # fmt: skip
    following = maintenance_following.MaintenanceFollower(
        aws, cluster_name, every, time.monotonic, time.sleep, every_s, timeout_s,
        before=fleet.description,
    )  # fmt: skip
    view = (
        _print_maintenance_progress_until_done(view, following.software())
        if wait
        else _update_maintenance_view(view, outcome="ordered")
    )
    return _show_maintenance_view_and_exit(view, as_json)


@click.command("health-check")
@nodes_argument
@add_groups_option("Every node of this group; repeatable.")
@click.option(
    "--check",
    "checks",
    multiple=True,
    type=click.Choice(CHECKS, case_sensitive=False),
    help="Which checks; repeatable. [default: InstanceStress and InstanceConnectivity]",
)
@_common
def health_check(
    names: tuple[str, ...], groups: tuple[str, ...], checks: tuple[str, ...], dry_run: bool,
    yes: bool, wait: bool, every_s: float, timeout_s: float, as_json: bool, **where: Any,
) -> None:  # fmt: skip
    """Run HyperPod's deep health checks on nodes or groups: one to two hours.

    Jobs are not interrupted: a node that is busy for ten minutes is skipped. A node that fails is
    rebooted or replaced by the service. One request a cluster at a time, workers only.
    Exit code: 0 all passed, 1 one failed or was replaced, 3 not done in time, 130 interrupted.
    """
    if not names and not groups:
        raise click.UsageError(
            "the command names no nodes: write NODES, or their groups with --group"
        )
    here, fleet = _read_in_service_fleet(where.pop("cluster"), where)
    _select_instance_group_names(fleet, groups)
    named = resolve_nodes_by_names(fleet.rows, names)
    # A node that is named beside its group is one node.
    rows = tuple(dict.fromkeys((*(r for r in fleet.rows if r.group in groups), *named)))
    heads = [row.display_name for row in rows if row.role in ("controller", "login")]
    if heads:
        raise HpctlError(
            f"SageMaker runs deep health checks only on worker nodes, not on {', '.join(heads)}",
            "remove these nodes from the command",
        )
    chosen = checks or CHECKS[:2]
    request = maintenance_orders.make_health_check_request(here.cluster, named, groups, chosen)
    view = _make_maintenance_view(here, "StartClusterHealthCheck", request, rows)
    _print_jobs_affected_by_maintenance(
        view, rows, f"check {len(rows)} node(s): {', '.join(chosen)}"
    )
    if dry_run:
        return _show_maintenance_view_and_exit(view, as_json)
    confirm_or_exit("start the checks?", yes)
    aws, cluster_name, ordered = here.aws, here.cluster, output.get_current_utc_time()
    maintenance_orders.send_maintenance_order(
        aws, "start_cluster_health_check", request,
        lambda: maintenance_orders.is_health_check_running(aws, cluster_name), time.sleep,
    )  # fmt: skip
    every = tuple(dict.fromkeys(row.group for row in rows))
    following = maintenance_following.MaintenanceFollower(
        aws, cluster_name, every, time.monotonic, time.sleep, every_s, timeout_s
    )
    if not wait:
        return _show_maintenance_view_and_exit(
            _update_maintenance_view(view, outcome="ordered"), as_json
        )
    view = _print_maintenance_progress_until_done(view, following.health())
    if view.outcome != "interrupted":
        after = read_existing_cluster_fleet(here)
        became = compare_nodes_after_health_check(rows, after.rows)
        view = _update_maintenance_view(
            view,
            nodes=tuple(_read_health_check_result(aws, after, node, ordered) for node in became),
        )
    return _show_maintenance_view_and_exit(view, as_json)


def compare_nodes_after_health_check(
    before: Sequence[NodeRow], after: Sequence[NodeRow]
) -> tuple[HealthCheckedNode, ...]:
    """Return what became of each node, by comparison: no call of the API tells a result."""
    results = []
    for old in before:
        now = next(
            (
                row
                for row in after
                if (row.logical_id and row.logical_id == old.logical_id)
                or row.instance_id == old.instance_id
                or (row.ip and row.ip == old.ip and not row.logical_id)
            ),
            None,
        )
        result, new, why = "gone", "", ""
        if now is not None and now.status in ("Failure", "Failed"):
            result, why = "failed", now.message
        elif now is not None:
            same = now.instance_id == old.instance_id
            result, new = ("passed", "") if same else ("replaced", now.instance_id)
        results.append(HealthCheckedNode(old.display_name, old.instance_id, new, result, why))
    return tuple(results)


def _read_health_check_result(
    aws: AwsClientFactory, fleet: Fleet, node: HealthCheckedNode, since: datetime
) -> HealthCheckedNode:
    """Return the node with what its own log says."""
    answer = fleet.description
    arn, name = str(answer["ClusterArn"]), str(answer.get("ClusterName", ""))
    needs, line = health_verdict.read_health_check_recommendation(
        aws, arn, name, node.instance_id, since
    )
    result = "rebooted" if needs == "reboot" and node.result == "passed" else node.result
    return replace(node, result=result, message=node.message or line)


def _read_in_service_fleet(
    cluster: str | None, where: Mapping[str, Any]
) -> tuple[ClusterCommandContext, Fleet]:
    here = resolve_cluster_context(cluster, **where)
    fleet = read_existing_cluster_fleet(here)
    status = str(fleet.description["ClusterStatus"])
    if status != "InService":
        raise HpctlError(
            f"the cluster's status is {status}, but SageMaker accepts this operation only while "
            "it is InService",
            f"`hpctl cluster wait {here.cluster}` waits until it is InService; then run the "
            "command again",
        )
    return here, fleet


def _select_instance_group_names(fleet: Fleet, named: Sequence[str]) -> tuple[str, ...]:
    """Return the groups named, or all. Raises ResourceNotFound for one that is not there."""
    every = [str(g["InstanceGroupName"]) for g in fleet.description.get("InstanceGroups", ())]
    for group in named:
        find_instance_group(fleet.description, group)
    return tuple(named or every)


def _make_maintenance_view(
    here: ClusterCommandContext, operation: str, request: Mapping[str, Any], rows: Sequence[NodeRow]
) -> ClusterMaintenanceView:
    answer = read_local_cluster_state(here) if here.slurm else LocalClusterState()
    jobs: tuple[int, ...] | None = None
    if answer.slurm is not None:
        joined = answer.join(tuple(rows), here)
        jobs = tuple(sorted(set(chain.from_iterable(row.jobs for row in joined))))
    return ClusterMaintenanceView(
        output.get_current_utc_time(), here.cluster, operation, request, jobs, "dry_run", "", (), ()
    )


def _update_maintenance_view(
    view: ClusterMaintenanceView, **changed: Any
) -> ClusterMaintenanceView:
    return replace(view, as_of=output.get_current_utc_time(), **changed)


def _print_jobs_affected_by_maintenance(
    view: ClusterMaintenanceView, rows: Sequence[NodeRow], what: str
) -> None:
    output.echo(f"{view.operation} on {view.cluster}: {what}", err=True)
    output.echo(
        f"  {', '.join(row.display_name for row in rows[:8])}{' ...' * (len(rows) > 8)}", err=True
    )
    if view.jobs is None:
        output.echo(
            "  which jobs run there is unknown: Slurm is not available on this host", err=True
        )
    else:
        running = ", ".join(map(str, view.jobs)) or "none"
        output.echo(f"  jobs there: {running}", err=True)


def _print_maintenance_progress_until_done(
    view: ClusterMaintenanceView, looks: Iterator[ClusterMaintenanceProgress]
) -> ClusterMaintenanceView:
    """Tell of each change on standard error; the view at the end."""
    before: list[str] = []
    last = ClusterMaintenanceProgress("", ())
    try:
        for last in looks:
            lines = format_maintenance_progress_lines(last)
            for line in lines if lines != before else ():
                output.echo(f"{output.get_current_utc_time():%Y-%m-%dT%H:%M:%SZ} {line}", err=True)
            before = lines
    except KeyboardInterrupt:
        return _update_maintenance_view(view, outcome="interrupted", groups=last.groups)
    outcome = "failed" if last.failed else "done"
    return _update_maintenance_view(view, outcome=outcome, failed=last.failed, groups=last.groups)


def _show_maintenance_view_and_exit(view: ClusterMaintenanceView, as_json: bool) -> None:
    output.show_view("cluster-maintenance", view, as_json)
    if view.outcome == "interrupted":
        raise click.exceptions.Exit(INTERRUPTED)
    bad = view.outcome == "failed" or any(node.result != "passed" for node in view.nodes)
    output.exit_with_code(ExitCode.PROBLEM if bad else ExitCode.FINE)


def format_maintenance_progress_lines(work: ClusterMaintenanceProgress) -> list[str]:
    """Return one line a group, of one look."""
    lines = [f"the cluster is {work.status}"] if work.status != "InService" else []
    lines += [_format_group_maintenance_line(group) for group in work.groups]
    return [*lines, f"cannot look: {work.unread}"] if work.unread else lines
