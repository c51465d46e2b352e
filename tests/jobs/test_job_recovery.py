"""The job table: every pair of phase and signal, deadlines, and the order that Slurm demands."""

import pytest
from msgspec.structs import replace

from hpctl.engine.job_deadlines import find_job_phase_deadline_s
from hpctl.engine.journal.events import SignalSeen, StepResolved, StepStarted
from hpctl.jobs.advance import JobFacts, advance_job_recovery
from hpctl.jobs.facts import collect_job_facts
from hpctl.toolkit.bounds import EARLIEST
from hpctl.vocabulary.job_recovery import (
    ENDS,
    TRANSITIONS,
    JobPhase,
    JobRecovery,
    JobReport,
    JobSignal,
    RequestedAction,
)
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.reason import format_own_reason
from hpctl.vocabulary.recovery import (
    PhaseMove,
    StartStep,
    StepKind,
    StepRecord,
    TransitionRecord,
    WaitUntil,
)
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.fakes.values import N1, OWN, at, attempt, does, opened, slurm_job, slurm_node, view_of

BASE = JobRecovery("j-1", attempt(), "n-1", ("n1",), at(0), JobPhase.HIT, at(0))
WAITING = [p for p in JobPhase if p not in ENDS]
RUNNING = slurm_job()
FAILED = slurm_job(state="FAILED", end=at(-5))
QUEUED = slurm_job(
    state="PENDING", restarts=1, nodes=(), reason="BeginTime", submit=at(0), eligible=at(121)
)
CLEANING = replace(QUEUED, flags=frozenset({"COMPLETING"}))
STUCK = {
    JobPhase.HIT: JobFacts(RUNNING),
    JobPhase.EXCISING: JobFacts(RUNNING, cordoned=True, node_stops_it=True),
    JobPhase.WATCHING: JobFacts(RUNNING, cordoned=True, gone=True),
    JobPhase.SAVING: JobFacts(RUNNING, cordoned=True),
    JobPhase.STOPPING: JobFacts(CLEANING, cordoned=True),
    JobPhase.RELEASED: JobFacts(QUEUED),
    JobPhase.STARTING: JobFacts(replace(QUEUED, reason="PartitionDown", eligible=at(0))),
    JobPhase.PROVING: JobFacts(replace(QUEUED, reason="Resources", eligible=at(0))),
}


def rec(phase: JobPhase, **changes) -> JobRecovery:
    return replace(BASE, phase=phase, **changes)


def step(kind: StepKind, outcome: Outcome | None = None, number: int = 1) -> StepRecord:
    return StepRecord(kind, number, "1", at(0), outcome, None if outcome is None else at(0))


def moved(recovery: JobRecovery, facts: JobFacts, seconds: float = 1) -> JobSignal:
    answer = advance_job_recovery(recovery, facts, OWN, at(seconds))
    assert isinstance(answer, PhaseMove), answer
    return JobSignal(answer.signal)


@pytest.mark.parametrize("phase", WAITING)
def test_every_waiting_phase_has_a_deadline_that_ends_it(phase):
    # A signal is sent once; the update was refused for now, so that RELEASED waits too.
    refused = step(StepKind.START_NOW, Outcome.rejected("away", transient=True))
    far = replace(refused, resolved=at(1e9))
    stuck = rec(phase, steps=(step(StepKind.SIGNAL), far), save_signal="USR1")
    due = find_job_phase_deadline_s(phase, OWN, completing=STUCK[phase].job.completing)
    assert due > 0
    assert isinstance(advance_job_recovery(stuck, STUCK[phase], OWN, at(0.5)), WaitUntil)
    ended = TRANSITIONS[phase, moved(stuck, STUCK[phase], due)]
    grace = phase in (JobPhase.SAVING, JobPhase.WATCHING)
    assert ended is (JobPhase.STOPPING if grace else JobPhase.GAVE_UP)


@pytest.mark.parametrize(
    "reason", ["Resources", "Priority", "JobArrayTaskLimit", "QOSGrpGRESLimit"]
)
def test_a_job_that_waits_its_turn_in_the_queue_is_never_given_up(reason):
    queued = JobFacts(replace(QUEUED, reason=reason, eligible=at(0)))
    due = find_job_phase_deadline_s(JobPhase.STARTING, OWN)
    answer = advance_job_recovery(rec(JobPhase.STARTING), queued, OWN, at(5 * due))
    assert isinstance(answer, WaitUntil)
    assert answer.until > at(5 * due)
    held = JobFacts(replace(QUEUED, reason="JobHeldUser", eligible=at(0)))
    assert moved(rec(JobPhase.STARTING), held, 5 * due) is JobSignal.DEADLINE


def test_a_job_that_slurmctld_has_not_examined_since_an_update_is_not_given_up():
    due = find_job_phase_deadline_s(JobPhase.STARTING, OWN)
    updated = replace(step(StepKind.START_NOW, Outcome.accepted()), started=at(due - 1))
    starting = rec(JobPhase.STARTING, steps=(updated,))
    unexamined = JobFacts(replace(QUEUED, reason="None", eligible=at(0)))
    assert isinstance(advance_job_recovery(starting, unexamined, OWN, at(due + 1)), WaitUntil)
    assert isinstance(advance_job_recovery(starting, unexamined, OWN, at(due + 58)), WaitUntil)
    assert moved(starting, unexamined, 2 * due + 60) is JobSignal.DEADLINE
    no_update = rec(JobPhase.STARTING)
    assert moved(no_update, unexamined, due + 1) is JobSignal.DEADLINE


PUT_OFF = replace(QUEUED, eligible=at(3600))


def test_a_job_that_a_person_has_put_off_is_not_started():
    facts = JobFacts(PUT_OFF)
    assert moved(rec(JobPhase.RELEASED), facts) is JobSignal.STARTED
    sent = rec(JobPhase.STARTING, steps=(step(StepKind.START_NOW, Outcome.accepted()),))
    waits = advance_job_recovery(sent, facts, OWN, at(60))
    assert isinstance(waits, WaitUntil)
    assert "a person has put it off until" in waits.why
    assert isinstance(advance_job_recovery(sent, JobFacts(QUEUED), OWN, at(60)), StartStep)
    missed = advance_job_recovery(
        sent, JobFacts(replace(PUT_OFF, eligible=at(1800))), OWN, at(1802)
    )
    assert isinstance(missed, WaitUntil)
    assert "put it off" not in missed.why


def test_the_backoff_of_hpctl_is_not_a_persons():
    backs_off = rec(JobPhase.RELEASED, start_at=at(3599))
    assert isinstance(advance_job_recovery(backs_off, JobFacts(PUT_OFF), OWN, at(1)), StartStep)


def test_a_job_that_asked_is_signalled_once_and_given_its_grace():
    facts = JobFacts(RUNNING, cordoned=True)
    assert moved(rec(JobPhase.HIT, save_signal="USR1"), facts) is JobSignal.SAVE_WANTED
    saving = rec(JobPhase.SAVING, save_signal="USR1")
    assert advance_job_recovery(saving, facts, OWN, at(1)) == StartStep(
        StepKind.SIGNAL, "USR1", 1, "save a checkpoint"
    )
    for outcome in (None, Outcome.ambiguous("timeout"), Outcome.accepted()):
        sent = replace(saving, steps=(step(StepKind.SIGNAL, outcome),))
        assert isinstance(advance_job_recovery(sent, facts, OWN, at(59)), WaitUntil)
        assert moved(sent, facts, 60) is JobSignal.SAVE_OVER
    assert moved(saving, JobFacts(FAILED)) is JobSignal.SAVE_OVER


@pytest.mark.parametrize("job", [CLEANING, replace(FAILED, flags=frozenset({"COMPLETING"}))])
def test_a_completing_job_is_never_requeued(job):
    assert isinstance(
        advance_job_recovery(rec(JobPhase.STOPPING), JobFacts(job, True), OWN, at(1)), WaitUntil
    )


def test_running_job_is_stopped_by_the_right_party():
    stopping = rec(JobPhase.STOPPING)
    by_node = JobFacts(RUNNING, cordoned=True, node_stops_it=True)
    assert isinstance(advance_job_recovery(stopping, by_node, OWN, at(1)), WaitUntil)
    by_us = replace(by_node, node_stops_it=False)
    assert advance_job_recovery(stopping, by_us, OWN, at(1)) == StartStep(StepKind.REQUEUE, "1", 1)
    assert advance_job_recovery(stopping, JobFacts(FAILED, True), OWN, at(1)) == StartStep(
        StepKind.REQUEUE, "1", 1
    )
    assert moved(stopping, JobFacts(QUEUED, True)) is JobSignal.QUEUED


@pytest.mark.parametrize("phase", [JobPhase.HIT, JobPhase.SAVING, JobPhase.STOPPING])
def test_running_job_is_not_stopped_once_its_node_is_not_treated(phase):
    facts = JobFacts(RUNNING, cordoned=True, called_off=True)
    assert moved(rec(phase, save_signal="USR1"), facts) is JobSignal.CALLED_OFF
    # One that was stopped already is started again all the same.
    assert moved(rec(JobPhase.STOPPING), replace(facts, job=QUEUED)) is JobSignal.QUEUED


def test_the_delay_goes_and_the_bad_nodes_are_excluded_in_one_step() -> None:
    facts = JobFacts(QUEUED, True, exclude=("n1",), forgive=("n7",))
    early = does(
        advance_job_recovery(rec(JobPhase.RELEASED), replace(facts, ready=at(1.1)), OWN, at(1))
    )
    assert (early.kind, early.after_s) == (StepKind.START_NOW, pytest.approx(0.1))
    do = does(advance_job_recovery(rec(JobPhase.RELEASED), facts, OWN, at(1.1)))
    assert (do.kind, do.exclude, do.forgive) == (StepKind.START_NOW, ("n1",), ("n7",))
    done = rec(JobPhase.RELEASED, steps=(step(StepKind.START_NOW, Outcome.accepted()),))
    assert moved(done, facts) is JobSignal.STARTED


def test_the_delay_that_came_back_is_sent_away_again():
    starting = rec(JobPhase.STARTING, steps=(step(StepKind.START_NOW, Outcome.accepted()),))
    assert isinstance(advance_job_recovery(starting, JobFacts(QUEUED), OWN, at(1)), WaitUntil)
    for reason in ("BeginTime", "None", "NonZeroExitCode", ""):
        again = does(
            advance_job_recovery(starting, JobFacts(replace(QUEUED, reason=reason)), OWN, at(2))
        )
        assert (again.kind, again.attempt) == (StepKind.START_NOW, 2)


def test_job_over_its_budget_is_held_with_a_reason():
    over = rec(JobPhase.RELEASED, over_budget="restarted 10 times")
    do = does(advance_job_recovery(over, JobFacts(QUEUED), OWN, at(1)))
    assert (do.kind, do.why) == (StepKind.HOLD, "restarted 10 times")
    held = replace(over, steps=(step(StepKind.HOLD, Outcome.accepted()),))
    assert moved(held, JobFacts(QUEUED)) is JobSignal.HELD


@pytest.mark.parametrize("job", [RUNNING, QUEUED])
def test_a_run_that_is_given_up_is_cancelled_and_never_requeued(job):
    given_up = rec(JobPhase.STOPPING, action=RunAction.END, why="the same crash 2 times")
    do = does(advance_job_recovery(given_up, JobFacts(job, True), OWN, at(1)))
    assert (do.kind, do.why) == (StepKind.CANCEL, "the same crash 2 times")
    sent = replace(given_up, steps=(step(StepKind.CANCEL, Outcome.accepted()),))
    assert isinstance(advance_job_recovery(sent, JobFacts(job, True), OWN, at(1)), WaitUntil)
    over = replace(job, state="CANCELLED")
    assert moved(sent, JobFacts(over, True)) is JobSignal.GONE


def test_a_run_that_ended_at_its_time_limit_is_requeued_once_it_has_cleared():
    trouble = Trouble(TroubleKind.TIME_LIMIT, at(0), "it reached its time limit")
    ended = slurm_job(state="TIMEOUT", end=at(-5))
    chained = rec(JobPhase.HIT, trouble=trouble, cause="", bad_nodes=())
    assert moved(chained, JobFacts(ended, True)) is JobSignal.STOP_WANTED
    stopping = replace(chained, phase=JobPhase.STOPPING)
    clearing = replace(ended, flags=frozenset({"COMPLETING"}))
    assert isinstance(
        advance_job_recovery(stopping, JobFacts(clearing, True), OWN, at(1)), WaitUntil
    )
    assert advance_job_recovery(stopping, JobFacts(ended, True), OWN, at(1)) == StartStep(
        StepKind.REQUEUE, "1", 1
    )
    assert moved(rec(JobPhase.STOPPING), JobFacts(ended, True)) is JobSignal.GONE


AGAIN = slurm_job(restarts=1, nodes=("n3",))
ENDINGS: dict[str, tuple[JobPhase, SlurmJob | None, JobSignal]] = {
    "gone": (JobPhase.STOPPING, None, JobSignal.GONE),
    "another submission": (JobPhase.STARTING, slurm_job(submit=at(-9999)), JobSignal.GONE),
    "completed": (JobPhase.STARTING, slurm_job(state="COMPLETED", restarts=1), JobSignal.FINISHED),
    "cancelled": (JobPhase.STARTING, slurm_job(state="CANCELLED", restarts=1), JobSignal.GONE),
    "timeout": (JobPhase.STARTING, slurm_job(state="TIMEOUT", restarts=1), JobSignal.GONE),
    "timeout again": (JobPhase.PROVING, slurm_job(state="TIMEOUT", restarts=1),
                      JobSignal.FAILED_AGAIN),
    "runs again": (JobPhase.STARTING, AGAIN, JobSignal.RUNNING_SEEN),
    "quicker than we": (JobPhase.HIT, AGAIN, JobSignal.RUNNING_SEEN),
    "proved": (JobPhase.PROVING, AGAIN, JobSignal.PROVED),
    "failed again": (JobPhase.PROVING, slurm_job(state="FAILED", restarts=1),
                     JobSignal.FAILED_AGAIN),
    "hit again": (JobPhase.PROVING, slurm_job(restarts=2, start=at(1)), JobSignal.FAILED_AGAIN),
    "requeued again": (JobPhase.PROVING, slurm_job(state="PENDING", restarts=2, start=None),
                       JobSignal.REQUEUED_AGAIN),
    "requeued by its exit code": (
        JobPhase.PROVING,
        slurm_job(state="PENDING", restarts=2, start=None, exit_code="3:0"),
        JobSignal.FAILED_AGAIN,
    ),
    # A node refused the launch before the run that was seen.
    "refused before": (JobPhase.PROVING, slurm_job(restarts=2, start=at(-1)), JobSignal.PROVED),
    "failed at the start": (JobPhase.STARTING, slurm_job(state="NODE_FAIL", restarts=1),
                            JobSignal.REFUSED),
}  # fmt: skip


@pytest.mark.parametrize(("phase", "job", "signal"), ENDINGS.values(), ids=ENDINGS)
def test_job_recovery_ends_in_the_expected_phase(phase, job, signal):
    assert moved(rec(phase), JobFacts(job, True), 30) is signal


def test_a_run_that_slurm_requeues_is_started_again_twice_at_most():
    """A program that ends the job each time must not do so as fast as hpctl can start it."""
    queued = JobFacts(slurm_job(state="PENDING", restarts=2, start=None), True)
    trail: tuple[TransitionRecord, ...] = ()
    for _ in range(2):
        proving = rec(JobPhase.PROVING, trail=trail)
        assert moved(proving, queued) is JobSignal.REQUEUED_AGAIN
        trail += (TransitionRecord(at(1), JobSignal.REQUEUED_AGAIN, JobPhase.PROVING, ""),)
    assert moved(rec(JobPhase.PROVING, trail=trail), queued) is JobSignal.FAILED_AGAIN


def test_a_run_that_another_node_ended_is_that_nodes_to_recover():
    queued = JobFacts(slurm_job(state="PENDING", restarts=2, start=None), True)
    assert moved(rec(JobPhase.PROVING), queued) is JobSignal.REQUEUED_AGAIN
    hit = replace(queued, node_failed_since=True)
    assert moved(rec(JobPhase.PROVING), hit) is JobSignal.FAILED_AGAIN


def test_a_run_that_asks_for_something_has_not_proved_itself():
    asking = JobFacts(AGAIN, True, asks="its supervisor asks for a requeue: loss is NaN")
    assert moved(rec(JobPhase.PROVING), asking, 2) is JobSignal.FAILED_AGAIN
    assert moved(rec(JobPhase.PROVING), asking, 30) is JobSignal.FAILED_AGAIN


def test_a_run_whose_nodes_still_boot_has_not_proved_itself():
    booting = replace(AGAIN, flags=frozenset({"CONFIGURING"}))
    assert isinstance(
        advance_job_recovery(rec(JobPhase.PROVING), JobFacts(booting, True), OWN, at(300)),
        WaitUntil,
    )
    requeued = replace(booting, restarts=AGAIN.restarts + 1, start=at(1))
    assert moved(rec(JobPhase.PROVING), JobFacts(requeued, True), 2) is JobSignal.FAILED_AGAIN
    up = JobFacts(replace(AGAIN, start=at(300)), True)
    assert isinstance(advance_job_recovery(rec(JobPhase.PROVING), up, OWN, at(301)), WaitUntil)
    assert moved(rec(JobPhase.PROVING), up, 330) is JobSignal.PROVED


def test_final_refusal_of_slurm_is_reported():
    no = step(StepKind.REQUEUE, Outcome.rejected("ESLURM_DISABLED"))
    assert moved(rec(JobPhase.STOPPING, steps=(no,)), JobFacts(FAILED, True)) is JobSignal.REFUSED
    no = step(StepKind.START_NOW, Outcome.rejected("ESLURM_INVALID_NODE_NAME"))
    assert moved(rec(JobPhase.RELEASED, steps=(no,)), JobFacts(QUEUED)) is JobSignal.REFUSED


@pytest.mark.parametrize("phase", [JobPhase.RELEASED, JobPhase.STARTING, JobPhase.PROVING])
def test_a_requeue_that_slurmctld_forgot_is_ordered_again(phase):
    """Killed within seconds of it, slurmctld comes back with the run from before."""
    requeued = step(StepKind.REQUEUE, Outcome.accepted())
    back = rec(phase, steps=(requeued, step(StepKind.START_NOW, Outcome.rejected("not_pending"))))
    assert moved(back, JobFacts(FAILED, True)) is JobSignal.STOP_WANTED
    assert isinstance(advance_job_recovery(back, JobFacts(RUNNING, True), OWN, at(1)), WaitUntil), (
        "not disturbed"
    )
    assert TRANSITIONS[phase, JobSignal.STOP_WANTED] is JobPhase.STOPPING
    again = advance_job_recovery(
        replace(back, phase=JobPhase.STOPPING), JobFacts(FAILED, True), OWN, at(60)
    )
    assert again == StartStep(StepKind.REQUEUE, "1", 2)
    trail = (TransitionRecord(at(60), "stopped", "released", ""),)
    released = replace(back, phase=JobPhase.RELEASED, since=at(60), trail=trail)
    start = does(advance_job_recovery(released, JobFacts(QUEUED, True), OWN, at(62)))
    assert (start.kind, start.attempt) == (StepKind.START_NOW, 2)


@pytest.mark.parametrize("phase", [JobPhase.RELEASED, JobPhase.STARTING, JobPhase.PROVING])
@pytest.mark.parametrize(
    ("changes", "facts", "again"),
    [
        ({}, JobFacts(cordoned=True), True),
        ({}, JobFacts(cordoned=True, called_off=True), False),
        ({}, JobFacts(cordoned=True, called_off=True, remedied=True), True),
        ({}, JobFacts(cordoned=False), False),
        ({"flags": frozenset({"COMPLETING"})}, JobFacts(cordoned=True), False),
        ({"start": at(6)}, JobFacts(cordoned=True), False),
    ],
)
def test_run_seen_in_the_queue_has_ended(phase, changes, facts, again):
    """slurmctld came back with it as running: it was killed before it had saved the requeue."""
    trail = (TransitionRecord(at(5), JobSignal.QUEUED, JobPhase.RELEASED, ""),)
    back = replace(RUNNING, **{"start": at(-100), **changes})
    shown = replace(facts, job=back)
    answer = advance_job_recovery(rec(phase, trail=trail), shown, OWN, at(10))
    assert (isinstance(answer, PhaseMove) and answer.signal == JobSignal.STOP_WANTED) is again
    if again:
        stopping = rec(JobPhase.STOPPING, trail=trail, since=at(10))
        assert advance_job_recovery(stopping, shown, OWN, at(10)) == StartStep(
            StepKind.REQUEUE, "1", 1
        )


def test_an_order_is_not_repeated_because_the_clock_was_set_back():
    for outcome, expected in ((Outcome.accepted(), PhaseMove), (Outcome.ambiguous("?"), WaitUntil)):
        sent = replace(step(StepKind.START_NOW, outcome), moves=1)
        trail = (TransitionRecord(at(600), "stopped", "released", ""),)
        now = rec(JobPhase.RELEASED, since=at(600), trail=trail, steps=(sent,))
        assert isinstance(advance_job_recovery(now, JobFacts(QUEUED), OWN, at(1)), expected)


@pytest.mark.parametrize(
    ("reason", "job", "closed"),
    [
        (format_own_reason("n-1", "Xid 79"), RUNNING, True),
        ("bad fan", RUNNING, False),
        ("bad fan", FAILED, True),
    ],
    ids=["ours", "an operator's", "an operator's, and the job has ended"],
)
def test_a_running_job_is_disturbed_only_under_our_own_drain(reason, job, closed):
    """Our drain may be lost, and the node closed by somebody who lets its jobs run on."""
    node = slurm_node(1, flags=frozenset({"DRAIN"}), reason=reason)
    slurm = SchedulerView(at(0), {N1: node}, {job.id: job})
    assert collect_job_facts(BASE, view_of(log=[opened()], scheduler=slurm), OWN).cordoned is closed


HOST, SPARE = "n2", "n3"
WATCHED = slurm_job(nodes=(N1, HOST, SPARE), batch_host=HOST)
LEFT = replace(WATCHED, nodes=(HOST, SPARE))
WORD = JobReport(1, 0, action=RunAction.STEP, why="a new step on n2 and n3")


def gone_silent() -> JobRecovery:
    """A supervised job's, without its node, of which nothing was heard for a minute."""
    excised = rec(JobPhase.EXCISING, supervised=True).on(JobSignal.EXCISED, at(1), "")
    return excised.on(JobSignal.STOP_WANTED, at(61), "no word")


def test_a_supervised_job_is_let_run_on_without_its_node():
    facts = JobFacts(WATCHED, cordoned=True, node_stops_it=True)
    assert moved(rec(JobPhase.HIT, supervised=True), facts) is JobSignal.SUPERVISED
    excising = rec(JobPhase.EXCISING, supervised=True)
    assert isinstance(advance_job_recovery(excising, facts, OWN, at(1)), WaitUntil)
    assert moved(excising, JobFacts(LEFT, gone=True, node_stops_it=True)) is JobSignal.EXCISED


def test_a_supervised_job_is_stopped_where_it_cannot_go_on():
    headless = JobFacts(WATCHED, cordoned=True, headless=True)
    assert moved(rec(JobPhase.HIT, supervised=True), headless) is JobSignal.STOP_WANTED
    for phase in (JobPhase.EXCISING, JobPhase.WATCHING):
        watched = rec(phase, supervised=True)
        assert moved(watched, headless) is JobSignal.STOP_WANTED
        assert moved(watched, JobFacts(QUEUED)) is JobSignal.STOP_WANTED
    kept = JobFacts(WATCHED, cordoned=True, node_stops_it=False)
    assert moved(rec(JobPhase.EXCISING, supervised=True), kept) is JobSignal.STOP_WANTED


def test_a_word_ends_the_watch_and_silence_ends_it_too():
    watched = rec(JobPhase.WATCHING, supervised=True)
    facts = JobFacts(LEFT, gone=True)
    assert advance_job_recovery(watched, facts, OWN, at(59)).until == at(60)
    assert moved(watched, facts, 60) is JobSignal.STOP_WANTED
    assert moved(watched, replace(facts, report=WORD)) is JobSignal.WENT_ON
    wish = replace(WORD, action=RunAction.REQUEUE, wish=RequestedAction.REQUEUE)
    assert moved(watched, replace(facts, report=wish)) is JobSignal.STOP_WANTED


def test_a_node_that_is_back_before_the_silence_was_long_enough_saves_no_crippled_run():
    facts = JobFacts(LEFT, gone=True, called_off=True, cordoned=True)
    assert does(advance_job_recovery(gone_silent(), facts, OWN, at(62))).kind is StepKind.REQUEUE


def test_a_word_that_comes_before_the_requeue_lets_the_run_go_on():
    silent = gone_silent()
    facts = JobFacts(LEFT, gone=True, report=WORD)
    assert moved(silent, facts) is JobSignal.WENT_ON
    for vain in (
        JobFacts(LEFT, report=WORD, headless=True),
        JobFacts(LEFT, report=JobReport(1, 0, progress=7)),
        JobFacts(LEFT, report=replace(WORD, wish=RequestedAction.REQUEUE)),
    ):
        assert isinstance(advance_job_recovery(silent, vain, OWN, at(62)), StartStep)
    # One that a node's fault stops has no say in that.
    assert isinstance(advance_job_recovery(rec(JobPhase.STOPPING), facts, OWN, at(62)), StartStep)


def started(seconds: float, attempt: int = 1) -> StepRecord:
    return StepRecord(
        StepKind.START_NOW, attempt, "1", at(seconds), Outcome.accepted(), at(seconds)
    )


def test_a_backoff_is_slurms_to_keep_and_ends_with_a_nudge():
    first = does(
        advance_job_recovery(rec(JobPhase.RELEASED, start_at=at(40)), JobFacts(QUEUED), OWN, at(2))
    )
    assert (first.kind, first.after_s) == (StepKind.START_NOW, 38.0)
    sent = started(2)
    waiting = rec(JobPhase.STARTING, start_at=at(40), steps=(sent,))
    facts = JobFacts(replace(QUEUED, eligible=at(40)))
    assert advance_job_recovery(waiting, facts, OWN, at(10)).until == at(40)
    nudge = does(advance_job_recovery(waiting, facts, OWN, at(40)))
    assert (nudge.attempt, nudge.after_s) == (2, 0.0)
    eligible = JobFacts(replace(QUEUED, eligible=at(40), reason="Resources"))
    nudged = replace(waiting, steps=(sent, started(40, attempt=2)))
    assert isinstance(advance_job_recovery(nudged, eligible, OWN, at(41)), WaitUntil)


def test_a_fault_of_the_hardware_ends_a_backoff():
    released = rec(JobPhase.RELEASED, start_at=at(40))
    assert (
        does(advance_job_recovery(released, JobFacts(QUEUED, hardware=True), OWN, at(2))).after_s
        == 0.0
    )
    waiting = rec(JobPhase.STARTING, start_at=at(40), steps=(started(2),))
    facts = JobFacts(replace(QUEUED, eligible=at(40)), hardware=True)
    assert "no backoff" in does(advance_job_recovery(waiting, facts, OWN, at(5))).why


@pytest.mark.parametrize(
    ("versions", "apart"),
    [("25.11.7 26.05.0 -", True), ("25.11.7 25.05.9", False), ("22.05.8", False), ("-", False)],
)
def test_runs_are_known_apart_where_every_slurmd_is_of_25_11_or_later(versions, apart):
    slurmds = enumerate(versions.replace("-", "").split(" "))
    nodes = {f"n{i}": SlurmNode(f"n{i}", "IDLE", version=version) for i, version in slurmds}
    view = view_of(log=[opened()], scheduler=SchedulerView(at(0), nodes))
    ready = collect_job_facts(rec(JobPhase.RELEASED, since=at(0.3)), view, OWN).ready
    assert ready == (EARLIEST if apart else at(1))


@pytest.mark.parametrize("pass_s", [0.02, 0.5])
def test_a_start_that_was_ordered_early_is_ordered_again_where_no_pass_came(pass_s: float) -> None:
    waiting = rec(JobPhase.STARTING, since=at(1.5), steps=(started(1.4),))
    due = JobFacts(replace(QUEUED, eligible=at(2)), pass_s=pass_s)
    wait = advance_job_recovery(waiting, due, OWN, at(2.01))
    assert isinstance(wait, WaitUntil)
    assert wait.until == at(2 + pass_s)
    assert "no scheduling pass" in does(advance_job_recovery(waiting, due, OWN, at(2 + pass_s))).why
    waiting = replace(waiting, steps=(*waiting.steps, started(2.5, attempt=2)))
    assert isinstance(
        advance_job_recovery(waiting, JobFacts(replace(QUEUED, eligible=at(3))), OWN, at(9)),
        WaitUntil,
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
    released = rec(JobPhase.RELEASED, since=at(4.5), **{"cause": "n-1", **changes})
    assert collect_job_facts(released, view, OWN).ready == at(ready)


@pytest.mark.parametrize(
    ("phase", "start", "nodes", "healed", "runs_again"),
    [
        (JobPhase.STARTING, 6, ("n2",), (), True),
        (JobPhase.RELEASED, 6, ("n2",), (), True),
        (JobPhase.STARTING, 4, ("n2",), (), False),
        (JobPhase.STARTING, 6, ("n1",), (), False),
        (JobPhase.STARTING, 6, ("n1",), ("n1",), True),
        (JobPhase.STOPPING, 6, ("n2",), (), False),
    ],
)
def test_a_run_that_slurmctld_forgot_to_count_is_seen(phase, start, nodes, healed, runs_again):
    """slurmctld was killed before it had saved that the hit run was a run."""
    queued = TransitionRecord(at(5), JobSignal.QUEUED, JobPhase.RELEASED, "")
    running = replace(RUNNING, start=at(start), nodes=nodes)
    facts = JobFacts(running, cordoned=True, forgive=healed)
    answer = advance_job_recovery(rec(phase, trail=(queued,)), facts, OWN, at(10))
    seen = isinstance(answer, PhaseMove) and answer.signal == JobSignal.RUNNING_SEEN
    assert seen is runs_again


def test_a_job_recovery_waits_longer_while_the_job_is_completing():
    usual = find_job_phase_deadline_s(JobPhase.STOPPING, OWN)
    stuck = replace(QUEUED, flags=frozenset({"COMPLETING"}), submit=at(0), completing_on=("n2",))
    answer = advance_job_recovery(rec(JobPhase.STOPPING), JobFacts(stuck), OWN, at(usual + 10))
    assert isinstance(answer, WaitUntil)
    assert "n2" in answer.why


def test_a_begin_delay_that_keeps_coming_back_is_left_to_slurm():
    last = started(0, attempt=OWN.job.step_attempts)
    waits = advance_job_recovery(
        rec(JobPhase.STARTING, steps=(last,)), JobFacts(QUEUED), OWN, at(10)
    )
    assert isinstance(waits, WaitUntil)
    assert waits.why == "Slurm keeps its begin delay and starts the job then"


def test_a_job_gets_a_node_back_that_has_healed_but_not_in_the_second_of_its_last_order():
    waiting = rec(JobPhase.STARTING, steps=(started(5),))
    job = replace(QUEUED, eligible=at(0), reason="Resources", excluded=("n1", "n7"))
    facts = JobFacts(job, forgive=("n7",))
    ready = at(5 + OWN.job.step_retry_s)
    soon = advance_job_recovery(waiting, facts, OWN, at(5.5))
    assert isinstance(soon, WaitUntil)
    assert (soon.until, soon.why) == (ready, "its excluded node is back")
    again = does(advance_job_recovery(waiting, facts, OWN, ready))
    assert (again.attempt, again.why, again.forgive) == (2, "n7 has healed", ("n7",))


def test_a_faulty_node_ends_a_backoff_only_once_the_last_order_had_its_time():
    waiting = rec(JobPhase.STARTING, start_at=at(40), steps=(started(2),))
    facts = JobFacts(replace(QUEUED, eligible=at(40)), hardware=True)
    soon = advance_job_recovery(waiting, facts, OWN, at(2.5))
    assert isinstance(soon, WaitUntil)
    assert soon.until == at(2 + OWN.job.step_retry_s)
    assert "no backoff is called for" in soon.why


def test_the_end_of_a_backoff_is_ordered_a_bounded_number_of_times():
    often = started(2, attempt=OWN.job.step_attempts)
    waiting = rec(JobPhase.STARTING, start_at=at(40), steps=(often,))
    facts = JobFacts(replace(QUEUED, eligible=at(40), reason="Resources"))
    waits = advance_job_recovery(waiting, facts, OWN, at(41))
    assert isinstance(waits, WaitUntil)
    assert waits.why == "in the queue (Resources)"
