"""Preemptions: what is noted of a registered job, once, and when nothing is."""

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import SignalSeen
from hpctl.jobs.advance import JobRecoveryFacts, advance_job_recovery
from hpctl.jobs.plan import list_past_job_failures
from hpctl.jobs.preemptions import plan_preempted_job_recoveries
from hpctl.slurm.parse import parse_qos_preemption
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoveryPhase, JobRecoverySignal
from hpctl.vocabulary.policy import OperatingMode
from hpctl.vocabulary.preemption_order import PreemptionOrder
from hpctl.vocabulary.recovery import StepKind
from hpctl.vocabulary.registration import EffectiveJobPolicy
from tests.fakes.values import OWN, T0, at, does, moves, slurm_job, view_of
from tests.unflawed import unflawed

COMMENT = "hpctl:{} my own words"
LOW = slurm_job(
    7, state="PENDING", nodes=("n1",), restarts=1, partition="low", submit=at(0), comment=COMMENT
)
"""It waits after a preemption."""
HIGH = slurm_job(9, nodes=("n1",), partition="high", start=at(1), user="ann")
TIERS = PreemptionOrder(tiers={"low": 1, "high": 10})


def notes(*jobs, log=(), policy=OWN, order=TIERS, seconds=5):
    view = replace(
        view_of(jobs=jobs or (LOW, HIGH), log=log, seconds=seconds),
        ruled={7: EffectiveJobPolicy()},
        preemption=order,
    )
    found = unflawed(plan_preempted_job_recoveries(view, policy, (), at(seconds)))
    assert len(found) <= 1
    return found[0] if found else None


def test_the_job_that_preempts_by_its_partition_is_named():
    found = notes()
    assert found.note.startswith("hpctl: preempted at ")
    assert f"job 9 of ann (partition high{', QOS ' * bool(HIGH.qos)}{HIGH.qos})" in found.note
    assert found.attempt.restarts == 0


def test_the_job_that_preempts_by_its_qos_is_named():
    high = replace(HIGH, partition="low", qos="urgent")
    order = PreemptionOrder(qos={"urgent": frozenset({"normal"})})
    assert "QOS urgent" in notes(replace(LOW, qos="normal"), high, order=order).note
    assert notes(replace(LOW, qos="other"), high, order=order) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "RUNNING"},
        {"state": "PREEMPTED"},
        {"restarts": 0},
        {"flags": frozenset({"COMPLETING"})},
    ],
)
def test_job_that_does_not_wait_is_not_noted_as_preempted(changes):
    assert notes(replace(LOW, **changes), HIGH) is None


def test_possible_operator_requeue_is_not_noted():
    assert notes(LOW, replace(HIGH, partition="low")) is None
    assert notes(order=PreemptionOrder()) is None


def test_where_slurm_said_that_it_was_preempted_the_order_is_not_needed():
    assert notes(replace(LOW, preempted=at(0)), HIGH, order=PreemptionOrder()) is not None
    assert notes(replace(LOW, preempted=at(0)), order=PreemptionOrder()) is None


def test_one_run_is_noted_once_and_an_old_one_not_at_all():
    first = notes()
    assert notes(log=[first]) is None
    over = SignalSeen(at(6), first.recovery, JobRecoverySignal.CALLED_OFF, "")
    assert notes(log=[first, over], seconds=7) is None
    assert notes(seconds=3600) is None


def test_nothing_is_written_in_mode_observe():
    assert notes(policy=replace(OWN, mode=OperatingMode.OBSERVE)) is None


def noted(*, seconds: float = 5) -> JobRecovery:
    found = notes()
    phase, since = JobRecoveryPhase.HIT, at(seconds)
    return JobRecovery(
        found.recovery, found.attempt, found.cause, (), at(5), phase, since, note=found.note
    )


def test_the_note_is_written_and_nothing_else_is_done():
    rec = noted()
    step = does(advance_job_recovery(rec, JobRecoveryFacts(job=LOW), OWN, at(6)))
    assert (step.kind, step.why) == (StepKind.NOTE, rec.note)
    written = replace(LOW, comment=f"{COMMENT} | {rec.note}")
    assert (
        moves(advance_job_recovery(rec, JobRecoveryFacts(job=written), OWN, at(6))).signal
        is JobRecoverySignal.CALLED_OFF
    )
    running = replace(written, state="RUNNING", start=at(6))
    assert (
        moves(advance_job_recovery(rec, JobRecoveryFacts(job=running), OWN, at(7))).signal
        is JobRecoverySignal.CALLED_OFF
    )


def test_preemption_does_not_count_as_trouble():
    view = view_of(jobs=(LOW, HIGH), log=[notes()], seconds=6)
    assert list_past_job_failures(view.state, 7) == ()
    assert view.state.jobs[notes().recovery].opened >= T0


def test_the_qos_that_a_qos_preempts_are_read():
    text = "normal|\nurgent|normal\nmore|normal,urgent\n"
    assert parse_qos_preemption(text) == {"urgent": {"normal"}, "more": {"normal", "urgent"}}
