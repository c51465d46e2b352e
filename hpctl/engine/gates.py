"""The safety checks between a sick node and a recovery, in one ordered tuple.

Each is `(candidate, view, tally, policy, now) -> why it holds, or None`. The correlated-failure
gate and the budgets are the product, not extras: a broken check looks like many sick nodes, and
the remediation must never be the outage. What passes closes a node; whether its remedy may begin
is asked later, in `remedies`.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from msgspec import Struct, field

from hpctl.engine.journal.state import EngineState
from hpctl.engine.maintenance import describe_maintenance_reservation
from hpctl.engine.power_saving import describe_node_power_saving
from hpctl.engine.view import PlanningView, RecoveryCandidate, is_timestamp_fresh
from hpctl.faults.catalogue import OWN_HARDWARE
from hpctl.faults.hma_marks import find_hma_reason_mark
from hpctl.faults.slurm_reasons import is_node_drained_by_slurm
from hpctl.toolkit.bounds import add_seconds_within_bounds, clamp_duration
from hpctl.vocabulary.assessment import Remedy
from hpctl.vocabulary.cloud_facts import InstanceStatus
from hpctl.vocabulary.identity import NodeName, RecoveryId, RuleId
from hpctl.vocabulary.node_recovery import (
    OF_MAINTENANCE,
    NodeRecovery,
    NodeRecoveryPhase,
    is_await_only_remedy_ladder,
)
from hpctl.vocabulary.pause import find_active_pause_covering_targets
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SlurmNode


class RecoveryGateCounts(Struct):
    """Counts that the gates compare with the policy; grows as a plan opens recoveries."""

    nodes: int = 0
    partition_nodes: dict[str, int] = field(default_factory=dict)
    open_by_partition: dict[str, int] = field(default_factory=dict)
    open: int = 0
    """Nodes that are treated, or were and are left closed."""
    kept_out: frozenset[NodeName] = frozenset()
    """Nodes that hpctl has closed and no longer treats: they count as open for all others."""
    seen: dict[RuleId, dict[str, datetime]] = field(default_factory=dict)
    """Which nodes have which rule's fault, and since when."""
    lasting: dict[RuleId, int] = field(default_factory=dict)
    """Mass events that last: how many nodes have the rule's fault now."""
    _times: dict[RuleId, list[datetime]] = field(default_factory=dict)

    def add(self, node: SlurmNode, rule: RuleId, now: datetime) -> None:
        """Count one more open recovery."""
        self.seen.setdefault(rule, {})[node.name] = now
        self._times.pop(rule, None)
        if node.name in self.kept_out:
            return  # counted already
        self.open += 1
        for partition in node.partitions:
            self.open_by_partition[partition] = self.open_by_partition.get(partition, 0) + 1

    def count_faults_in_time_window(
        self, rule: RuleId, node: str, since: datetime, window: timedelta
    ) -> int:
        """Count the nodes that got a fault within a window of `since`, this one in any case.

        By bisection: in a mass event every node asks, and there may be ten thousand.
        """
        seen = self.seen.get(rule, {})
        times = self._times.get(rule)
        if times is None:
            times = self._times[rule] = sorted(seen.values())
        first, last = since - window, since + window
        mine = seen.get(node)
        counted = mine is not None and first <= mine <= last
        return bisect_right(times, last) - bisect_left(times, first) + (not counted)


def build_recovery_gate_counts(
    view: PlanningView,
    candidates: Iterable[RecoveryCandidate],
    policy: RecoveryPolicy,
    now: datetime,
) -> RecoveryGateCounts:
    """Count once for a whole plan."""
    t = RecoveryGateCounts(nodes=len(view.scheduler.nodes))
    _count_nodes_by_partition(t, view)
    _count_recent_recovery_faults(t, view.state, policy, now)
    _count_current_node_faults(t, view)
    for c in candidates:
        if not c.manual and c.node.name not in view.maintenance:
            t.seen.setdefault(c.fault.rule, {}).setdefault(c.node.name, c.since)
    t.lasting = _find_ongoing_mass_events(view, candidates, policy)
    return t


def _find_ongoing_mass_events(
    view: PlanningView, candidates: Iterable[RecoveryCandidate], policy: RecoveryPolicy
) -> dict[RuleId, int]:
    """Return the mass events of which some node has the fault still.

    A fault that began before the event was last seen, or within the window after that, belongs to
    it. As long as one lasts, the rule says nothing of any node: a check that recovers does so on
    one node after the other.
    """
    window = policy.budgets.correlated_window_s
    noted = {r: at for r, at in view.state.mass_events.items() if r not in OWN_HARDWARE}
    if not noted:
        return {}
    present: dict[RuleId, dict[str, datetime]] = {}
    for name, judged in view.assessments.items():
        if judged.fault is not None:
            for rule, since in judged.faults.items():
                present.setdefault(rule, {})[name] = since
    for c in candidates:
        if not c.manual:
            present.setdefault(c.fault.rule, {}).setdefault(c.node.name, c.since)
    found = {}
    for rule, at in noted.items():
        nodes = present.get(rule, {})
        if any(since <= add_seconds_within_bounds(at, window) for since in nodes.values()):
            found[rule] = len(nodes)
    return found


def _count_nodes_by_partition(t: RecoveryGateCounts, view: PlanningView) -> None:
    """Count the nodes of each partition, and those that are out of service."""
    state, nodes = view.state, view.scheduler.nodes
    t.partition_nodes = count_nodes_per_partition(view)
    t.kept_out = find_drained_nodes_without_recovery(view)
    faults = [name for name in state.open_nodes if state.is_node_faulty(name)]
    for name in (*faults, *t.kept_out):
        t.open += 1
        known = nodes.get(name)
        for partition in known.partitions if known else ():
            t.open_by_partition[partition] = t.open_by_partition.get(partition, 0) + 1


def count_nodes_per_partition(view: PlanningView) -> dict[str, int]:
    """Return how many nodes each partition has."""
    found: dict[str, int] = {}
    for node in view.scheduler.nodes.values():
        for partition in node.partitions:
            found[partition] = found.get(partition, 0) + 1
    return found


def find_drained_nodes_without_recovery(view: PlanningView) -> frozenset[NodeName]:
    """Return the nodes that hpctl has closed and that nothing treats.

    A node that was handed to a person and is still closed is as much out of service as one under
    treatment: a slow wave of failures must not take the cluster ten nodes an hour.
    """
    state, nodes = view.state, view.scheduler.nodes
    kept = {
        name
        for name, node in nodes.items()
        if node.reason and _is_node_drained_by_recovery(node, state)
    }
    return frozenset(kept.difference(state.open_nodes))


def _count_recent_recovery_faults(
    t: RecoveryGateCounts, state: EngineState, policy: RecoveryPolicy, now: datetime
) -> None:
    """Count the faults that the recoveries of the last minutes treat."""
    for rec in state.nodes.values():
        if rec.by:
            continue
        # One that was remedied, passed its checks and serves again failed independently.
        over = rec.phase is NodeRecoveryPhase.RETURNED
        if not over and now < add_seconds_within_bounds(
            rec.opened, policy.budgets.correlated_window_s
        ):
            t.seen.setdefault(rec.rule, {})[rec.node] = rec.opened


def _count_current_node_faults(t: RecoveryGateCounts, view: PlanningView) -> None:
    """Count the faults that nodes have now."""
    for name, judged in view.assessments.items():
        # What shows while an admin works on a node is no sign of a mass event.
        if judged.fault is not None and name not in view.maintenance:
            # All that is wrong with it: a mark of HyperPod's agent on one node of a mass event, or
            # a second fault, makes the event no smaller.
            for rule, since in judged.faults.items():
                t.seen.setdefault(rule, {}).setdefault(name, since)


def _is_node_drained_by_recovery(node: SlurmNode, state: EngineState) -> bool:
    """Whether a recovery of ours has closed a node, whatever became of the recovery since."""
    owner = parse_recovery_id_from_reason(node.reason) if node.drained or node.down else None
    rec = state.nodes.get(owner) if owner is not None else None
    return (
        owner is not None
        and owner not in state.changes
        and not (rec and rec.is_for_capacity_change)
    )


Gate = Callable[
    [RecoveryCandidate, PlanningView, RecoveryGateCounts, RecoveryPolicy, datetime], str | None
]


def explain_recovery_block_by_kill_switch(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """The kill-switch file exists."""
    return view.stopped or None


def explain_recovery_block_by_pause(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """An operator has paused hpctl, for the cluster, the node or a partition of it."""
    pause = find_active_pause_covering_targets(
        view.state.pauses, now, (c.node.name,), c.node.partitions
    )
    return None if pause is None else pause.text


def explain_recovery_block_by_stale_readings(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """Slurm, the cloud or the node's agent has not been read lately."""
    if not view.current or not is_timestamp_fresh(
        view.scheduler.valid_at, policy.ages.scheduler_s, now
    ):
        return f"Slurm was last read at {view.scheduler.valid_at:%H:%M:%S}"
    if policy.mode is OperatingMode.OWN and view.provider.present and not view.provider.instances:
        return "the cloud has not been read since the daemon started"
    if c.manual or c.heard is None:
        return None
    corroborated = c.node.down or not c.node.responding
    if not corroborated and not is_timestamp_fresh(c.heard, policy.ages.report_s, now):
        return f"the node's agent was last heard at {c.heard:%H:%M:%S}"
    return None


def explain_recovery_block_by_instance_mismatch(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """The report is from another instance than the node has now."""
    instance = view.instance(c.node.name)
    if instance is None or not is_timestamp_fresh(view.provider.as_of, policy.ages.provider_s, now):
        return None
    if policy.mode is OperatingMode.ASSIST and not c.manual and _has_slurm_lost_node(c):
        return None  # the successor that the service is booting is not up either: its jobs wait
    if c.generation.instance and instance.id != c.generation.instance:
        return f"the report is from {c.generation.instance}, the node is {instance.id} by now"
    return None


def explain_recovery_block_by_provider_repair(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """The service works on the instance already.

    Not in mode assist where the node is lost: that the service acts is what assist counts on,
    and the jobs that stood there are still ours to move.
    """
    if policy.mode is OperatingMode.ASSIST and not c.manual and _has_slurm_lost_node(c):
        return None
    if c.fault.ladder == (Remedy.DELETE,):
        return None  # the service takes a deletion in every state
    instance = view.instance(c.node.name)
    if instance is None:
        return None
    if instance.status in (InstanceStatus.RUNNING, InstanceStatus.FAILURE):
        return None
    return f"the service calls {instance.id} {instance.status}"


def _has_slurm_lost_node(c: RecoveryCandidate) -> bool:
    """Slurm itself has lost the node: closing it takes nothing from anybody."""
    return c.node.down or not c.node.responding


def explain_recovery_block_by_auto_recovery(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """Mode own needs NodeRecovery None: HyperPod replaces nodes itself."""
    if policy.mode is OperatingMode.OWN and view.provider.present and view.provider.automatic:
        return (
            "NodeRecovery is Automatic: set it to None (`hpctl cluster update`), or run in mode"
            " assist"
        )
    return None


def explain_recovery_block_by_maintenance(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """An admin keeps the node in a maintenance reservation, or is about to."""
    if c.fault.rule in OF_MAINTENANCE:
        return None
    held_by = view.maintenance.get(c.node.name)
    return None if held_by is None else describe_maintenance_reservation(held_by, now)


def explain_recovery_block_by_power_saving(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """Slurm's power saving has stopped the node, or starts it.

    It boots before it serves again, which clears some faults, and its agent finds the others. A
    drain of a node that is being started requeues the job that waits for it.
    """
    text = describe_node_power_saving(c.node)
    return f"{text}; it is treated once it is up" if text else None


def explain_recovery_block_by_external_drain(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """An operator or another tool closed the node.

    A mark of HyperPod's health agent does not count as an operator's: where the service does
    not act on it, hpctl does. A drain that Slurm itself set is evidence of a fault, and is taken
    over.
    """
    if (
        not c.node.closed
        or find_hma_reason_mark(c.node)
        or parse_recovery_id_from_reason(c.node.reason) is not None
    ):
        return None
    if is_node_drained_by_slurm(c.node):
        return None
    how = "drained" if c.node.drained else "set FAIL"
    return f"{how} by another user or tool: {c.node.reason!r}"


def explain_recovery_block_by_protected_node(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """Controllers and login nodes are never treated."""
    instance = view.instance(c.node.name)
    if c.node.name in policy.node.protected or (instance is not None and instance.protected):
        return "a protected node (controller, login, or listed in the configuration)"
    return None


def explain_recovery_block_by_partition(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """The node is in none of the partitions where hpctl may act."""
    if policy.partitions and not policy.partitions.intersection(c.node.partitions):
        return "in none of the partitions that the configuration allows"
    return None


def explain_recovery_block_by_correlated_faults(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """Too many nodes with the same finding: the check is broken, or the fabric is."""
    rule, node = c.fault.rule, c.node.name
    # Measured from now too, as it will be once the recovery is open: what opens here must not be
    # withdrawn for the same reason a moment later, and open again, until the budgets are spent.
    return describe_correlated_faults(rule, node, c.since, t, policy) or describe_correlated_faults(
        rule, node, now, t, policy
    )


def describe_correlated_faults(
    rule: RuleId, node: str, since: datetime, t: RecoveryGateCounts, policy: RecoveryPolicy
) -> str | None:
    """Return why a rule is blocked: enough other nodes got its fault around `since`; else None.

    Measured between the faults, not from now: the hold must not lapse merely because the
    broken check stays broken for longer than the window.
    """
    if rule in t.lasting:
        return (
            f"{t.lasting[rule]} of {t.nodes} nodes report {rule}, which was a mass event: the check"
            " is broken or the fabric is; not the nodes"
        )
    budgets = policy.budgets
    limit = max(budgets.correlated_min, math.ceil(budgets.correlated_fraction * t.nodes))
    window = clamp_duration(budgets.correlated_window_s)
    near = t.count_faults_in_time_window(rule, node, since, window)
    if near < limit:
        return None
    many = f"{near} of {t.nodes} nodes report {rule} within {window / timedelta(minutes=1):g} min"
    if rule in OWN_HARDWARE:
        return f"{many}: look for what they have in common before they are remedied"
    return f"{many}: the check is broken or the fabric is; not the nodes"


def find_mass_event_rules_by_node(
    view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> dict[NodeName, frozenset[RuleId]]:
    """Return which of the faults that nodes have now are a mass event's, and not the nodes' own.

    What only a node's own hardware can produce is never among them, nor what was approved.
    """
    faulty = {name: a for name, a in view.assessments.items() if a.fault is not None}
    counts = build_recovery_gate_counts(view, (), policy, now) if faulty else RecoveryGateCounts()
    found = {}
    for name, judged in faulty.items():
        if is_target_approved_by_operator(name, view, policy, judged.since):
            continue
        rules = set()
        for rule, since in judged.faults.items():
            if rule in OWN_HARDWARE:
                continue
            if describe_correlated_faults(
                rule, name, since, counts, policy
            ) or describe_correlated_faults(rule, name, now, counts, policy):
                rules.add(rule)
        if rules:
            found[name] = frozenset(rules)
    return found


def find_mass_event_recoveries(
    view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> dict[RecoveryId, str]:
    """Open recoveries whose rule has turned out to be a mass event since, and how many nodes.

    The first nodes of a mass event look like single faults. As long as no instance has been
    touched it is not too late for them.
    """
    open_now = [view.state.nodes[i] for i in view.state.open_nodes.values()]
    early = [
        r for r in open_now if not (r.by or r.remedied or is_await_only_remedy_ladder(r.ladder))
    ]
    counts = build_recovery_gate_counts(view, (), policy, now) if early else RecoveryGateCounts()
    found = {}
    for rec in early:
        why = describe_correlated_faults(rec.rule, rec.node, rec.opened, counts, policy)
        # An approval's hour is for opening: the jobs on the node may take days to end.
        if why and not is_target_approved_by_operator(rec.node, view, policy, rec.opened):
            found[rec.id] = why
    return found


def explain_recovery_block_by_drain_budget(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """Enough of the cluster, or of a partition, is closed by hpctl already."""
    b = policy.budgets
    mine = c.node.name in t.kept_out
    share = max(b.drain_fraction, b.open_fraction)
    limit = max(b.drain_min, b.open_min, math.floor(share * t.nodes))
    if t.open - mine >= limit:
        return f"{t.open} nodes of the cluster are closed by hpctl; the budget is {limit}"
    for partition in c.node.partitions:
        size = t.partition_nodes.get(partition, 0)
        share = max(b.drain_fraction, b.partition_fraction)
        limit = max(b.drain_min, b.partition_min, math.floor(share * size))
        closed = t.open_by_partition.get(partition, 0)
        if closed - mine >= limit:
            return (
                f"{closed} nodes of partition {partition} are closed by hpctl; the budget is"
                f" {limit}"
            )
    return None


def count_consecutive_launch_failures(state: EngineState, now: datetime, window_s: float) -> int:
    """Count the recoveries in a row that ended because the instance did not come back."""
    ended = [
        rec
        for rec in state.nodes.values()
        if rec.ended
        and not (rec.is_for_capacity_change or rec.is_for_maintenance)
        and now < add_seconds_within_bounds(rec.since, window_s)
    ]
    failures = 0
    for rec in sorted(ended, key=lambda r: (r.since, r.id), reverse=True):
        if rec.phase is NodeRecoveryPhase.RETURNED:
            break
        failures += _is_instance_launch_failure(rec)
    return failures


def _is_instance_launch_failure(rec: NodeRecovery) -> bool:
    if rec.phase is not NodeRecoveryPhase.ESCALATED or len(rec.trail) < 2:
        return False
    return rec.trail[-2].phase in (NodeRecoveryPhase.REMEDYING, NodeRecoveryPhase.REJOINING)


def explain_recovery_block_by_observe_mode(
    c: RecoveryCandidate,
    view: PlanningView,
    t: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """Mode observe only journals. Last: what passes the others shows here."""
    if policy.mode is not OperatingMode.OBSERVE:
        return None
    if c.fault.ladder[0] is Remedy.NONE:
        return f"mode observe: would give {c.node.name} back"
    return f"mode observe: would drain {c.node.name} and {c.fault.ladder[0]} it"


class NamedRecoveryGate(Struct, frozen=True):
    """A gate, and whom it lets pass: an approval (`approvable`), an operator's own order."""

    name: str
    gate: Gate
    approvable: bool = False
    manual: bool = True


GATES: tuple[NamedRecoveryGate, ...] = (
    NamedRecoveryGate("kill_switch", explain_recovery_block_by_kill_switch),
    NamedRecoveryGate("paused", explain_recovery_block_by_pause),
    NamedRecoveryGate("stale_facts", explain_recovery_block_by_stale_readings),
    NamedRecoveryGate("wrong_instance", explain_recovery_block_by_instance_mismatch),
    NamedRecoveryGate("provider_acts", explain_recovery_block_by_provider_repair),
    NamedRecoveryGate("provider_auto_recovery", explain_recovery_block_by_auto_recovery),
    NamedRecoveryGate("maintenance", explain_recovery_block_by_maintenance),
    NamedRecoveryGate("power_saving", explain_recovery_block_by_power_saving, manual=False),
    NamedRecoveryGate("foreign_drain", explain_recovery_block_by_external_drain),
    NamedRecoveryGate("protected", explain_recovery_block_by_protected_node),
    NamedRecoveryGate("not_allowed", explain_recovery_block_by_partition),
    NamedRecoveryGate(
        "correlated", explain_recovery_block_by_correlated_faults, approvable=True, manual=False
    ),
    NamedRecoveryGate(
        "drain_budget", explain_recovery_block_by_drain_budget, approvable=True, manual=False
    ),
    NamedRecoveryGate("observing", explain_recovery_block_by_observe_mode),
)

OF_CLOUD = frozenset({"wrong_instance", "provider_acts"})
"""The gates that rest on the cloud's last reading: an old one may hold what is over by now."""


def is_target_approved_by_operator(
    target: str, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> bool:
    """Return whether an operator's approval of this target is still valid."""
    at = view.state.approvals.get(target)
    return at is not None and now < add_seconds_within_bounds(at, policy.budgets.approval_s)
