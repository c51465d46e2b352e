"""The removal of a node, which makes its group smaller: how it opens, and why it is withdrawn.

A removal is a node recovery with the remedy `delete` and the rule `scale-down`. The engine of nodes
(`hpctl/nodes/advance.py`) carries it out: it drains the node, has the instance deleted when no job
is there, and waits until the service no longer lists it. This file has what only capacity knows:
the node is in use again, or its group is no longer to shrink, or not below its minimum. Such a
removal is withdrawn as long as no deletion was ordered, and the engine resumes the node.

A node can keep the Reason of a removal that has ended: another instance has its name by now, or it
could not be resumed at the time. A recovery with the rule `removal-over` gives it back.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Final

from hpctl.capacity.autoscale import IdleNode, ScaleDown
from hpctl.capacity.facts import (
    explain_capacity_change_stop,
    explain_obsolete_group_resize,
    explain_why_node_is_busy,
    list_jobs_waiting_for_nodes,
)
from hpctl.engine.journal.events import NodeRecoveryOpened
from hpctl.engine.kinds import Withdrawn
from hpctl.engine.node_history import is_node_being_returned, may_have_begun_remedy
from hpctl.engine.view import PlanningView, RecoveryCandidate
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.assessment import FaultClass, Remedy, Urgency
from hpctl.vocabulary.cloud_facts import InstanceStatus
from hpctl.vocabulary.identity import BootId, NodeGeneration, NodeName
from hpctl.vocabulary.isolation import process_items_capturing_failures
from hpctl.vocabulary.node_recovery import (
    REMOVAL_OVER,
    SCALE_DOWN,
    NodeRecovery,
    NodeRecoveryPhase,
    NodeRecoverySignal,
)
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.recovery import extend_phase_deadline, make_recovery_id
from hpctl.vocabulary.slurm_facts import SlurmNode

GIVE_BACK: Final = FaultClass(
    REMOVAL_OVER,
    "a removal of the node has ended",
    Urgency.AFTER_JOBS,
    (Remedy.NONE,),
    source="autoscale",
)
_UNDECIDED: Final = (NodeRecoveryPhase.OPEN, NodeRecoveryPhase.CORDONED, NodeRecoveryPhase.VACATED)


def open_node_removal(
    one: IdleNode, decision: ScaleDown, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> NodeRecoveryOpened:
    """Return the opening of a removal that autoscaling has decided on.

    Its gates are capacity's own. No budget for faults applies: the removal is wanted.
    """
    instance, state = view.instance(one.node), view.state
    return NodeRecoveryOpened(
        at=now,
        recovery=make_recovery_id(
            "n", SCALE_DOWN, one.instance, now, len(state.nodes), known=state
        ),
        generation=NodeGeneration(one.node, one.instance, BootId("")),
        rule=SCALE_DOWN,
        meaning="scale down",
        urgency=Urgency.AFTER_JOBS,
        ladder=(Remedy.DELETE,),
        why=decision.why,
        mode=policy.mode,
        logical_id=instance.logical_id if instance else None,
        by="autoscale",
        group=decision.group,
    )


def find_withdrawn_node_removals(
    view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> Withdrawn:
    """Return the nodes whose open removal is no longer wanted, and why."""
    removals = _list_open_removals(view)

    def pair_node_with_withdrawal_reason(rec: NodeRecovery) -> tuple[NodeName, str]:
        return rec.node, _explain_node_removal_withdrawal(rec, removals, view, policy, now)

    found, flaws = process_items_capturing_failures(
        "advance", removals, lambda rec: rec.node, pair_node_with_withdrawal_reason
    )
    return {node: why for node, why in found if why}, flaws


def _list_open_removals(view: PlanningView) -> list[NodeRecovery]:
    """Return the open removals, in the order in which they were opened."""
    recs = [view.state.nodes[rid] for rid in view.state.open_nodes.values()]
    return [rec for rec in recs if rec.rule == SCALE_DOWN]


def _explain_node_removal_withdrawal(
    rec: NodeRecovery,
    beside: list[NodeRecovery],
    view: PlanningView,
    policy: RecoveryPolicy,
    now: datetime,
) -> str:
    unwanted = explain_obsolete_group_resize(rec.group, policy) or _explain_minimum_size(
        rec, beside, view, policy
    )
    if may_have_begun_remedy(rec):
        return unwanted
    node = view.scheduler.nodes.get(rec.node)
    used = explain_why_node_is_busy(node, view) if node is not None else ""
    return (
        used
        or unwanted
        or _explain_job_waiting_for_node(node, view, now)
        or _explain_exceeded_drain_deadline(rec, view, policy, now)
    )


def _explain_job_waiting_for_node(node: SlurmNode | None, view: PlanningView, now: datetime) -> str:
    """Return whether a job waits where the node is."""
    if node is None:
        return ""
    jobs = (
        w.job
        for w in list_jobs_waiting_for_nodes(view, now)
        if set(w.partitions) & set(node.partitions)
    )
    job = next(jobs, None)
    return f"job {job} waits for nodes by now" if job is not None else ""


def _explain_exceeded_drain_deadline(
    rec: NodeRecovery, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> str:
    """Return whether the node was drained for so long that its deletion is given up."""
    deadline = add_seconds_within_bounds(rec.since, policy.autoscale.leave_deadline_s)
    late = now >= extend_phase_deadline(deadline, view.able_since, policy.ages.silent_s)
    return (
        "it could not be deleted in time" if rec.phase is NodeRecoveryPhase.VACATED and late else ""
    )


def _explain_minimum_size(
    rec: NodeRecovery, open_removals: list[NodeRecovery], view: PlanningView, policy: RecoveryPolicy
) -> str:
    """Return whether too few would be left: others leave as well, or someone has removed some."""
    group, limits = view.provider.groups.get(rec.group), policy.autoscale.groups[rec.group]
    if group is None:
        return ""
    beside = [one for one in open_removals if one.group == rec.group]
    running = {
        i.id
        for i in view.provider.instances.values()
        if i.group == rec.group and i.status is InstanceStatus.RUNNING
    }
    leaving = [one for one in beside if one.phase is NodeRecoveryPhase.REMEDYING]
    alive = len(running) - sum(one.generation.instance in running for one in leaving)
    undecided = [
        one.id for one in beside if one.phase in _UNDECIDED and not is_node_being_returned(one)
    ]
    size = min(group.target, alive)
    if rec.id not in undecided or undecided.index(rec.id) < size - limits.min_count:
        return ""
    return f"{rec.group} has {size} instances by now, and min_count is {limits.min_count}"


def list_ended_removal_undrain_candidates(
    view: PlanningView, policy: RecoveryPolicy, treated: Collection[NodeName], now: datetime
) -> list[RecoveryCandidate]:
    """Return the nodes that still have the Reason of a removal that has ended, and that no one
    deletes.

    Their instance is another one by now; or it stayed, and could not be resumed at the time.
    """
    if policy.mode is OperatingMode.OBSERVE or explain_capacity_change_stop(view, policy, now):
        return []
    found = []
    for node in view.scheduler.nodes.values():
        if not node.reason or not node.drained or not node.responding or node.name in treated:
            continue
        owner = parse_recovery_id_from_reason(node.reason)
        rec = view.state.nodes.get(owner) if owner is not None else None
        instance, health = view.instance(node.name), view.health.get(node.name)
        if (
            rec is None
            or not _has_removal_ended(rec, policy, now)
            or view.is_quarantined(node.name)
        ):
            continue
        if instance is None or instance.status is not InstanceStatus.RUNNING or health is None:
            continue
        another = instance.id != rec.generation.instance
        if health.generation.instance != instance.id or not (
            another or not may_have_begun_remedy(rec)
        ):
            continue
        was = f"no longer {rec.generation.instance}" if another else "and stays"
        why = f"{node.name} is {instance.id} by now, {was}"
        generation, group = health.generation, instance.group
        found.append(
            RecoveryCandidate(generation, node, GIVE_BACK, now, why, by="autoscale", group=group)
        )
    return found


def _has_removal_ended(rec: NodeRecovery, policy: RecoveryPolicy, now: datetime) -> bool:
    """Return whether a removal, or what gives its node back, has ended; and after a failure, some
    time ago."""
    if not rec.is_for_capacity_change or not rec.ended or rec.phase is NodeRecoveryPhase.RETURNED:
        return False
    if rec.trail and rec.trail[-1].signal == NodeRecoverySignal.OPERATOR_CANCELLED:
        return False
    failed = rec.rule == REMOVAL_OVER and rec.phase is NodeRecoveryPhase.ESCALATED
    return not failed or now >= add_seconds_within_bounds(rec.since, policy.autoscale.cooldown_s)
