"""What a watched cluster looks like at one time, and when a wait for it is over. Pure.

Words are SageMaker's own: a status here is a ClusterStatus, a group's Status, an
InstanceStatus.Status.

`patience_s` is how long only failed nodes may be missing, with nothing else moving, before a wait
gives up on them: with Continuous provisioning the service tries them again and again.

What the service's words about a failure mean, and what to do about it.

A shortage is explained by where the instances were to come from: the zones of the subnets, and
those of a training plan. Nothing here raises: what cannot be found out is left out.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from hpctl.sagemaker.failure_causes import InstancePlacement, NodeFailureCause
from hpctl.toolkit.compat import StrEnum
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.ports import AwsClientFactory


def find_group_placement(
    aws: AwsClientFactory, group: Mapping[str, Any], description: Mapping[str, Any]
) -> InstancePlacement:
    """Return where a described group of a described cluster looks for its instances."""
    vpc = group.get("OverrideVpcConfig") or description.get("VpcConfig") or {}
    zones = map_subnet_zones(aws, tuple(vpc.get("Subnets", ())))
    plan = str(group.get("TrainingPlanArn", "")).rpartition("/")[2]
    if not plan:
        return InstancePlacement(list_group_instance_types(group), zones)
    try:
        answer = aws.service("sagemaker").read("describe_training_plan", TrainingPlanName=plan)
    except HpctlError:
        return InstancePlacement(list_group_instance_types(group), zones, plan)
    held = [str(r.get("AvailabilityZone", "")) for r in answer.get("ReservedCapacitySummaries", ())]
    return InstancePlacement(
        list_group_instance_types(group),
        zones,
        plan,
        str(answer.get("Status", "")),
        tuple(dict.fromkeys(zone for zone in held if zone)),
    )


def map_subnet_zones(aws: AwsClientFactory, subnets: Sequence[str]) -> dict[str, str]:
    """Return the zone of each subnet, "" where it is unknown."""
    zones = dict.fromkeys(subnets, "")
    if not subnets:
        return zones
    try:
        answer = aws.service("ec2").read("describe_subnets", SubnetIds=list(subnets))
    except HpctlError:
        return zones
    return zones | {str(s["SubnetId"]): str(s["AvailabilityZone"]) for s in answer["Subnets"]}


def list_group_instance_types(group: Mapping[str, Any]) -> tuple[str, ...]:
    """The instance types that a described group may have, in the order of preference."""
    flexible = group.get("InstanceRequirements") or {}
    listed = flexible.get("DesiredInstanceTypes") or flexible.get("CurrentInstanceTypes") or ()
    plain = group.get("InstanceType")
    return tuple(str(t) for t in (listed or ((plain,) if plain else ())))


DELETED = "Deleted"
"""Progress.status of a cluster that the service does not know or no longer knows."""


RUNNING = "Running"


FAILURE = frozenset({"Failure", "Failed"})
"""The API says Failure; prose and some tools say Failed."""


class ClusterWaitState(StrEnum):
    """The progress of a wait."""

    WAITING = "waiting"
    REACHED = "reached"
    FAILED = "failed"
    DEADLINE = "deadline"


class NodeProgress(Struct, frozen=True):
    """One node. `since` is when it came into its status, as far as the watch can know.

    `instance_id` is "" while nothing was launched for it, `logical_id` unless the cluster's
    provisioning is Continuous, `node` (the Slurm name) until it has an address. `trouble` says
    what a failure means.
    """

    group: str
    instance_id: str
    logical_id: str
    node: str
    status: str
    message: str
    since: datetime
    trouble: NodeFailureCause | None = None

    @property
    def key(self) -> str:
        """Return what it is known by from one look to the next."""
        return self.logical_id or self.instance_id

    @property
    def name(self) -> str:
        """Return what to call it: the Slurm name, else an id."""
        return self.node or self.instance_id or self.logical_id

    @property
    def has_failed(self) -> bool:
        """Return whether the service gave up on it for now: it failed, or nothing could be
        launched.

        With Continuous provisioning what finds no capacity stays Pending without an instance. On
        a node that has one a message means nothing: the last failure's stays there.
        """
        starved = self.status == "Pending" and not self.instance_id and bool(self.message)
        return self.status in FAILURE or starved


class InstanceGroupProgress(Struct, frozen=True):
    """An instance group: how many instances are in it, of how many that it shall have.

    `instance_types` are in the order of preference.
    """

    name: str
    instance_types: tuple[str, ...]
    status: str
    current: int
    target: int


class ClusterProgressEvent(Struct, frozen=True):
    """One of the cluster's events (Continuous provisioning only)."""

    at: datetime
    level: str
    text: str
    group: str = ""
    instance_id: str = ""


class ClusterProgress(Struct, frozen=True):
    """One look at a cluster.

    `waited_s` is since the watch began, `still_s` since anything changed but failed nodes; `seen`
    holds the statuses that the cluster has had meanwhile. `failures` are the nodes that failed
    during the watch and have not come up since, also those that the service has taken away again.
    `events` are those since the look before.
    `unread` says why this look failed: everything else is then as the look before had it.
    `by_api`: every group has its SlurmConfig.
    """

    cluster: str
    status: str
    at: datetime
    arn: str = ""
    failure: str = ""
    groups: tuple[InstanceGroupProgress, ...] = ()
    nodes: tuple[NodeProgress, ...] = ()
    failures: tuple[NodeProgress, ...] = ()
    events: tuple[ClusterProgressEvent, ...] = ()
    waited_s: float = 0.0
    still_s: float = 0.0
    seen: frozenset[str] = frozenset()
    unread: str = ""
    by_api: bool = False
    verdict: ClusterWaitState = ClusterWaitState.WAITING
    why: str = ""

    @property
    def targets(self) -> Mapping[str, int]:
        """Return the TargetCount of every group."""
        return {g.name: g.target for g in self.groups}

    @property
    def failed_nodes(self) -> tuple[NodeProgress, ...]:
        """Return the nodes that are failed now."""
        return tuple(n for n in self.nodes if n.has_failed)

    @property
    def is_last(self) -> bool:
        """Return whether this is the last look."""
        return self.verdict is not ClusterWaitState.WAITING


Judged = tuple[ClusterWaitState, str]


Until = Callable[[ClusterProgress], Judged]


LAG_S = 120.0
"""How long DescribeCluster may still show the counts from before an order that was taken."""


PATIENCE_S = 900.0


WAITING: Judged = (ClusterWaitState.WAITING, "")


_MENDS = {
    "drift detected": (
        "slurm.conf was edited by hand: slurm_config_strategy Merge keeps that, Overwrite undoes it"
    ),
    "mismatch detected": (
        "slurm.conf was edited by hand: slurm_config_strategy Merge keeps that, Overwrite undoes it"
    ),
    "provisioning_parameters.json": "remove that file below every group's source_s3_uri",
}
"""By words of FailureMessage (AWS's guide on API-driven Slurm configuration,
troubleshooting)."""


def build_in_service_wait_condition(
    targets: Mapping[str, int] | None = None,
    patience_s: float = PATIENCE_S,
    leaving: Collection[str] = (),
    before: str | None = None,
) -> Until:
    """InService with every group at its target count, those in `targets` at what these say, and
    those that are `leaving` gone.

    FAILED where the cluster failed, was rolled back or is deleted. `before` is the
    FailureMessage from before the order, where it was read: another one is a result of this
    order.
    """

    def evaluate_in_service_progress(p: ClusterProgress) -> Judged:
        if p.status != "InService":
            return _evaluate_not_in_service_cluster(p, patience_s)
        if "RollingBack" in p.seen:
            return _evaluate_rollback(p)
        missed = _format_target_differences(p.targets, targets) if targets is not None else ""
        if missed:
            return _evaluate_missed_targets(p, missed, before)
        if set(p.targets) & set(leaving):
            return WAITING
        if all(g.current >= g.target for g in p.groups) and all(
            n.status == RUNNING for n in p.nodes
        ):
            return ClusterWaitState.REACHED, ""
        return _evaluate_stalled_nodes(p, patience_s)

    return evaluate_in_service_progress


def _evaluate_not_in_service_cluster(p: ClusterProgress, patience_s: float) -> Judged:
    """Judge a cluster that is not InService."""
    if p.status == "Failed":
        return ClusterWaitState.FAILED, p.failure or "the cluster is Failed"
    if p.seen == {DELETED} and p.waited_s < LAG_S:
        return WAITING  # it was created a moment ago
    if p.status in ("Deleting", DELETED):
        return ClusterWaitState.FAILED, f"the cluster is {p.status}"
    # A Continuous cluster waits for a login node, however often that fails.
    return _evaluate_stalled_nodes(p, patience_s) if p.status == "Creating" else WAITING


def _evaluate_missed_targets(p: ClusterProgress, missed: str, before: str | None) -> Judged:
    """Judge an InService cluster whose target counts are not the ordered ones."""
    if before is not None and p.failure not in ("", before):
        return _evaluate_rollback(p)
    if p.waited_s < LAG_S:
        return WAITING
    return ClusterWaitState.FAILED, f"{missed}{': ' + p.failure if p.failure else ''}"


def build_migration_wait_condition(judge: Until, before: str) -> Until:
    """`judge`, and every group has its SlurmConfig. FAILED where it is over without.

    `before` is the FailureMessage from before the order: another one tells of this order.
    """

    def evaluate_migration_progress(p: ClusterProgress) -> Judged:
        verdict, why = judge(p)
        if verdict is not ClusterWaitState.REACHED or p.by_api:
            return verdict, why
        text = p.failure not in ("", before)
        over = text or "Updating" in p.seen or p.waited_s >= LAG_S
        return _evaluate_rollback(p) if over else WAITING

    return evaluate_migration_progress


def _evaluate_rollback(p: ClusterProgress) -> Judged:
    fix = next((fix for word, fix in _MENDS.items() if word in p.failure), "")
    why = f"the service rolled the change back: {p.failure or 'it does not say why'}"
    return ClusterWaitState.FAILED, f"{why} ({fix})" if fix else why


def evaluate_cluster_deletion_progress(p: ClusterProgress) -> Judged:
    """Return DONE once the service has no such cluster. FAILED where no deletion is ordered."""
    if p.status == DELETED:
        return ClusterWaitState.REACHED, ""
    if p.status == "Failed":
        return ClusterWaitState.FAILED, p.failure or "the deletion failed"
    if "Deleting" not in p.seen and p.waited_s >= LAG_S:
        return (
            ClusterWaitState.FAILED,
            "its deletion was not ordered; order it: hpctl cluster delete",
        )
    return WAITING


def _format_target_differences(have: Mapping[str, int], want: Mapping[str, int]) -> str:
    wrong = [
        f"{name} has a target of {have.get(name, 0)}, not {count}"
        for name, count in want.items()
        if have.get(name) != count
    ]
    return "; ".join(wrong)


def _evaluate_stalled_nodes(p: ClusterProgress, patience_s: float) -> Judged:
    """Return whether only failed nodes are missing: the service may retry those without a limit."""
    failed = {n.key for n in p.failures}
    moving = any(n.status != RUNNING and n.key not in failed for n in p.nodes)
    if not failed or moving or p.still_s < patience_s:
        return WAITING
    return (
        ClusterWaitState.FAILED,
        f"{len(failed)} node(s) did not come up, and nothing else has moved for {p.still_s:.0f} s",
    )
