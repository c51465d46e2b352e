"""The job table: every pair of phase and signal, deadlines, and the order that Slurm demands."""

import pytest
from msgspec.structs import replace

from hpctl.engine.job_deadlines import find_job_phase_deadline_s
from hpctl.engine.journal.events import SignalSeen, StepResolved, StepStarted
from hpctl.jobs.advance import JobRecoveryFacts, advance_job_recovery
from hpctl.jobs.facts import collect_job_recovery_facts
from hpctl.toolkit.bounds import EARLIEST
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.job_recovery import (
    ENDS,
    TRANSITIONS,
    JobRecovery,
    JobRecoveryPhase,
    JobRecoverySignal,
    JobReport,
    RequestedAction,
)
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import (
    RecoveryPhaseMove,
    RecoveryStepRecord,
    RecoveryTransitionRecord,
    StepKind,
    StepStartDecision,
    WaitDecision,
)
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.fakes.values import N1, OWN, at, attempt, does, opened, slurm_job, slurm_node, view_of

BASE = JobRecovery("j-1", attempt(), "n-1", ("n1",), at(0), JobRecoveryPhase.HIT, at(0))
WAITING = [p for p in JobRecoveryPhase if p not in ENDS]
RUNNING = slurm_job()
FAILED = slurm_job(state="FAILED", end=at(-5))
QUEUED = slurm_job(
    state="PENDING", restarts=1, nodes=(), reason="BeginTime", submit=at(0), eligible=at(121)
)
CLEANING = replace(QUEUED, flags=frozenset({"COMPLETING"}))
STUCK = {
    JobRecoveryPhase.HIT: JobRecoveryFacts(RUNNING),
    JobRecoveryPhase.EXCISING: JobRecoveryFacts(RUNNING, cordoned=True, node_stops_it=True),
    JobRecoveryPhase.WATCHING: JobRecoveryFacts(RUNNING, cordoned=True, gone=True),
    JobRecoveryPhase.SAVING: JobRecoveryFacts(RUNNING, cordoned=True),
    JobRecoveryPhase.STOPPING: JobRecoveryFacts(CLEANING, cordoned=True),
    JobRecoveryPhase.RELEASED: JobRecoveryFacts(QUEUED),
    JobRecoveryPhase.STARTING: JobRecoveryFacts(
        replace(QUEUED, reason="PartitionDown", eligible=at(0))
    ),
    JobRecoveryPhase.PROVING: JobRecoveryFacts(replace(QUEUED, reason="Resources", eligible=at(0))),
}


def rec(phase: JobRecoveryPhase, **changes) -> JobRecovery:
    return replace(BASE, phase=phase, **changes)


def step(kind: StepKind, outcome: Outcome | None = None, number: int = 1) -> RecoveryStepRecord:
    return RecoveryStepRecord(kind, number, "1", at(0), outcome, None if outcome is None else at(0))


def moved(recovery: JobRecovery, facts: JobRecoveryFacts, seconds: float = 1) -> JobRecoverySignal:
    answer = advance_job_recovery(recovery, facts, OWN, at(seconds))
    assert isinstance(answer, RecoveryPhaseMove), answer
    return JobRecoverySignal(answer.signal)


@pytest.mark.parametrize("phase", WAITING)
def test_every_waiting_phase_has_a_deadline_that_ends_it(phase):
    # A signal is sent once; the update was refused for now, so that RELEASED waits too.
    refused = step(StepKind.START_NOW, Outcome.rejected("away", transient=True))
    far = replace(refused, resolved=at(1e9))
    stuck = rec(phase, steps=(step(StepKind.SIGNAL), far), save_signal="USR1")
    due = find_job_phase_deadline_s(phase, OWN, completing=STUCK[phase].job.completing)
    assert due > 0
    assert isinstance(advance_job_recovery(stuck, STUCK[phase], OWN, at(0.5)), WaitDecision)
    ended = TRANSITIONS[phase, moved(stuck, STUCK[phase], due)]
    grace = phase in (JobRecoveryPhase.SAVING, JobRecoveryPhase.WATCHING)
    assert ended is (JobRecoveryPhase.STOPPING if grace else JobRecoveryPhase.GAVE_UP)


@pytest.mark.parametrize(
    "reason", ["Resources", "Priority", "JobArrayTaskLimit", "QOSGrpGRESLimit"]
)
def test_a_job_that_waits_its_turn_in_the_queue_is_never_given_up(reason):
    queued = JobRecoveryFacts(replace(QUEUED, reason=reason, eligible=at(0)))
    due = find_job_phase_deadline_s(JobRecoveryPhase.STARTING, OWN)
    answer = advance_job_recovery(rec(JobRecoveryPhase.STARTING), queued, OWN, at(5 * due))
    assert isinstance(answer, WaitDecision)
    assert answer.until > at(5 * due)
    held = JobRecoveryFacts(replace(QUEUED, reason="JobHeldUser", eligible=at(0)))
    assert moved(rec(JobRecoveryPhase.STARTING), held, 5 * due) is JobRecoverySignal.DEADLINE


def test_a_job_that_slurmctld_has_not_examined_since_an_update_is_not_given_up():
    due = find_job_phase_deadline_s(JobRecoveryPhase.STARTING, OWN)
    updated = replace(step(StepKind.START_NOW, Outcome.accepted()), started=at(due - 1))
    starting = rec(JobRecoveryPhase.STARTING, steps=(updated,))
    unexamined = JobRecoveryFacts(replace(QUEUED, reason="None", eligible=at(0)))
    assert isinstance(advance_job_recovery(starting, unexamined, OWN, at(due + 1)), WaitDecision)
    assert isinstance(advance_job_recovery(starting, unexamined, OWN, at(due + 58)), WaitDecision)
    assert moved(starting, unexamined, 2 * due + 60) is JobRecoverySignal.DEADLINE
    no_update = rec(JobRecoveryPhase.STARTING)
    assert moved(no_update, unexamined, due + 1) is JobRecoverySignal.DEADLINE


PUT_OFF = replace(QUEUED, eligible=at(3600))


def test_a_job_that_a_person_has_put_off_is_not_started():
    facts = JobRecoveryFacts(PUT_OFF)
    assert moved(rec(JobRecoveryPhase.RELEASED), facts) is JobRecoverySignal.STARTED
    sent = rec(JobRecoveryPhase.STARTING, steps=(step(StepKind.START_NOW, Outcome.accepted()),))
    waits = advance_job_recovery(sent, facts, OWN, at(60))
    assert isinstance(waits, WaitDecision)
    assert "a person has put it off until" in waits.why
    assert isinstance(
        advance_job_recovery(sent, JobRecoveryFacts(QUEUED), OWN, at(60)), StepStartDecision
    )
    missed = advance_job_recovery(
        sent, JobRecoveryFacts(replace(PUT_OFF, eligible=at(1800))), OWN, at(1802)
    )
    assert isinstance(missed, WaitDecision)
    assert "put it off" not in missed.why


def test_the_backoff_of_hpctl_is_not_a_persons():
    backs_off = rec(JobRecoveryPhase.RELEASED, start_at=at(3599))
    assert isinstance(
        advance_job_recovery(backs_off, JobRecoveryFacts(PUT_OFF), OWN, at(1)), StepStartDecision
    )


def test_a_job_that_asked_is_signalled_once_and_given_its_grace():
    facts = JobRecoveryFacts(RUNNING, cordoned=True)
    assert (
        moved(rec(JobRecoveryPhase.HIT, save_signal="USR1"), facts) is JobRecoverySignal.SAVE_WANTED
    )
    saving = rec(JobRecoveryPhase.SAVING, save_signal="USR1")
    assert advance_job_recovery(saving, facts, OWN, at(1)) == StepStartDecision(
        StepKind.SIGNAL, "USR1", 1, "save a checkpoint"
    )
    for outcome in (None, Outcome.ambiguous("timeout"), Outcome.accepted()):
        sent = replace(saving, steps=(step(StepKind.SIGNAL, outcome),))
        assert isinstance(advance_job_recovery(sent, facts, OWN, at(59)), WaitDecision)
        assert moved(sent, facts, 60) is JobRecoverySignal.SAVE_OVER
    assert moved(saving, JobRecoveryFacts(FAILED)) is JobRecoverySignal.SAVE_OVER


@pytest.mark.parametrize("job", [CLEANING, replace(FAILED, flags=frozenset({"COMPLETING"}))])
def test_a_completing_job_is_never_requeued(job):
    assert isinstance(
        advance_job_recovery(
            rec(JobRecoveryPhase.STOPPING), JobRecoveryFacts(job, True), OWN, at(1)
        ),
        WaitDecision,
    )


def test_running_job_is_stopped_by_the_right_party():
    stopping = rec(JobRecoveryPhase.STOPPING)
    by_node = JobRecoveryFacts(RUNNING, cordoned=True, node_stops_it=True)
    assert isinstance(advance_job_recovery(stopping, by_node, OWN, at(1)), WaitDecision)
    by_us = replace(by_node, node_stops_it=False)
    assert advance_job_recovery(stopping, by_us, OWN, at(1)) == StepStartDecision(
        StepKind.REQUEUE, "1", 1
    )
    assert advance_job_recovery(
        stopping, JobRecoveryFacts(FAILED, True), OWN, at(1)
    ) == StepStartDecision(StepKind.REQUEUE, "1", 1)
    assert moved(stopping, JobRecoveryFacts(QUEUED, True)) is JobRecoverySignal.QUEUED


@pytest.mark.parametrize(
    "phase", [JobRecoveryPhase.HIT, JobRecoveryPhase.SAVING, JobRecoveryPhase.STOPPING]
)
def test_running_job_is_not_stopped_once_its_node_is_not_treated(phase):
    facts = JobRecoveryFacts(RUNNING, cordoned=True, called_off=True)
    assert moved(rec(phase, save_signal="USR1"), facts) is JobRecoverySignal.CALLED_OFF
    # One that was stopped already is started again all the same.
    assert (
        moved(rec(JobRecoveryPhase.STOPPING), replace(facts, job=QUEUED))
        is JobRecoverySignal.QUEUED
    )


def test_the_delay_goes_and_the_bad_nodes_are_excluded_in_one_step() -> None:
    facts = JobRecoveryFacts(QUEUED, True, exclude=("n1",), forgive=("n7",))
    early = does(
        advance_job_recovery(
            rec(JobRecoveryPhase.RELEASED), replace(facts, ready=at(1.1)), OWN, at(1)
        )
    )
    assert (early.kind, early.after_s) == (StepKind.START_NOW, pytest.approx(0.1))
    do = does(advance_job_recovery(rec(JobRecoveryPhase.RELEASED), facts, OWN, at(1.1)))
    assert (do.kind, do.exclude, do.forgive) == (StepKind.START_NOW, ("n1",), ("n7",))
    done = rec(JobRecoveryPhase.RELEASED, steps=(step(StepKind.START_NOW, Outcome.accepted()),))
    assert moved(done, facts) is JobRecoverySignal.STARTED


def test_the_delay_that_came_back_is_sent_away_again():
    starting = rec(JobRecoveryPhase.STARTING, steps=(step(StepKind.START_NOW, Outcome.accepted()),))
    assert isinstance(
        advance_job_recovery(starting, JobRecoveryFacts(QUEUED), OWN, at(1)), WaitDecision
    )
    for reason in ("BeginTime", "None", "NonZeroExitCode", ""):
        again = does(
            advance_job_recovery(
                starting, JobRecoveryFacts(replace(QUEUED, reason=reason)), OWN, at(2)
            )
        )
        assert (again.kind, again.attempt) == (StepKind.START_NOW, 2)


def test_job_over_its_budget_is_held_with_a_reason():
    over = rec(JobRecoveryPhase.RELEASED, over_budget="restarted 10 times")
    do = does(advance_job_recovery(over, JobRecoveryFacts(QUEUED), OWN, at(1)))
    assert (do.kind, do.why) == (StepKind.HOLD, "restarted 10 times")
    held = replace(over, steps=(step(StepKind.HOLD, Outcome.accepted()),))
    assert moved(held, JobRecoveryFacts(QUEUED)) is JobRecoverySignal.HELD


@pytest.mark.parametrize("job", [RUNNING, QUEUED])
def test_a_run_that_is_given_up_is_cancelled_and_never_requeued(job):
    given_up = rec(JobRecoveryPhase.STOPPING, action=RunAction.END, why="the same crash 2 times")
    do = does(advance_job_recovery(given_up, JobRecoveryFacts(job, True), OWN, at(1)))
    assert (do.kind, do.why) == (StepKind.CANCEL, "the same crash 2 times")
    sent = replace(given_up, steps=(step(StepKind.CANCEL, Outcome.accepted()),))
    assert isinstance(
        advance_job_recovery(sent, JobRecoveryFacts(job, True), OWN, at(1)), WaitDecision
    )
    over = replace(job, state="CANCELLED")
    assert moved(sent, JobRecoveryFacts(over, True)) is JobRecoverySignal.GONE


def test_a_run_that_ended_at_its_time_limit_is_requeued_once_it_has_cleared():
    trouble = Trouble(TroubleKind.TIME_LIMIT, at(0), "it reached its time limit")
    ended = slurm_job(state="TIMEOUT", end=at(-5))
    chained = rec(JobRecoveryPhase.HIT, trouble=trouble, cause="", bad_nodes=())
    assert moved(chained, JobRecoveryFacts(ended, True)) is JobRecoverySignal.STOP_WANTED
    stopping = replace(chained, phase=JobRecoveryPhase.STOPPING)
    clearing = replace(ended, flags=frozenset({"COMPLETING"}))
    assert isinstance(
        advance_job_recovery(stopping, JobRecoveryFacts(clearing, True), OWN, at(1)), WaitDecision
    )
    assert advance_job_recovery(
        stopping, JobRecoveryFacts(ended, True), OWN, at(1)
    ) == StepStartDecision(StepKind.REQUEUE, "1", 1)
    assert (
        moved(rec(JobRecoveryPhase.STOPPING), JobRecoveryFacts(ended, True))
        is JobRecoverySignal.GONE
    )


AGAIN = slurm_job(restarts=1, nodes=("n3",))
ENDINGS: dict[str, tuple[JobRecoveryPhase, SlurmJob | None, JobRecoverySignal]] = {
    "gone": (JobRecoveryPhase.STOPPING, None, JobRecoverySignal.GONE),
    "another submission": (
        JobRecoveryPhase.STARTING,
        slurm_job(submit=at(-9999)),
        JobRecoverySignal.GONE,
    ),
    "completed": (
        JobRecoveryPhase.STARTING,
        slurm_job(state="COMPLETED", restarts=1),
        JobRecoverySignal.FINISHED,
    ),
    "cancelled": (
        JobRecoveryPhase.STARTING,
        slurm_job(state="CANCELLED", restarts=1),
        JobRecoverySignal.GONE,
    ),
    "timeout": (
        JobRecoveryPhase.STARTING,
        slurm_job(state="TIMEOUT", restarts=1),
        JobRecoverySignal.GONE,
    ),
    "timeout again": (
        JobRecoveryPhase.PROVING,
        slurm_job(state="TIMEOUT", restarts=1),
        JobRecoverySignal.FAILED_AGAIN,
    ),
    "runs again": (JobRecoveryPhase.STARTING, AGAIN, JobRecoverySignal.RUNNING_SEEN),
    "quicker than we": (JobRecoveryPhase.HIT, AGAIN, JobRecoverySignal.RUNNING_SEEN),
    "proved": (JobRecoveryPhase.PROVING, AGAIN, JobRecoverySignal.PROVED),
    "failed again": (
        JobRecoveryPhase.PROVING,
        slurm_job(state="FAILED", restarts=1),
        JobRecoverySignal.FAILED_AGAIN,
    ),
    "hit again": (
        JobRecoveryPhase.PROVING,
        slurm_job(restarts=2, start=at(1)),
        JobRecoverySignal.FAILED_AGAIN,
    ),
    "requeued again": (
        JobRecoveryPhase.PROVING,
        slurm_job(state="PENDING", restarts=2, start=None),
        JobRecoverySignal.REQUEUED_AGAIN,
    ),
    "requeued and held": (
        JobRecoveryPhase.PROVING,
        slurm_job(state="PENDING", restarts=2, start=None, reason="job_requeued_in_held_state"),
        JobRecoverySignal.FAILED_AGAIN,
    ),
    "held by its owner": (
        JobRecoveryPhase.PROVING,
        slurm_job(state="PENDING", restarts=2, start=None, reason="JobHeldUser"),
        JobRecoverySignal.FAILED_AGAIN,
    ),
    "held for its launch": (
        JobRecoveryPhase.PROVING,
        slurm_job(state="PENDING", restarts=2, start=None, reason="launch_failed_requeued_held"),
        JobRecoverySignal.FAILED_AGAIN,
    ),
    "requeued by its exit code": (
        JobRecoveryPhase.PROVING,
        slurm_job(state="PENDING", restarts=2, start=None, exit_code="3:0"),
        JobRecoverySignal.FAILED_AGAIN,
    ),
    # A node refused the launch before the run that was seen.
    "refused before": (
        JobRecoveryPhase.PROVING,
        slurm_job(restarts=2, start=at(-1)),
        JobRecoverySignal.PROVED,
    ),
    "failed at the start": (
        JobRecoveryPhase.STARTING,
        slurm_job(state="NODE_FAIL", restarts=1),
        JobRecoverySignal.REFUSED,
    ),
}


@pytest.mark.parametrize(("phase", "job", "signal"), ENDINGS.values(), ids=ENDINGS)
def test_job_recovery_ends_in_the_expected_phase(phase, job, signal):
    assert moved(rec(phase), JobRecoveryFacts(job, True), 30) is signal


def test_a_run_that_slurm_requeues_is_started_again_twice_at_most():
    """A program that ends the job each time must not do so as fast as hpctl can start it."""
    queued = JobRecoveryFacts(slurm_job(state="PENDING", restarts=2, start=None), True)
    trail: tuple[RecoveryTransitionRecord, ...] = ()
    for _ in range(2):
        proving = rec(JobRecoveryPhase.PROVING, trail=trail)
        assert moved(proving, queued) is JobRecoverySignal.REQUEUED_AGAIN
        trail += (
            RecoveryTransitionRecord(
                at(1), JobRecoverySignal.REQUEUED_AGAIN, JobRecoveryPhase.PROVING, ""
            ),
        )
    assert (
        moved(rec(JobRecoveryPhase.PROVING, trail=trail), queued) is JobRecoverySignal.FAILED_AGAIN
    )


def test_a_run_that_another_node_ended_is_that_nodes_to_recover():
    queued = JobRecoveryFacts(slurm_job(state="PENDING", restarts=2, start=None), True)
    assert moved(rec(JobRecoveryPhase.PROVING), queued) is JobRecoverySignal.REQUEUED_AGAIN
    hit = replace(queued, node_failed_since=True)
    assert moved(rec(JobRecoveryPhase.PROVING), hit) is JobRecoverySignal.FAILED_AGAIN


@pytest.mark.parametrize(
    ("rid", "node", "seconds", "failed"),
    [
        ("n-1", "n1", 0, False),  # its own cause
        ("n-2", "n2", 4, False),  # before it ran again
        ("n-2", "n2", 6, True),
    ],
)
def test_a_node_that_fails_since_the_run_began_is_not_an_earlier_failure(
    rid: str, node: str, seconds: float, failed: bool
) -> None:
    proving = rec(JobRecoveryPhase.PROVING, since=at(5))
    view = view_of(log=[opened(rid, NodeName(node), seconds)])
    assert collect_job_recovery_facts(proving, view, OWN).node_failed_since is failed


def test_a_run_that_asks_for_something_has_not_proved_itself():
    asking = JobRecoveryFacts(AGAIN, True, asks="its supervisor asks for a requeue: loss is NaN")
    assert moved(rec(JobRecoveryPhase.PROVING), asking, 2) is JobRecoverySignal.FAILED_AGAIN
    assert moved(rec(JobRecoveryPhase.PROVING), asking, 30) is JobRecoverySignal.FAILED_AGAIN


def test_a_run_whose_nodes_still_boot_has_not_proved_itself():
    booting = replace(AGAIN, flags=frozenset({"CONFIGURING"}))
    assert isinstance(
        advance_job_recovery(
            rec(JobRecoveryPhase.PROVING), JobRecoveryFacts(booting, True), OWN, at(300)
        ),
        WaitDecision,
    )
    requeued = replace(booting, restarts=AGAIN.restarts + 1, start=at(1))
    assert (
        moved(rec(JobRecoveryPhase.PROVING), JobRecoveryFacts(requeued, True), 2)
        is JobRecoverySignal.FAILED_AGAIN
    )
    up = JobRecoveryFacts(replace(AGAIN, start=at(300)), True)
    assert isinstance(
        advance_job_recovery(rec(JobRecoveryPhase.PROVING), up, OWN, at(301)), WaitDecision
    )
    assert moved(rec(JobRecoveryPhase.PROVING), up, 330) is JobRecoverySignal.PROVED


def test_final_refusal_of_slurm_is_reported():
    no = step(StepKind.REQUEUE, Outcome.rejected("ESLURM_DISABLED"))
    assert (
        moved(rec(JobRecoveryPhase.STOPPING, steps=(no,)), JobRecoveryFacts(FAILED, True))
        is JobRecoverySignal.REFUSED
    )
    no = step(StepKind.START_NOW, Outcome.rejected("ESLURM_INVALID_NODE_NAME"))
    assert (
        moved(rec(JobRecoveryPhase.RELEASED, steps=(no,)), JobRecoveryFacts(QUEUED))
        is JobRecoverySignal.REFUSED
    )


@pytest.mark.parametrize(
    "phase", [JobRecoveryPhase.RELEASED, JobRecoveryPhase.STARTING, JobRecoveryPhase.PROVING]
)
def test_a_requeue_that_slurmctld_forgot_is_ordered_again(phase):
    """Killed within seconds of it, slurmctld comes back with the run from before."""
    requeued = step(StepKind.REQUEUE, Outcome.accepted())
    back = rec(phase, steps=(requeued, step(StepKind.START_NOW, Outcome.rejected("not_pending"))))
    assert moved(back, JobRecoveryFacts(FAILED, True)) is JobRecoverySignal.STOP_WANTED
    assert isinstance(
        advance_job_recovery(back, JobRecoveryFacts(RUNNING, True), OWN, at(1)), WaitDecision
    ), "not disturbed"
    assert TRANSITIONS[phase, JobRecoverySignal.STOP_WANTED] is JobRecoveryPhase.STOPPING
    again = advance_job_recovery(
        replace(back, phase=JobRecoveryPhase.STOPPING), JobRecoveryFacts(FAILED, True), OWN, at(60)
    )
    assert again == StepStartDecision(StepKind.REQUEUE, "1", 2)
    trail = (RecoveryTransitionRecord(at(60), "stopped", "released", ""),)
    released = replace(back, phase=JobRecoveryPhase.RELEASED, since=at(60), trail=trail)
    start = does(advance_job_recovery(released, JobRecoveryFacts(QUEUED, True), OWN, at(62)))
    assert (start.kind, start.attempt) == (StepKind.START_NOW, 2)


@pytest.mark.parametrize(
    "phase", [JobRecoveryPhase.RELEASED, JobRecoveryPhase.STARTING, JobRecoveryPhase.PROVING]
)
@pytest.mark.parametrize(
    ("changes", "facts", "again"),
    [
        ({}, JobRecoveryFacts(cordoned=True), True),
        ({}, JobRecoveryFacts(cordoned=True, called_off=True), False),
        ({}, JobRecoveryFacts(cordoned=True, called_off=True, remedied=True), True),
        ({}, JobRecoveryFacts(cordoned=False), False),
        ({"flags": frozenset({"COMPLETING"})}, JobRecoveryFacts(cordoned=True), False),
        ({"start": at(6)}, JobRecoveryFacts(cordoned=True), False),
    ],
)
def test_run_seen_in_the_queue_has_ended(phase, changes, facts, again):
    """slurmctld came back with it as running: it was killed before it had saved the requeue."""
    trail = (
        RecoveryTransitionRecord(at(5), JobRecoverySignal.QUEUED, JobRecoveryPhase.RELEASED, ""),
    )
    back = replace(RUNNING, **{"start": at(-100), **changes})
    shown = replace(facts, job=back)
    answer = advance_job_recovery(rec(phase, trail=trail), shown, OWN, at(10))
    assert (
        isinstance(answer, RecoveryPhaseMove) and answer.signal == JobRecoverySignal.STOP_WANTED
    ) is again
    if again:
        stopping = rec(JobRecoveryPhase.STOPPING, trail=trail, since=at(10))
        assert advance_job_recovery(stopping, shown, OWN, at(10)) == StepStartDecision(
            StepKind.REQUEUE, "1", 1
        )


def test_an_order_is_not_repeated_because_the_clock_was_set_back():
    for outcome, expected in (
        (Outcome.accepted(), RecoveryPhaseMove),
        (Outcome.ambiguous("?"), WaitDecision),
    ):
        sent = replace(step(StepKind.START_NOW, outcome), moves=1)
        trail = (RecoveryTransitionRecord(at(600), "stopped", "released", ""),)
        now = rec(JobRecoveryPhase.RELEASED, since=at(600), trail=trail, steps=(sent,))
        assert isinstance(advance_job_recovery(now, JobRecoveryFacts(QUEUED), OWN, at(1)), expected)


@pytest.mark.parametrize(
    ("reason", "job", "closed"),
    [
        (format_hpctl_node_reason("n-1", "Xid 79"), RUNNING, True),
        ("bad fan", RUNNING, False),
        ("bad fan", FAILED, True),
    ],
    ids=["ours", "an operator's", "an operator's, and the job has ended"],
)
def test_a_running_job_is_disturbed_only_under_our_own_drain(reason, job, closed):
    """Our drain may be lost, and the node closed by somebody who lets its jobs run on."""
    node = slurm_node(1, flags=frozenset({"DRAIN"}), reason=reason)
    slurm = SchedulerView(at(0), {N1: node}, {job.id: job})
    assert (
        collect_job_recovery_facts(BASE, view_of(log=[opened()], scheduler=slurm), OWN).cordoned
        is closed
    )


HOST, SPARE = "n2", "n3"
WATCHED = slurm_job(nodes=(N1, HOST, SPARE), batch_host=HOST)
LEFT = replace(WATCHED, nodes=(HOST, SPARE))
WORD = JobReport(1, 0, action=RunAction.STEP, why="a new step on n2 and n3")


def gone_silent() -> JobRecovery:
    """A supervised job's, without its node, of which nothing was heard for a minute."""
    excised = rec(JobRecoveryPhase.EXCISING, supervised=True).on(
        JobRecoverySignal.EXCISED, at(1), ""
    )
    return excised.on(JobRecoverySignal.STOP_WANTED, at(61), "no word")


def test_a_supervised_job_is_let_run_on_without_its_node():
    facts = JobRecoveryFacts(WATCHED, cordoned=True, node_stops_it=True)
    assert moved(rec(JobRecoveryPhase.HIT, supervised=True), facts) is JobRecoverySignal.SUPERVISED
    excising = rec(JobRecoveryPhase.EXCISING, supervised=True)
    assert isinstance(advance_job_recovery(excising, facts, OWN, at(1)), WaitDecision)
    assert (
        moved(excising, JobRecoveryFacts(LEFT, gone=True, node_stops_it=True))
        is JobRecoverySignal.EXCISED
    )


def test_a_supervised_job_is_stopped_where_it_cannot_go_on():
    headless = JobRecoveryFacts(WATCHED, cordoned=True, headless=True)
    assert (
        moved(rec(JobRecoveryPhase.HIT, supervised=True), headless) is JobRecoverySignal.STOP_WANTED
    )
    for phase in (JobRecoveryPhase.EXCISING, JobRecoveryPhase.WATCHING):
        watched = rec(phase, supervised=True)
        assert moved(watched, headless) is JobRecoverySignal.STOP_WANTED
        assert moved(watched, JobRecoveryFacts(QUEUED)) is JobRecoverySignal.STOP_WANTED
    kept = JobRecoveryFacts(WATCHED, cordoned=True, node_stops_it=False)
    assert (
        moved(rec(JobRecoveryPhase.EXCISING, supervised=True), kept)
        is JobRecoverySignal.STOP_WANTED
    )


def test_a_word_ends_the_watch_and_silence_ends_it_too():
    watched = rec(JobRecoveryPhase.WATCHING, supervised=True)
    facts = JobRecoveryFacts(LEFT, gone=True)
    assert advance_job_recovery(watched, facts, OWN, at(59)).until == at(60)
    assert moved(watched, facts, 60) is JobRecoverySignal.STOP_WANTED
    assert moved(watched, replace(facts, report=WORD)) is JobRecoverySignal.WENT_ON
    wish = replace(WORD, action=RunAction.REQUEUE, wish=RequestedAction.REQUEUE)
    assert moved(watched, replace(facts, report=wish)) is JobRecoverySignal.STOP_WANTED


def test_a_node_that_is_back_before_the_silence_was_long_enough_saves_no_crippled_run():
    facts = JobRecoveryFacts(LEFT, gone=True, called_off=True, cordoned=True)
    assert does(advance_job_recovery(gone_silent(), facts, OWN, at(62))).kind is StepKind.REQUEUE


def test_a_word_that_comes_before_the_requeue_lets_the_run_go_on():
    silent = gone_silent()
    facts = JobRecoveryFacts(LEFT, gone=True, report=WORD)
    assert moved(silent, facts) is JobRecoverySignal.WENT_ON
    for vain in (
        JobRecoveryFacts(LEFT, report=WORD, headless=True),
        JobRecoveryFacts(LEFT, report=JobReport(1, 0, progress=7)),
        JobRecoveryFacts(LEFT, report=replace(WORD, wish=RequestedAction.REQUEUE)),
    ):
        assert isinstance(advance_job_recovery(silent, vain, OWN, at(62)), StepStartDecision)
    # One that a node's fault stops has no say in that.
    assert isinstance(
        advance_job_recovery(rec(JobRecoveryPhase.STOPPING), facts, OWN, at(62)), StepStartDecision
    )


def started(seconds: float, attempt: int = 1) -> RecoveryStepRecord:
    return RecoveryStepRecord(
        StepKind.START_NOW, attempt, "1", at(seconds), Outcome.accepted(), at(seconds)
    )


def test_a_backoff_is_slurms_to_keep_and_ends_with_a_nudge():
    first = does(
        advance_job_recovery(
            rec(JobRecoveryPhase.RELEASED, start_at=at(40)), JobRecoveryFacts(QUEUED), OWN, at(2)
        )
    )
    assert (first.kind, first.after_s) == (StepKind.START_NOW, 38.0)
    sent = started(2)
    waiting = rec(JobRecoveryPhase.STARTING, start_at=at(40), steps=(sent,))
    facts = JobRecoveryFacts(replace(QUEUED, eligible=at(40)))
    assert advance_job_recovery(waiting, facts, OWN, at(10)).until == at(40)
    nudge = does(advance_job_recovery(waiting, facts, OWN, at(40)))
    assert (nudge.attempt, nudge.after_s) == (2, 0.0)
    eligible = JobRecoveryFacts(replace(QUEUED, eligible=at(40), reason="Resources"))
    nudged = replace(waiting, steps=(sent, started(40, attempt=2)))
    assert isinstance(advance_job_recovery(nudged, eligible, OWN, at(41)), WaitDecision)


def test_a_fault_of_the_hardware_ends_a_backoff():
    released = rec(JobRecoveryPhase.RELEASED, start_at=at(40))
    assert (
        does(
            advance_job_recovery(released, JobRecoveryFacts(QUEUED, hardware=True), OWN, at(2))
        ).after_s
        == 0.0
    )
    waiting = rec(JobRecoveryPhase.STARTING, start_at=at(40), steps=(started(2),))
    facts = JobRecoveryFacts(replace(QUEUED, eligible=at(40)), hardware=True)
    assert "no backoff" in does(advance_job_recovery(waiting, facts, OWN, at(5))).why


@pytest.mark.parametrize(
    ("versions", "apart"),
    [("25.11.7 26.05.0 -", True), ("25.11.7 25.05.9", False), ("22.05.8", False), ("-", False)],
)
def test_runs_are_known_apart_where_every_slurmd_is_of_25_11_or_later(versions, apart):
    slurmds = enumerate(versions.replace("-", "").split(" "))
    nodes = {f"n{i}": SlurmNode(f"n{i}", "IDLE", version=version) for i, version in slurmds}
    view = view_of(log=[opened()], scheduler=SchedulerView(at(0), nodes))
    ready = collect_job_recovery_facts(
        rec(JobRecoveryPhase.RELEASED, since=at(0.3)), view, OWN
    ).ready
    assert ready == (EARLIEST if apart else at(1))


def test_the_second_of_a_run_that_slurm_requeued_counts_from_when_that_was_seen() -> None:
    """The order that ended the first run says nothing of the second one."""
    down = (
        StepStarted(at(2.1), "n-1", StepKind.DOWN, 1, "n1"),
        StepResolved(at(2.2), "n-1", StepKind.DOWN, 1, Outcome.accepted()),
    )
    seen = SignalSeen(at(1), "n-1", "cordon_seen", "x")
    view = view_of(log=[opened(), seen, *down], scheduler=SchedulerView(at(9.5), {}))
    again = RecoveryTransitionRecord(
        at(9.5), JobRecoverySignal.REQUEUED_AGAIN, JobRecoveryPhase.RELEASED, ""
    )
    released = rec(JobRecoveryPhase.RELEASED, since=at(9.5), cause="n-1", trail=(again,))
    assert collect_job_recovery_facts(released, view, OWN).ready == at(10)
    ended = replace(REQUEUED, started=at(9.6), resolved=at(9.7))
    stopped = replace(released, since=at(11.5), steps=(ended,))
    assert collect_job_recovery_facts(stopped, view, OWN).ready == at(10)


def test_a_start_whose_delay_came_back_waits_for_the_next_second() -> None:
    """The job may have run unseen, and its nodes kill one that comes back in the same second."""
    waiting = rec(JobRecoveryPhase.STARTING, since=at(1), steps=(started(1.4),))
    facts = JobRecoveryFacts(replace(QUEUED, eligible=at(130)), ready=at(2))
    late = at(1.4 + OWN.job.step_retry_s)
    again = does(advance_job_recovery(waiting, facts, OWN, late))
    assert (again.why, again.after_s) == ("the delay came back", 1.0)
    apart = replace(facts, ready=EARLIEST)
    assert does(advance_job_recovery(waiting, apart, OWN, late)).after_s == 0.0
    waiting = replace(waiting, steps=(*waiting.steps, started(7.4, attempt=2)))
    due = JobRecoveryFacts(replace(QUEUED, eligible=at(8)), pass_s=0.5)
    assert isinstance(advance_job_recovery(waiting, due, OWN, at(8.1)), WaitDecision)
    assert "no scheduling pass" in does(advance_job_recovery(waiting, due, OWN, at(8.5))).why
    often = replace(waiting, steps=(started(7.4, attempt=OWN.job.step_attempts + 1),))
    assert isinstance(advance_job_recovery(often, due, OWN, at(8.5)), WaitDecision)


@pytest.mark.parametrize("pass_s", [0.02, 0.5])
def test_a_start_that_was_ordered_early_is_ordered_again_where_no_pass_came(pass_s: float) -> None:
    waiting = rec(JobRecoveryPhase.STARTING, since=at(1.5), steps=(started(1.4),))
    due = JobRecoveryFacts(replace(QUEUED, eligible=at(2)), pass_s=pass_s)
    wait = advance_job_recovery(waiting, due, OWN, at(2.01))
    assert isinstance(wait, WaitDecision)
    assert wait.until == at(2 + pass_s)
    assert "no scheduling pass" in does(advance_job_recovery(waiting, due, OWN, at(2 + pass_s))).why
    waiting = replace(waiting, steps=(*waiting.steps, started(2.5, attempt=2)))
    assert isinstance(
        advance_job_recovery(
            waiting, JobRecoveryFacts(replace(QUEUED, eligible=at(2))), OWN, at(9)
        ),
        WaitDecision,
    )


REQUEUED = replace(step(StepKind.REQUEUE, Outcome.accepted()), started=at(2.5), resolved=at(2.6))


@pytest.mark.parametrize(
    ("changes", "ready"),
    [
        ({}, 3),
        ({"cause": ""}, 5),
        ({"steps": (REQUEUED,)}, 3),
        ({"steps": (replace(REQUEUED, started=at(3.1), resolved=at(3.2)),)}, 4),
        ({"supervised": True}, 5),
        ({"opened": at(2.2)}, 5),
        ({"steps": (replace(REQUEUED, outcome=Outcome.ambiguous("timeout", "")),)}, 3),
    ],
    ids=["down", "neither", "both", "requeued later", "supervised", "before", "in doubt"],
)
def test_the_second_counts_from_the_order_that_ended_the_run(changes, ready):
    """Its nodes compare with when slurmctld told them to, not with when they had done it."""
    down = (
        StepStarted(at(2.1), "n-1", StepKind.DOWN, 1, "n1"),
        StepResolved(at(2.2), "n-1", StepKind.DOWN, 1, Outcome.accepted()),
    )
    seen = SignalSeen(at(1), "n-1", "cordon_seen", "x")
    view = view_of(log=[opened(), seen, *down], scheduler=SchedulerView(at(4.5), {}))
    released = rec(JobRecoveryPhase.RELEASED, since=at(4.5), **{"cause": "n-1", **changes})
    assert collect_job_recovery_facts(released, view, OWN).ready == at(ready)


@pytest.mark.parametrize(
    ("phase", "start", "nodes", "healed", "runs_again"),
    [
        (JobRecoveryPhase.STARTING, 6, ("n2",), (), True),
        (JobRecoveryPhase.RELEASED, 6, ("n2",), (), True),
        (JobRecoveryPhase.STARTING, 4, ("n2",), (), False),
        (JobRecoveryPhase.STARTING, 6, ("n1",), (), False),
        (JobRecoveryPhase.STARTING, 6, ("n1",), ("n1",), True),
        (JobRecoveryPhase.STOPPING, 6, ("n2",), (), False),
    ],
)
def test_a_run_that_slurmctld_forgot_to_count_is_seen(phase, start, nodes, healed, runs_again):
    """slurmctld was killed before it had saved that the hit run was a run."""
    queued = RecoveryTransitionRecord(
        at(5), JobRecoverySignal.QUEUED, JobRecoveryPhase.RELEASED, ""
    )
    running = replace(RUNNING, start=at(start), nodes=nodes)
    facts = JobRecoveryFacts(running, cordoned=True, forgive=healed)
    answer = advance_job_recovery(rec(phase, trail=(queued,)), facts, OWN, at(10))
    seen = isinstance(answer, RecoveryPhaseMove) and answer.signal == JobRecoverySignal.RUNNING_SEEN
    assert seen is runs_again


def test_a_job_recovery_waits_longer_while_the_job_is_completing():
    usual = find_job_phase_deadline_s(JobRecoveryPhase.STOPPING, OWN)
    stuck = replace(QUEUED, flags=frozenset({"COMPLETING"}), submit=at(0), completing_on=("n2",))
    answer = advance_job_recovery(
        rec(JobRecoveryPhase.STOPPING), JobRecoveryFacts(stuck), OWN, at(usual + 10)
    )
    assert isinstance(answer, WaitDecision)
    assert "n2" in answer.why


def test_a_begin_delay_that_keeps_coming_back_is_left_to_slurm():
    last = started(0, attempt=OWN.job.step_attempts)
    waits = advance_job_recovery(
        rec(JobRecoveryPhase.STARTING, steps=(last,)), JobRecoveryFacts(QUEUED), OWN, at(10)
    )
    assert isinstance(waits, WaitDecision)
    assert waits.why == "Slurm keeps its begin delay and starts the job then"


def test_a_job_gets_a_node_back_that_has_healed_but_not_in_the_second_of_its_last_order():
    waiting = rec(JobRecoveryPhase.STARTING, steps=(started(5),))
    job = replace(QUEUED, eligible=at(0), reason="Resources", excluded=("n1", "n7"))
    facts = JobRecoveryFacts(job, forgive=("n7",))
    ready = at(5 + OWN.job.step_retry_s)
    soon = advance_job_recovery(waiting, facts, OWN, at(5.5))
    assert isinstance(soon, WaitDecision)
    assert (soon.until, soon.why) == (ready, "its excluded node is back")
    again = does(advance_job_recovery(waiting, facts, OWN, ready))
    assert (again.attempt, again.why, again.forgive) == (2, "n7 has healed", ("n7",))


def test_a_faulty_node_ends_a_backoff_only_once_the_last_order_had_its_time():
    waiting = rec(JobRecoveryPhase.STARTING, start_at=at(40), steps=(started(2),))
    facts = JobRecoveryFacts(replace(QUEUED, eligible=at(40)), hardware=True)
    soon = advance_job_recovery(waiting, facts, OWN, at(2.5))
    assert isinstance(soon, WaitDecision)
    assert soon.until == at(2 + OWN.job.step_retry_s)
    assert "no backoff is called for" in soon.why


def test_the_end_of_a_backoff_is_ordered_a_bounded_number_of_times():
    often = started(2, attempt=OWN.job.step_attempts)
    waiting = rec(JobRecoveryPhase.STARTING, start_at=at(40), steps=(often,))
    facts = JobRecoveryFacts(replace(QUEUED, eligible=at(40), reason="Resources"))
    waits = advance_job_recovery(waiting, facts, OWN, at(41))
    assert isinstance(waits, WaitDecision)
    assert waits.why == "in the queue (Resources)"
