"""Count what a cluster has by group and zone, and read the training plans behind it.

Capacity is reserved, running, spare or failed. Nothing here buys or extends a training plan
(ADR 0088).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any, ClassVar, Final

from msgspec import Struct

from hpctl.clusters.fleet import NodeRow
from hpctl.toolkit.declared_view import (
    Column,
    Columns,
    ItemTextLines,
    Layout,
    RowTable,
    TextLine,
    make_number_column,
)
from hpctl.toolkit.errors import (
    HpctlError,
    ResourceNotFound,
    ServiceCallRefused,
    ServiceUnavailable,
)
from hpctl.toolkit.tables import BAD
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.ports import AwsClientFactory
from hpctl.vocabulary.spares_reservation import RESERVATION

RUNNING: Final = "Running"
FAILED: Final = ("Failure", "Failed")
LEAVING: Final = "ShuttingDown"

SHORT: Final = ("Failed", "Degraded")
"""A group's Status where it has less than it shall have."""

UNUSABLE: Final = frozenset({"DRAIN", "NOT_RESPONDING", "FAIL", "MAINTENANCE", "MAINT"})


class InstanceGroupZoneCapacity(Struct, frozen=True):
    """The instances of a group in one zone.

    `spare`: idle in hpctl's reservation. `idle`, `busy` and `out` (drained or down) are Slurm's,
    None where Slurm was not asked. `coming`: not running yet; `failed` by the service's word.
    """

    group: str
    instance_type: str
    zone: str
    instances: int = 0
    running: int = 0
    coming: int = 0
    failed: int = 0
    leaving: int = 0
    spare: int | None = None
    idle: int | None = None
    busy: int | None = None
    out: int | None = None


class InstanceGroupCapacity(Struct, frozen=True):
    """A group as a whole. `target` is what was asked for; `plan` its training plan's name."""

    group: str
    instance_type: str
    target: int
    status: str
    plan: str


class TrainingPlanCapacity(Struct, frozen=True):
    """One reserved capacity of a training plan. `in_use` and so on are the whole plan's."""

    plan: str
    status: str
    instance_type: str
    zone: str
    total: int
    in_use: int | None
    available: int | None
    unhealthy: int | None
    starts: datetime | None
    ends: datetime | None

    columns: ClassVar[Columns] = (
        Column("TRAINING PLAN", "plan", fold=True),
        Column("TYPE", "instance_type", wide=True),
        Column("STARTS", "{starts:%Y-%m-%d}", wide=True),
        Column("ZONE", lambda plan: plan.zone or None),
        make_number_column("RESERVED", "total"),
        make_number_column("IN USE", "in_use"),
        make_number_column("FREE", "available"),
        make_number_column("UNHEALTHY", "unhealthy"),
        Column("STATUS", "status"),
        Column("ENDS", "{ends:%Y-%m-%d}"),
    )


class ZoneCapacityRow(Struct, frozen=True):
    """The text of a group in one zone. The group's own figures are in its first row alone."""

    group: str
    instance_type: str
    status: str
    zone: str | None
    target: int | str
    running: int
    spare: int | None
    idle: int | None
    busy: int | None
    out: int | None
    failed: int
    coming: int

    columns: ClassVar[Columns] = (
        Column("GROUP", "group", fold=True),
        Column("TYPE", "instance_type", wide=True),
        Column("STATUS", "status", wide=True),
        Column("ZONE", "zone"),
        make_number_column("TARGET", "target"),
        make_number_column("RUNNING", "running"),
        make_number_column("SPARE", "spare", when="slurm_was_asked"),
        make_number_column("IDLE", "idle", when="slurm_was_asked"),
        make_number_column("BUSY", "busy", when="slurm_was_asked"),
        make_number_column("OUT", "out", when="slurm_was_asked"),
        make_number_column("FAILED", "failed"),
        make_number_column("COMING", "coming"),
    )


def _make_zone_capacity_row(
    zone: InstanceGroupZoneCapacity, group: InstanceGroupCapacity | None
) -> ZoneCapacityRow:
    return ZoneCapacityRow(
        group=zone.group,
        instance_type=zone.instance_type,
        status=group.status if group else "",
        zone=zone.zone or None,
        target=group.target if group else "",
        running=zone.running,
        spare=zone.spare,
        idle=zone.idle,
        busy=zone.busy,
        out=zone.out,
        failed=zone.failed,
        coming=zone.coming + zone.leaving,
    )


def _make_empty_group_capacity_row(group: InstanceGroupCapacity) -> ZoneCapacityRow:
    return ZoneCapacityRow(
        group=group.group,
        instance_type=group.instance_type,
        status=group.status,
        zone=None,
        target=group.target,
        running=0,
        spare=0,
        idle=0,
        busy=0,
        out=0,
        failed=0,
        coming=0,
    )


class ClusterCapacityView(Struct, frozen=True):
    """What `hpctl cluster capacity` shows. `unknown`: what could not be read, and why. `problems`:
    groups that the service calls Failed or Degraded, or that have failed instances.
    """

    as_of: datetime
    cluster: str
    status: str
    groups: tuple[InstanceGroupCapacity, ...]
    zones: tuple[InstanceGroupZoneCapacity, ...]
    plans: tuple[TrainingPlanCapacity, ...]
    unknown: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    layout: ClassVar[Layout] = (
        TextLine("{cluster} is {status}"),
        RowTable("zone_texts"),
        RowTable("plans", gap=True),
        ItemTextLines("problems", style=BAD),
        ItemTextLines("unknown", "Not known: {}"),
    )

    @property
    def slurm_was_asked(self) -> bool:
        """Return whether Slurm's own counts are there."""
        return any(zone.idle is not None for zone in self.zones)

    @property
    def zone_texts(self) -> list[ZoneCapacityRow]:
        """Return one row for each zone of a group, then the groups that have no instance."""
        left = {group.group: group for group in self.groups}
        rows = [_make_zone_capacity_row(zone, left.pop(zone.group, None)) for zone in self.zones]
        return [*rows, *map(_make_empty_group_capacity_row, left.values())]


def make_cluster_capacity_view(  # noqa: PLR0913 -- one answer of each source that was asked
    description: Mapping[str, Any],
    rows: Sequence[NodeRow],
    plans: Iterable[TrainingPlanCapacity],
    reservations: Mapping[str, tuple[NodeName, ...]] | None,
    at: datetime,
    unknown: tuple[str, ...] = (),
) -> ClusterCapacityView:
    """Return everything counted. `reservations` None: Slurm was not asked, nor are `rows` joined to
    it."""
    spares = set[str]()
    for name, nodes in (reservations or {}).items():
        spares |= set(nodes) if name.startswith(RESERVATION) else set()
    groups = tuple(map(_parse_group_capacity, description.get("InstanceGroups", ())))
    zones = tuple(_summarize_capacity_by_group_and_zone(rows, spares, reservations is not None))
    return ClusterCapacityView(
        as_of=at,
        cluster=str(description.get("ClusterName", "")),
        status=str(description.get("ClusterStatus", "")),
        groups=groups,
        zones=zones,
        plans=tuple(plans),
        unknown=(*unknown, *sorted({row.unread for row in rows if row.unread})),
        problems=tuple(_find_capacity_problems(groups, zones)),
    )


def _find_capacity_problems(
    groups: Sequence[InstanceGroupCapacity], zones: Sequence[InstanceGroupZoneCapacity]
) -> Iterator[str]:
    for group in groups:
        own = [zone for zone in zones if zone.group == group.group]
        running, failed = sum(z.running for z in own), sum(z.failed for z in own)
        counts = f"{running} of {group.target} run" + (f", {failed} failed" if failed else "")
        if group.status in SHORT or failed:
            yield f"group {group.group} is {group.status}: {counts}"


def _parse_group_capacity(answer: Mapping[str, Any]) -> InstanceGroupCapacity:
    return InstanceGroupCapacity(
        group=str(answer.get("InstanceGroupName", "")),
        instance_type=str(answer.get("InstanceType", "")),
        target=int(answer.get("TargetCount", 0)),
        status=str(answer.get("Status", "")),
        plan=parse_training_plan_name(str(answer.get("TrainingPlanArn", ""))),
    )


def _summarize_capacity_by_group_and_zone(
    rows: Iterable[NodeRow], spares: set[str], slurm: bool
) -> list[InstanceGroupZoneCapacity]:
    """Return one for each group, type and zone, in the order of the nodes."""
    sorted_in: dict[tuple[str, str, str], list[NodeRow]] = {}
    for row in rows:
        sorted_in.setdefault((row.group, row.instance_type, row.zone), []).append(row)
    return [
        _summarize_group_zone_capacity(key, mine, spares, slurm) for key, mine in sorted_in.items()
    ]


def _summarize_group_zone_capacity(
    key: tuple[str, str, str], rows: list[NodeRow], spares: set[str], slurm: bool
) -> InstanceGroupZoneCapacity:
    group, kind, zone = key
    failed = sum(row.status in FAILED for row in rows)
    running = sum(row.status == RUNNING for row in rows)
    leaving = sum(row.status == LEAVING for row in rows)
    uses = (
        [_classify_slurm_use_of_instance(row, spares) for row in rows if row.status == RUNNING]
        if slurm
        else []
    )
    return InstanceGroupZoneCapacity(
        group=group,
        instance_type=kind,
        zone=zone,
        instances=len(rows),
        running=running,
        coming=len(rows) - running - failed - leaving,
        failed=failed,
        leaving=leaving,
        spare=uses.count("spare") if slurm else None,
        idle=uses.count("idle") if slurm else None,
        busy=uses.count("busy") if slurm else None,
        out=uses.count("out") if slurm else None,
    )


def _classify_slurm_use_of_instance(row: NodeRow, spares: set[str]) -> str:
    """Return what Slurm does with a running instance; nothing with a controller or a login node."""
    if row.role in ("controller", "login"):
        return ""
    if UNUSABLE.intersection(row.slurm_flags) or row.slurm_state not in _SERVES:
        return "out"
    if row.jobs or row.slurm_state != "IDLE":
        return "busy"
    return "spare" if row.node in spares else "idle"


_SERVES: Final = frozenset({"IDLE", "ALLOCATED", "MIXED"})


def read_cluster_training_plans(
    aws: AwsClientFactory, description: Mapping[str, Any]
) -> tuple[tuple[TrainingPlanCapacity, ...], tuple[str, ...]]:
    """Return the training plans of a cluster's groups, and what of them could not be read."""
    arns = [str(g.get("TrainingPlanArn") or "") for g in description.get("InstanceGroups", ())]
    plans: list[TrainingPlanCapacity] = []
    unknown: list[str] = []
    for name in dict.fromkeys(parse_training_plan_name(arn) for arn in arns if arn):
        try:
            answer = aws.service("sagemaker").read("describe_training_plan", TrainingPlanName=name)
        except (ServiceCallRefused, ServiceUnavailable) as error:
            unknown.append(f"training plan {name}: {error}")
            continue
        plans += _list_training_plan_capacities(name, answer)
    return tuple(plans), tuple(unknown)


def parse_training_plan_name(arn: str) -> str:
    """Return the name in a training plan's ARN."""
    return arn.rpartition("training-plan/")[2]


def _list_training_plan_capacities(
    name: str, answer: Mapping[str, Any]
) -> list[TrainingPlanCapacity]:
    """Return one entry for each of its reserved capacities; one for the plan where it has none."""
    parts: Sequence[Mapping[str, Any]] = answer.get("ReservedCapacitySummaries") or ({},)
    return [
        TrainingPlanCapacity(
            plan=name,
            status=str(part.get("Status") or answer.get("Status", "")),
            instance_type=str(part.get("InstanceType", "")),
            zone=str(part.get("AvailabilityZone", "")),
            total=int(part.get("TotalInstanceCount") or answer.get("TotalInstanceCount") or 0),
            in_use=answer.get("InUseInstanceCount"),
            available=answer.get("AvailableInstanceCount"),
            unhealthy=answer.get("UnhealthyInstanceCount"),
            starts=part.get("StartTime") or answer.get("StartTime"),
            ends=part.get("EndTime") or answer.get("EndTime"),
        )
        for part in parts
    ]


Plan = Mapping[str, Any]
"""DescribeTrainingPlan's answer. See `plan`."""


def list_training_plans(aws: AwsClientFactory) -> Iterator[Plan]:
    """Return every plan of the account in the region, the latest first. Raises as `read` does."""
    return aws.service("sagemaker").pages(
        "list_training_plans", "TrainingPlanSummaries", SortBy="StartTime", SortOrder="Descending"
    )


def read_training_plan(aws: AwsClientFactory, name: str) -> tuple[Plan, tuple[str, ...]]:
    """Return a plan by name or ARN, and what of it could not be read. Raises ResourceNotFound with
    the nearest.

    Its reserved capacities are DescribeReservedCapacity's, with `UltraServers`; beside them stand
    the `TrainingPlanExtensions`.
    """
    sagemaker, unknown, parts = aws.service("sagemaker"), list[str](), []
    answer = describe_training_plan(aws, name)
    if answer is None:
        every = [str(one["TrainingPlanName"]) for one in list_training_plans(aws)]
        near = get_close_matches(parse_training_plan_name(name), every, n=2) or every[:5]
        there = f"is it {' or '.join(near)}?" if near else "there is none at all"
        hint = f"{there} (region {aws.region}; another one: --region, --profile)"
        raise ResourceNotFound(
            f"AWS has no training plan {name!r} in this account and region", hint
        )
    for part in answer.get("ReservedCapacitySummaries", ()):
        arn = {"ReservedCapacityArn": part["ReservedCapacityArn"]}
        more: dict[str, Any] = {}
        try:
            more |= sagemaker.read("describe_reserved_capacity", **arn)
            if part.get("ReservedCapacityType") == "UltraServer":
                operation = "list_ultra_servers_by_reserved_capacity"
                more["UltraServers"] = list(sagemaker.pages(operation, "UltraServers", **arn))
        except HpctlError as error:
            unknown.append(f"{arn['ReservedCapacityArn']}: {error}")
        parts.append({**part, **_strip_response_metadata(more)})
    whole = {**_strip_response_metadata(answer), "ReservedCapacitySummaries": parts}
    try:
        whole["TrainingPlanExtensions"] = list_training_plan_extensions(aws, answer)
    except HpctlError as error:
        unknown.append(f"its extensions: {error}")
    return whole, tuple(unknown)


def describe_training_plan(aws: AwsClientFactory, name: str) -> Plan | None:
    """DescribeTrainingPlan's answer; None where there is no such plan."""
    try:
        return aws.service("sagemaker").read(
            "describe_training_plan", TrainingPlanName=parse_training_plan_name(name)
        )
    except ResourceNotFound:
        return None


def list_training_plan_extensions(aws: AwsClientFactory, of: Plan) -> list[Mapping[str, Any]]:
    """Return every extension of a plan that was bought. Raises as `read` does."""
    operation, arn = "describe_training_plan_extension_history", of["TrainingPlanArn"]
    found = aws.service("sagemaker").pages(operation, "TrainingPlanExtensions", TrainingPlanArn=arn)
    return list(found)


def _strip_response_metadata(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer without what boto3 adds."""
    return {key: value for key, value in answer.items() if key != "ResponseMetadata"}
