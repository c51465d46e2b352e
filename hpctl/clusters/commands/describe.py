"""`hpctl cluster describe`: a cluster and its groups in one screen, and what is wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import click
from msgspec import Struct

from hpctl.clusters.commands.change_view import describe_failed_nodes_by_failure
from hpctl.clusters.commands.context import (
    add_cluster_options,
    cluster_argument,
    read_existing_cluster_fleet,
    resolve_cluster_context,
)
from hpctl.clusters.failures import list_failed_nodes
from hpctl.clusters.fleet import Fleet, NodeRow
from hpctl.clusters.progress import NodeProgress
from hpctl.engine.aws_account import make_aws_client_for_command
from hpctl.toolkit import output
from hpctl.toolkit.arguments import aws_options
from hpctl.toolkit.declared_view import (
    AgeCell,
    BlankLine,
    Column,
    Columns,
    ItemTextLines,
    JsonOnly,
    LabeledValueRow,
    LabeledValueTable,
    Layout,
    RowTable,
    make_state_column,
)
from hpctl.toolkit.output import ExitCode
from hpctl.toolkit.tables import BAD, STYLES, style_text

if TYPE_CHECKING:
    from rich.console import RenderableType


class InstanceGroupView(Struct, frozen=True):
    """One instance group. `minimum` is null where it has none; `types` are in order of choice."""

    name: str
    role: str
    types: tuple[str, ...]
    current: int
    target: int
    minimum: int | None
    status: str
    partitions: tuple[str, ...]
    capacity: str
    training_plan: str
    image: str
    image_status: str
    software_update: str
    nodes: Mapping[str, int]

    columns: ClassVar[Columns] = (
        Column("GROUP", "name"),
        make_state_column("ROLE", "role"),
        Column("TYPE", "types", fold=True, empty="-"),
        Column("NODES", "counts"),
        make_state_column("STATUS", "status"),
        make_state_column("PARTITION", lambda group: ",".join(group.partitions), wide=True),
        Column("CAPACITY", "plan_or_capacity", wide=True),
        make_state_column(
            "IMAGE", lambda group: f"{group.image} {group.image_status}".strip(), wide=True
        ),
        make_state_column("UPDATE", "software_update", wide=True),
    )
    json_only: ClassVar[JsonOnly] = ("nodes",)

    @property
    def counts(self) -> str:
        """`3/4 (min 2)`: the nodes that there are and those that are wanted."""
        least = f" (min {self.minimum})" if self.minimum is not None else ""
        return f"{self.current}/{self.target}{least}"

    @property
    def plan_or_capacity(self) -> str:
        """Return the training plan's name, or how the instances are paid for without one."""
        return self.training_plan.rpartition("/")[2] or self.capacity


def format_failed_node_line(node: NodeProgress) -> str:
    """Return a failed node in one line."""
    return f"{node.name}: {node.message or node.status}"


class ClusterDescribeView(Struct, frozen=True):
    """What `hpctl cluster describe` shows. `problems` tell of the `failed_nodes`, too."""

    as_of: datetime
    name: str
    arn: str
    status: str
    created: datetime | None
    provisioning: str
    node_recovery: str
    subnets: tuple[str, ...]
    security_groups: tuple[str, ...]
    groups: tuple[InstanceGroupView, ...]
    problems: tuple[str, ...]
    failed_nodes: tuple[NodeProgress, ...] = ()

    layout: ClassVar[Layout] = (
        LabeledValueTable(
            (
                LabeledValueRow("cluster", "name"),
                LabeledValueRow("arn", "arn"),
                LabeledValueRow("status", "status", style=STYLES),
                LabeledValueRow("age", AgeCell("created")),
                LabeledValueRow("provisioning", "provisioning"),
                LabeledValueRow("recovery", "node_recovery"),
                LabeledValueRow("subnets", "subnets"),
                LabeledValueRow("security", "security_groups"),
            )
        ),
        BlankLine(),
        RowTable("groups"),
        ItemTextLines("problem_lines", title="Wrong", indent=2),
    )

    @property
    def problem_lines(self) -> list[RenderableType]:
        """Return what is wrong; a failed node by all that is known of its failure."""
        if not self.problems:
            return []
        described = {format_failed_node_line(node) for node in self.failed_nodes}
        rest = [style_text(line, BAD) for line in self.problems if line not in described]
        return [*rest, *describe_failed_nodes_by_failure(self.failed_nodes)]


def make_cluster_describe_view(
    fleet: Fleet, failed: tuple[NodeProgress, ...], now: datetime
) -> ClusterDescribeView:
    """Return the screen as a value; `failed` are the fleet's failed nodes, understood."""
    answer = fleet.description
    vpc = answer.get("VpcConfig", {})
    groups = tuple(
        _make_instance_group_view(g, fleet.rows) for g in answer.get("InstanceGroups", ())
    )
    return ClusterDescribeView(
        as_of=now,
        name=str(answer.get("ClusterName", "")),
        arn=str(answer["ClusterArn"]),
        status=str(answer["ClusterStatus"]),
        created=answer.get("CreationTime"),
        provisioning=str(answer.get("NodeProvisioningMode") or "AllAtOnce"),
        node_recovery=str(answer.get("NodeRecovery") or "Automatic"),
        subnets=tuple(vpc.get("Subnets", ())),
        security_groups=tuple(vpc.get("SecurityGroupIds", ())),
        groups=groups,
        problems=tuple(_find_cluster_problems(answer, groups, failed)),
        failed_nodes=failed,
    )


def _make_instance_group_view(
    answer: Mapping[str, Any], rows: tuple[NodeRow, ...]
) -> InstanceGroupView:
    name = str(answer.get("InstanceGroupName", ""))
    wanted = answer.get("InstanceRequirements", {}).get("DesiredInstanceTypes", ())
    plain = answer.get("InstanceType")
    slurm = answer.get("SlurmConfig", {})
    return InstanceGroupView(
        name=name,
        role=str(slurm.get("NodeType", "")).lower(),
        types=tuple(wanted) or ((str(plain),) if plain else ()),
        current=int(answer.get("CurrentCount", 0)),
        target=int(answer.get("TargetCount", 0)),
        minimum=answer.get("MinCount"),
        status=str(answer.get("Status", "")),
        partitions=tuple(slurm.get("PartitionNames", ())),
        capacity="Spot" if "Spot" in answer.get("CapacityRequirements", {}) else "OnDemand",
        training_plan=str(answer.get("TrainingPlanArn", "")),
        image=str(answer.get("CurrentImageReleaseVersion") or answer.get("CurrentImageId") or ""),
        image_status=str(answer.get("ImageVersionStatus", "")),
        software_update=str(answer.get("SoftwareUpdateStatus", "")),
        nodes=dict(Counter(row.status for row in rows if row.group == name)),
    )


def _find_cluster_problems(
    answer: Mapping[str, Any],
    groups: tuple[InstanceGroupView, ...],
    failed: tuple[NodeProgress, ...],
) -> list[str]:
    found = []
    if answer["ClusterStatus"] == "Failed" or answer.get("FailureMessage"):
        found.append(f"the cluster: {answer.get('FailureMessage') or 'Failed'}")
    for group in groups:
        if group.status in ("Failed", "Degraded"):
            counts = f"{group.current} of {group.target} nodes run"
            found.append(f"group {group.name} is {group.status}: {counts}")
        if group.software_update in ("Failed", "RollbackInProgress", "RollbackComplete"):
            found.append(f"group {group.name}: the software update is {group.software_update}")
    return [*found, *map(format_failed_node_line, failed)]


@click.command()
@cluster_argument
@output.json_option
@add_cluster_options
def describe(name: str | None, as_json: bool, cluster: str | None, **where: Any) -> None:
    """A cluster, its instance groups, and what is wrong with it.

    Exit code: 0, or 1 where something is wrong.
    """
    here = resolve_cluster_context(name or cluster, **where)
    fleet = read_existing_cluster_fleet(here)
    at = output.get_current_utc_time()
    view = make_cluster_describe_view(
        fleet, list_failed_nodes(here.aws, fleet.description, fleet.rows, at), at
    )
    output.show_view("cluster-describe", view, as_json)
    output.exit_with_code(ExitCode.PROBLEM if view.problems else ExitCode.FINE)


class ClusterListRow(Struct, frozen=True):
    """One cluster, as ListClusters tells of it."""

    name: str
    status: str
    created: datetime | None
    arn: str
    training_plans: tuple[str, ...]

    columns: ClassVar[Columns] = (
        Column("NAME", "name"),
        make_state_column("STATUS", "status"),
        Column("AGE", AgeCell("created")),
        Column("ARN", "arn", wide=True),
    )
    json_only: ClassVar[JsonOnly] = ("training_plans",)


class ClusterListView(Struct, frozen=True):
    """What `hpctl cluster list` shows."""

    as_of: datetime
    region: str
    clusters: tuple[ClusterListRow, ...]

    layout: ClassVar[Layout] = (RowTable("clusters", otherwise="no HyperPod cluster in {region}"),)


@click.command("list")
@output.json_option
@aws_options
def list_clusters(as_json: bool, **where: Any) -> None:
    """The clusters of an account in a region.

    Exit code: 0, or 1 where a cluster has failed.
    """
    aws = make_aws_client_for_command(**where)
    found = aws.service("sagemaker").pages(
        "list_clusters", "ClusterSummaries", MaxResults=100, SortBy="NAME", SortOrder="Ascending"
    )
    lines = tuple(
        ClusterListRow(
            name=str(c["ClusterName"]),
            status=str(c["ClusterStatus"]),
            created=c.get("CreationTime"),
            arn=str(c["ClusterArn"]),
            training_plans=tuple(c.get("TrainingPlanArns", ())),
        )
        for c in found
    )
    view = ClusterListView(output.get_current_utc_time(), aws.region, lines)
    output.show_view("cluster-list", view, as_json)
    output.exit_with_code(
        ExitCode.PROBLEM if any(c.status == "Failed" for c in lines) else ExitCode.FINE
    )
