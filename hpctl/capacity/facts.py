"""What the view says of instance groups: who is idle, who waits, what has been changed before."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Final

from hpctl.capacity.autoscale import (
    AutoscaledInstanceGroup,
    IdleNode,
    JobWaitingForNodes,
    ScalingInput,
)
from hpctl.capacity.burn_in import find_burn_in_job
from hpctl.capacity.change_facts import CapacityChangeFacts
from hpctl.capacity.history import list_scale_down_recoveries, read_scaling_history
from hpctl.engine.test_results import ReadResults, return_empty_acceptance_test_results
from hpctl.engine.view import PlanningView, group_jobs_by_node, is_timestamp_fresh
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.assessment import NodeCondition
from hpctl.vocabulary.change import ChangeKind, ClusterChange, ClusterChangeSignal
from hpctl.vocabulary.cloud_facts import LEAVING, Instance, InstanceStatus
from hpctl.vocabulary.demand import NOTHING_KNOWN, Tres
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.pause import find_active_cluster_pause
from hpctl.vocabulary.policy import InstanceGroupSizeLimits, OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode
from hpctl.vocabulary.spares_reservation import RESERVATION

_WAITS: Final = frozenset({"Resources", "Priority", "ReqNodeNotAvail"})
"""Slurm's Reason for a job that lacks nodes and nothing else; `Priority` waits behind one, and
`ReqNodeNotAvail`, without more or with the words below, is a job for which nodes are only reserved.
With `UnavailableNodes` it has asked for nodes by name."""


_WAITS_PREFIXES: Final = (
    "ReqNodeNotAvail,_May_be_reserved",
    "ReqNodeNotAvail, May be reserved",
    "Nodes_required_for_job_are_DOWN",
)


_TOO_LARGE: Final = frozenset({"PartitionNodeLimit", "PartitionConfig"})
"""It wants more nodes than its partition has now, or than the partition ever allows."""


_PLAIN: Final = frozenset({"PLANNED", "CLOUD", "DYNAMIC_NORM", "DYNAMIC_FUTURE"})
"""Flags of a node that a job can have all the same."""


_COMING: Final = (
    InstanceStatus.PENDING,
    InstanceStatus.SYSTEM_UPDATING,
    InstanceStatus.DEEP_HEALTH_CHECK,
    InstanceStatus.ATTACHING,
    InstanceStatus.UNKNOWN,
)
"""What may serve jobs soon. An unknown state counts, so that hpctl asks for no further instance."""


def is_node_idle(node: SlurmNode, view: PlanningView, *, reserved: bool = False) -> bool:
    """Return whether a job could have a node now, and nothing is known against it.

    With `reserved` it may be held by a reservation.
    """
    flags = node.flags - {"RESERVED"} if reserved else node.flags
    judged = view.assessments.get(node.name)
    return (
        node.state == "IDLE"
        and flags <= _PLAIN
        and node.name not in view.state.open_nodes
        and (judged is None or judged.condition is NodeCondition.HEALTHY)
    )


def list_group_nodes(group: str, view: PlanningView) -> Iterator[tuple[SlurmNode, Instance | None]]:
    """Yield the Slurm nodes of an instance group; of a partition, where there is no provider."""
    for node in view.scheduler.nodes.values():
        instance = view.instances.get(node.name)
        if instance is not None and instance.group == group and not instance.protected:
            yield node, instance
        elif not view.provider.present and group in node.partitions:
            yield node, None


def list_group_partitions(group: str, view: PlanningView) -> tuple[str, ...]:
    """Return the partitions that a group's living nodes are in."""
    found = chain.from_iterable(node.partitions for node, _ in list_group_nodes(group, view))
    return tuple(sorted(set(found)))


def list_jobs_waiting_for_nodes(
    view: PlanningView, now: datetime
) -> tuple[JobWaitingForNodes, ...]:
    """Return the jobs that wait for nodes: not those held, delayed, limited or dependent.

    And, not to grow for, those of which Slurm has not said yet why they wait.
    """
    sizes: dict[str, int] = {}
    for node in view.scheduler.nodes.values():
        for partition in node.partitions:
            sizes[partition] = sizes.get(partition, 0) + 1
    return tuple(
        JobWaitingForNodes(
            job.id, tuple(job.partition.split(",")), max(job.wants, 1), since, job.asks, grows
        )
        for job in view.scheduler.jobs.values()
        if ((grows := _is_job_waiting_for_nodes(job, sizes)) or _is_job_pending_without_reason(job))
        and (since := job.eligible or job.submit) <= now
    )


def _is_job_pending_without_reason(job: SlurmJob) -> bool:
    return job.state == "PENDING" and not job.completing and job.reason in ("", "None")


def _is_job_waiting_for_nodes(job: SlurmJob, sizes: Mapping[str, int]) -> bool:
    if job.state != "PENDING":
        return False
    if job.reason in _TOO_LARGE:
        each = job.wants // job.asks.tasks if job.asks else job.wants
        return each > max(sizes.get(p, 0) for p in job.partition.split(","))
    return job.reason in _WAITS or job.reason.startswith(_WAITS_PREFIXES)


def make_scaling_input(view: PlanningView, policy: RecoveryPolicy, now: datetime) -> ScalingInput:
    """Return what autoscaling decides from."""
    limits = policy.autoscale.groups
    known = {
        name: _build_autoscaled_instance_group(name, limits[name], view, policy, now)
        for name in limits
    }
    return ScalingInput(
        groups={name: group for name, group in known.items() if group is not None},
        waiting=list_jobs_waiting_for_nodes(view, now),
        history=read_scaling_history(view.state),
        stopped=explain_capacity_change_stop(view, policy, now),
    )


def explain_capacity_change_stop(view: PlanningView, policy: RecoveryPolicy, now: datetime) -> str:
    """Return why nothing at all may be begun; empty where it may."""
    if view.stopped:
        return view.stopped
    pause = find_active_cluster_pause(view.state.pauses, now)
    if pause is not None:
        return pause.text
    if not view.current or not is_timestamp_fresh(
        view.scheduler.valid_at, policy.ages.scheduler_s, now
    ):
        return f"Slurm was last read at {view.scheduler.valid_at:%H:%M:%S}"
    return ""


def _build_autoscaled_instance_group(
    name: str,
    limits: InstanceGroupSizeLimits,
    view: PlanningView,
    policy: RecoveryPolicy,
    now: datetime,
) -> AutoscaledInstanceGroup | None:
    known = view.provider.groups.get(name)
    if known is None:
        return None
    partitions = (limits.partition,) if limits.partition else list_group_partitions(name, view)
    mine = [i for i in view.provider.instances.values() if i.group == name]
    here = [i for i in mine if i.status not in LEAVING]
    coming = sum(i.status in _COMING for i in here) + len(
        list_unregistered_nodes(mine, view, policy, now)
    )
    found = list(list_group_nodes(name, view))
    running = sum(i.status is InstanceStatus.RUNNING for i in here)
    reserved = Counter(chain.from_iterable(map(set, view.reservations.values())))
    spares = sum(reserved[node.name] for node, _ in found)
    idle = []
    for node, instance in found:
        if instance is None or instance.status is not InstanceStatus.RUNNING:
            continue
        if is_node_idle(node, view) and node.name not in reserved:
            idle.append(IdleNode(node.name, instance.id, node.last_busy, node.has))
    features = frozenset(chain.from_iterable(node.features for node, _ in found))
    return AutoscaledInstanceGroup(
        name=name,
        partitions=partitions,
        target=known.target,
        alive=running,
        arriving=coming + max(0, known.target - len(here)),
        idle=tuple(idle),
        spares=spares,
        blocked=_explain_group_scaling_block(partitions, view, policy, now),
        nodes_in=list_group_partitions(name, view),
        like=_find_group_node_resources(name, [node for node, _ in found], view),
        features=features if found else None,
        late=_is_last_addition_overdue(name, view) and known.target > running,
    )


def _is_last_addition_overdue(group: str, view: PlanningView) -> bool:
    """Return whether the group's last addition waited for its instances in vain."""
    adds = (c for c in view.state.changes.values() if c.opened.kind is ChangeKind.ADD)
    last = next((c for c in reversed([*adds]) if c.opened.group == group), None)
    return (
        last is not None
        and bool(last.trail)
        and last.trail[-1].signal == ClusterChangeSignal.DEADLINE
    )


def _find_group_node_resources(group: str, here: Sequence[SlurmNode], view: PlanningView) -> Tres:
    """Return what a node of the group has; of an empty group, what those had that have left it."""
    gone = (rec.node for rec in list_scale_down_recoveries(view.state) if rec.group == group)
    left = (view.scheduler.nodes.get(name) for name in gone)
    kept = here or [node for node in left if node is not None]
    seen = Counter(node.has for node in kept if node.has != NOTHING_KNOWN)
    return max(seen, key=lambda has: (seen[has], has.cpus), default=NOTHING_KNOWN)


def _explain_group_scaling_block(
    partitions: tuple[str, ...], view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> str:
    cloud = view.provider
    if not is_timestamp_fresh(cloud.as_of, policy.ages.provider_s, now):
        return f"the cloud was last read at {cloud.as_of:%H:%M:%S}"
    if cloud.cluster_status != "InService":
        return f"the cluster is {cloud.cluster_status or 'unknown'}"
    if policy.partitions and not policy.partitions.intersection(partitions):
        return "in none of the partitions that the configuration allows"
    return ""


def list_unregistered_nodes(
    instances: list[Instance], view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> tuple[NodeName, ...]:
    """Return the nodes of running instances that Slurm does not serve yet.

    Not those that are treated, nor those that were launched so long ago that they are down for
    another reason.
    """
    found = []
    for instance in instances:
        if instance.status is not InstanceStatus.RUNNING:
            continue
        name = instance.node or NodeName(instance.id)
        launched = instance.launched
        if launched is not None and now >= add_seconds_within_bounds(
            launched, policy.autoscale.arrive_deadline_s
        ):
            continue
        node = view.scheduler.nodes.get(name)
        if view.state.is_node_in_recovery(name):
            continue
        if node is not None and node.closed:
            # Closed for the removal of the machine before it, and about to be given back.
            owner = parse_recovery_id_from_reason(node.reason)
            closed_by = view.state.nodes.get(owner) if owner is not None else None
            if closed_by is not None and closed_by.is_for_capacity_change:
                found.append(name)
            continue
        if node is None or not node.responding or node.state in ("DOWN", "FUTURE", "UNKNOWN"):
            found.append(name)
    return tuple(sorted(found))


def collect_change_facts(
    change: ClusterChange,
    view: PlanningView,
    policy: RecoveryPolicy,
    now: datetime,
    read_results: ReadResults = return_empty_acceptance_test_results,
) -> CapacityChangeFacts:
    """Return what is known now of what a change is about. `read_results`: of a burn-in."""
    about, cloud = change.opened, view.provider
    if about.kind is ChangeKind.BURN_IN:
        job = find_burn_in_job(change)
        return CapacityChangeFacts(
            cloud_at=cloud.as_of,
            results=read_results(change.id, about.node, view, policy) if about.node else (),
            job=view.scheduler.jobs.get(job) if job is not None else None,
            unwanted=explain_burn_in_conflict(about.node, job, view, now)
            or _explain_disabled_burn_in_tests(policy),
            able_since=view.able_since,
        )
    if about.kind is ChangeKind.SPARES:
        held = view.reservations.get(RESERVATION + about.group, ())
        new = (view.scheduler.nodes.get(n) for n in about.nodes if n not in held)
        busy = next((n.name for n in new if n and n.state in ("ALLOCATED", "MIXED")), None)
        return CapacityChangeFacts(
            cloud_at=cloud.as_of,
            busy=f"{busy} got a job" if busy else "",
            reserved=frozenset(held),
            able_since=view.able_since,
        )
    mine = [i for i in cloud.instances.values() if i.group == about.group]
    return CapacityChangeFacts(
        cloud_at=cloud.as_of,
        cloud_fresh=is_timestamp_fresh(cloud.as_of, policy.ages.provider_s, now),
        group=cloud.groups.get(about.group),
        instances=tuple(mine),
        unregistered=list_unregistered_nodes(mine, view, policy, now),
        unwanted=explain_obsolete_group_resize(about.group, policy),
        able_since=view.able_since,
    )


def explain_burn_in_conflict(
    name: NodeName | None, ours: JobId | None, view: PlanningView, now: datetime
) -> str:
    """Return why a node is not to be tested while it is idle: a job that could use it, or a
    recovery."""
    node = view.scheduler.nodes.get(name) if name is not None else None
    if node is None or name in view.state.open_nodes:
        return f"{name} is under recovery" if node else f"slurmctld does not list {name}"
    for one in list_jobs_waiting_for_nodes(view, now):
        job = view.scheduler.jobs[one.job]
        there = set(one.partitions) & set(node.partitions) and node.name not in job.excluded
        if one.job != ours and there:
            return f"job {one.job} waits for nodes"
    return ""


def _explain_disabled_burn_in_tests(policy: RecoveryPolicy) -> str:
    off = policy.idle.every_s <= 0 or policy.mode is OperatingMode.OBSERVE
    return "idle nodes are no longer tested" if off else ""


def explain_obsolete_group_resize(group: str, policy: RecoveryPolicy) -> str:
    """Return in words why a decided change of a group's size is no longer wanted."""
    if policy.mode is OperatingMode.OBSERVE:
        return "mode observe: nothing is done"
    if not policy.autoscale.enabled or group not in policy.autoscale.groups:
        return f"group {group} is no longer autoscaled"
    return ""


def explain_why_node_is_busy(node: SlurmNode, view: PlanningView) -> str:
    """Return why a node is not idle, in words; whether it is drained does not matter."""
    for job in group_jobs_by_node([node.name], view.scheduler.jobs)[node.name]:
        if job.running or job.completing:
            return f"job {job.shown} is on {node.name}"
    if any(node.name in held for held in view.reservations.values()):
        return f"{node.name} is reserved"
    plain = node.flags - {"DRAIN"}
    if node.state != "IDLE" or not plain <= _PLAIN:
        return f"{node.name} is {'+'.join((node.state, *sorted(plain)))}"
    return ""
