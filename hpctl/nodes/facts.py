"""What the view says of one node under treatment: the facts that its recovery advances on."""

from collections.abc import Sequence
from datetime import datetime

from hpctl.engine import test_reservation
from hpctl.engine.completing import (
    describe_completing_job,
    find_stuck_completing_jobs,
    is_job_freed_by_node_down,
)
from hpctl.engine.maintenance import (
    describe_maintenance_reservation,
    find_reservation_blocking_recovery,
)
from hpctl.engine.pauses import find_recovery_operational_start_time
from hpctl.engine.view import (
    PlanningView,
    find_node_health_assessment,
    is_provider_reclaiming_instance,
    is_timestamp_fresh,
)
from hpctl.faults.health import find_gpu_reset_result
from hpctl.nodes.actors import NodeFacts
from hpctl.vocabulary.evidence import find_evidence_finding
from hpctl.vocabulary.node_recovery import IN_TEST, NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SlurmJob


def make_node_facts(
    rec: NodeRecovery,
    view: PlanningView,
    here: Sequence[SlurmJob],
    policy: RecoveryPolicy,
    now: datetime,
) -> NodeFacts:
    """Return what is known now of the node that a recovery treats. `here`: the jobs on it."""
    health = view.health.get(rec.node)
    held_by = find_reservation_blocking_recovery(rec, view)
    completing = tuple(j for j in here if rec.node in j.completing_nodes and not j.running)
    return NodeFacts(
        slurm=view.scheduler.nodes.get(rec.node),
        instance=view.instance(rec.node),
        unjoined=view.unjoined.get(rec.node, ""),
        listed=view.provider.instances.get(rec.generation.instance),
        provider_present=view.provider.present,
        provider_fresh=is_timestamp_fresh(view.provider.as_of, policy.ages.provider_s, now),
        assessment=find_node_health_assessment(rec.node, view),
        heard=health.generation if health else None,
        running=tuple(j for j in here if j.running),
        completing=completing,
        stuck=_find_stuck_completing_job(completing, view, policy, now),
        withdrawn=view.withdrawn.get(rec.node, ""),
        taken_away=is_provider_reclaiming_instance(rec.node, view),
        able_since=find_recovery_operational_start_time(rec.id, view, now),
        booted=view.scheduler.booted,
        reset=find_gpu_reset_result(rec.id, health.findings) if health else None,
        evidence=find_evidence_finding(rec.id, health.findings) if health else None,
        silent=health is None
        or not is_timestamp_fresh(health.last_heard, policy.ages.silent_s, now),
        held=rec.node
        in view.reservations.get(test_reservation.format_acceptance_test_name(rec), ()),
        test=_find_newest_test_job(rec, view),
        left_in=_find_leftover_reservation(rec, view),
        absent=view.absent.get(rec.node),
        maintenance=describe_maintenance_reservation(held_by, now) if held_by else "",
        begins=_find_next_maintenance_window_start(rec, view, now),
    )


def _find_next_maintenance_window_start(
    rec: NodeRecovery, view: PlanningView, now: datetime
) -> datetime | None:
    """Return when the window begins that the node makes room for; None where none is to begin."""
    starts = [
        window.opened.start
        for window in view.state.windows
        if rec.node in window.opened.nodes and window.opened.start is not None
    ]
    return min((at for at in starts if at > now), default=None)


def _find_stuck_completing_job(
    completing: Sequence[SlurmJob], view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> str:
    """Return the first of these jobs that has been COMPLETING for too long, where DOWN frees
    all."""
    late = find_stuck_completing_jobs(completing, policy.job.completing_deadline_s, now)
    if not late or not all(is_job_freed_by_node_down(job, view.scheduler) for job in completing):
        return ""
    return describe_completing_job(late[0], now)


def _find_leftover_reservation(rec: NodeRecovery, view: PlanningView) -> str:
    """Return the reservation in which an earlier recovery of the node has left it."""
    holding = {name for name, nodes in view.reservations.items() if rec.node in nodes}
    if not holding or rec.phase is not NodeRecoveryPhase.VERIFYING:
        return ""
    earlier = (r for r in view.state.nodes.values() if r.node == rec.node)
    return next(
        (
            name
            for r in earlier
            if (name := test_reservation.find_leftover_test_reservation(r)) in holding
        ),
        "",
    )


def _find_newest_test_job(rec: NodeRecovery, view: PlanningView) -> SlurmJob | None:
    """Return the job of its newest test."""
    job = test_reservation.find_acceptance_test_job_id(rec) if rec.phase in IN_TEST else None
    return view.scheduler.jobs.get(job) if job is not None else None
