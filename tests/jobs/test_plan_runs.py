"""Runs that went wrong by themselves: who is looked at, what is made of it, what holds it."""

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import (
    Event,
    GateBlocked,
    JobRecoveryOpened,
    JobReported,
    SignalSeen,
)
from hpctl.jobs.plan import list_past_job_failures, plan_failed_run_recoveries
from hpctl.vocabulary.identity import JobAttempt
from hpctl.vocabulary.job_recovery import JobReport, RequestedAction
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.registration import EffectiveJobPolicy
from hpctl.vocabulary.run_policy import RestartBackoff, RunAction, RunPolicy, TroubleTreatment
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.fakes.values import OWN, at, node_name, slurm_job, slurm_node, view_of
from tests.unflawed import unflawed

ASKED = 'hpctl:{"ckpt":"/ckpt"}'
CRASH = TroubleTreatment((RunAction.REQUEUE,), backoff=True, hold_same=True)
RUN = RunPolicy(backoff=RestartBackoff(first_s=40.0), treatments={TroubleKind.CRASH: CRASH})
HOST = "n1"


def job(**changes) -> SlurmJob:
    return slurm_job(7, **{"comment": ASKED, "partition": "all", "batch_host": HOST, **changes})


FAILED = job(state="FAILED", exit_code="1:0", reason="NonZeroExitCode", end=at(-1))
QUEUED = job(
    state="PENDING", restarts=1, nodes=(), reason="BeginTime", submit=at(-1), eligible=at(120)
)


def decided(job, log=(), *, run=RUN, note="", policy=OWN, seconds=0, **changes):
    view = view_of(
        jobs=[job],
        log=log,
        seconds=seconds,
        ruled={job.id: EffectiveJobPolicy(run, note)},
        **changes,
    )
    found = unflawed(plan_failed_run_recoveries(view, policy, (), at(seconds)))
    assert len(found) <= 1
    return found[0] if found else None


def opens(job, log=(), **more):
    found = decided(job, log, **more)
    assert isinstance(found, JobRecoveryOpened), found
    return found


def holds(job, log=(), **more):
    found = decided(job, log, **more)
    assert isinstance(found, GateBlocked), found
    return found


def report_of(seconds=-2, restarts=0, kind=TroubleKind.HANG, **changes):
    trouble = Trouble(kind, at(seconds), "rank 3 makes no progress", "hang", progress=40)
    report = JobReport(7, restarts, trouble, RunAction.REQUEUE, "no healthy node is left")
    return JobReported(at(seconds), replace(report, **{"wish": RequestedAction.REQUEUE, **changes}))


def crashed(restarts: int, seconds: float, code: int = 1) -> list[Event]:
    """An earlier crash, treated to its end."""
    rid = f"j-{restarts}"
    signature = f"FAILED {code}:0"
    trouble = Trouble(TroubleKind.CRASH, at(seconds), "exit code", signature, exit_code=code)
    attempt = JobAttempt(7, at(-3700), restarts)
    opened = JobRecoveryOpened(
        at(seconds), rid, attempt, "", (), "", trouble=trouble, action=RunAction.REQUEUE
    )
    ways = ("stop_wanted", "queued", "started", "running_seen", "proved")
    return [opened, *(SignalSeen(at(seconds), rid, way, "") for way in ways)]


@pytest.mark.parametrize(
    "quiet",
    [
        replace(FAILED, comment=""), replace(FAILED, comment="hpctl: held"),
        replace(QUEUED, comment="my own words"), job(), job(state="COMPLETED", exit_code="0:0"),
        job(state="CANCELLED", exit_code="0:15"), job(state="TIMEOUT", comment="hpctl:{}"),
        job(state="PENDING", nodes=(), reason="Resources", eligible=at(-5)),
        replace(QUEUED, reason="JobHeldUser"), replace(QUEUED, reason="Dependency"),
        replace(QUEUED, eligible=at(-1)), replace(QUEUED, restarts=0),
        replace(QUEUED, eligible=at(3600)), replace(QUEUED, flags=frozenset({"COMPLETING"})),
    ],
)  # fmt: skip
def test_plan_ignores_jobs_that_are_not_registered(quiet):
    assert decided(quiet) is None


LIMIT = job(state="TIMEOUT", exit_code="0:0", reason="TimeLimit", end=at(-1))


def resumed_at(restarts: int, step: int) -> JobReported:
    """The step that a run resumed at, as the preamble tells it."""
    return JobReported(at(-90), JobReport(7, restarts, progress=step))


def at_limit(restarts: int, step: int | None) -> list[Event]:
    """A run that reached its time limit and was started again."""
    rid, trouble = (
        f"j-{restarts}",
        Trouble(TroubleKind.TIME_LIMIT, at(-100), "limit", progress=step),
    )
    attempt = JobAttempt(7, at(-3700), restarts)
    opened = JobRecoveryOpened(
        at(-100), rid, attempt, "", (), "", trouble=trouble, action=RunAction.REQUEUE
    )
    ways = ("stop_wanted", "queued", "started", "running_seen", "proved")
    return [opened, *(SignalSeen(at(-100), rid, way, "") for way in ways)]


def test_a_run_that_reaches_its_time_limit_is_started_again_at_once() -> None:
    found = opens(LIMIT, [resumed_at(0, 40)])
    assert (found.trouble.kind, found.trouble.progress) == (TroubleKind.TIME_LIMIT, 40)
    assert (found.action, found.start_at, found.attempt) == (RunAction.REQUEUE, None, LIMIT.attempt)
    assert found.why.startswith("it reached its time limit (restart 1 of 3 without progress")


def test_time_limits_are_no_failures_but_must_make_progress() -> None:
    again = replace(LIMIT, restarts=3)
    log = [event for run in range(3) for event in at_limit(run, run)]
    few = replace(RUN, restarts=1)
    assert opens(again, [*log, resumed_at(3, 9)], run=few).action is RunAction.REQUEUE
    stuck = [event for run in range(3) for event in at_limit(run, None)]
    found = opens(again, stuck)
    assert found.action is RunAction.HOLD
    assert "3 restarts without progress: it reached its time limit" in found.over_budget


@pytest.mark.parametrize(
    ("ended", "run"),
    [
        (replace(LIMIT, comment="hpctl:{}"), RUN),
        (replace(LIMIT, comment=""), RUN),
        (replace(LIMIT, requeue=False), RUN),
        (
            LIMIT,
            replace(RUN, treatments={TroubleKind.TIME_LIMIT: TroubleTreatment((RunAction.NONE,))}),
        ),
    ],
)
def test_who_stays_ended_at_the_time_limit(ended, run) -> None:
    assert decided(ended, run=run) is None


def test_a_supervisors_wish_outlives_the_time_limit() -> None:
    assert (
        opens(LIMIT, [report_of(kind=TroubleKind.TIME_LIMIT)]).trouble.why
        == "rank 3 makes no progress"
    )


def test_a_recovery_that_the_time_limit_cut_short_does_not_keep_it_ended() -> None:
    hit = JobRecoveryOpened(at(-9), "j-1", LIMIT.attempt, "n-1", (HOST,), "")
    assert (
        opens(LIMIT, [hit, SignalSeen(at(-1), "j-1", "gone", "")]).trouble.kind
        is TroubleKind.TIME_LIMIT
    )
    own = [*at_limit(0, None)[:1], SignalSeen(at(-1), "j-0", "operator_cancelled", "")]
    assert decided(LIMIT, own) is None


def test_end_explained_by_a_node_is_left_to_its_recovery():
    assert (
        unflawed(plan_failed_run_recoveries(view_of(jobs=[FAILED]), OWN, {FAILED.id}, at(0))) == []
    )


@pytest.mark.parametrize(
    ("ended", "kind", "why"),
    [
        ({}, TroubleKind.CRASH, "its script ended with exit code 1"),
        ({"exit_code": "0:11"}, TroubleKind.CRASH, "its script was ended by signal 11"),
        (
            {"reason": "JobLaunchFailure", "exit_code": "0:11"},
            TroubleKind.CRASH,
            "its script was ended by signal 11",
        ),
        (
            {"reason": "JobLaunchFailure", "exit_code": "0:9"},
            TroubleKind.KILLED,
            "its script was ended by signal 9",
        ),
        (
            {"exit_code": "137:0"},
            TroubleKind.KILLED,
            "its script ended with exit code 137: signal 9 from outside",
        ),
        ({"exit_code": "139:0"}, TroubleKind.CRASH, "its script ended with exit code 139"),
        (
            {"exit_code": "16:0"},
            TroubleKind.CORRUPTION,
            "exit code 16 is evidence of silent corruption",
        ),
        ({"state": "OUT_OF_MEMORY"}, TroubleKind.HOST_MEMORY, "Slurm killed it for its memory"),
        (
            {"state": "NODE_FAIL", "exit_code": "0:1"},
            TroubleKind.NODE,
            "Slurm ended it as NODE_FAIL",
        ),
        (
            {"reason": "JobLaunchFailure", "exit_code": "0:9", "nodes": ("n2",)},
            TroubleKind.NODE,
            "the node of its batch script, n1, was lost",
        ),
    ],
)
def test_an_end_is_read_from_state_and_exit_code(ended, kind, why):
    found = opens(replace(FAILED, **ended), run=replace(RUN, same_signature=9))
    assert (found.trouble.kind, found.trouble.why) == (kind, why)
    assert (found.action, found.attempt) == (RunAction.REQUEUE, FAILED.attempt)
    assert (found.cause, found.bad_nodes) == ("", ())
    assert found.why.startswith(why)


CAUSE = "rank 1 on n2: ValueError in train (train.py): bad batch"


def script_report(restarts=0, seconds=-2, kind=TroubleKind.CRASH, **changes):
    """What the script of a job without a supervisor tells at its end."""
    trouble = Trouble(kind, at(seconds), CAUSE, "ValueError", "n2", 1, exit_code=1)
    return JobReported(at(seconds), JobReport(7, restarts, replace(trouble, **changes)))


SAVED = JobReported(at(-60), JobReport(7, 0, progress=40))


def test_report_of_the_script_outweighs_its_exit_code():
    killed = replace(FAILED, exit_code="143:0")
    found = opens(killed, [SAVED, script_report()])
    assert found.trouble == replace(script_report().report.trouble, progress=40)
    assert found.why.startswith(CAUSE)
    assert found.action is RunAction.REQUEUE
    other = opens(replace(killed, restarts=1), [script_report()])
    assert "signal 15 from outside" in other.trouble.why, "that was another run"
    queued = opens(replace(QUEUED, exit_code="143:0"), [script_report()], requeue_codes={143})
    assert queued.trouble.why == CAUSE
    asked = holds(killed, [script_report(kind=TroubleKind.FINAL, exit_code=93)])
    assert asked.gate == "asked_not_to"


def test_slurm_s_own_word_goes_before_the_script_s():
    lost = opens(replace(FAILED, state="NODE_FAIL", exit_code="0:1"), [script_report()])
    assert lost.trouble.kind is TroubleKind.NODE
    full = opens(replace(FAILED, state="OUT_OF_MEMORY"), [script_report(kind=TroubleKind.KILLED)])
    assert full.trouble.kind is TroubleKind.HOST_MEMORY
    assert full.trouble.why == "rank 1 on n2: Slurm killed it for its memory"
    assert (full.trouble.node, full.trouble.rank) == ("n2", 1)
    counted = opens(
        replace(FAILED, state="OUT_OF_MEMORY"), [script_report(kind=TroubleKind.HOST_MEMORY)]
    )
    assert counted.trouble.why == CAUSE


def test_report_of_a_script_counts_once():
    first = script_report(0, -60)
    trouble = replace(first.report.trouble, progress=40)
    log = [SAVED, first, *crashed(0, -60)]
    log[2] = replace(log[2], trouble=trouble)
    past = list_past_job_failures(view_of(log=log).state, 7)
    assert [(p.trouble, p.action) for p in past] == [(trouble, RunAction.REQUEUE)]
    now = replace(script_report(1).report.trouble, progress=40)
    past = list_past_job_failures(view_of(log=[*log, script_report(1)]).state, 7, now=now)
    assert [p.trouble for p in past] == [trouble], "what is decided on is not past"
    found = holds(replace(FAILED, restarts=1, exit_code="143:0"), [*log, script_report(1)])
    high = "cause: program (high confidence)"
    assert found.why.endswith(f"the same crash 2 times without progress: {CAUSE} ({high})")


def test_unrecoverable_job_gets_its_cause_and_advice():
    found = holds(replace(FAILED, requeue=False), [script_report()])
    assert found.why.startswith(f"{CAUSE}; Slurm cannot start it again (Requeue=0)")
    assert found.why.endswith("submit with --requeue")


def test_the_first_restart_does_not_wait_and_the_next_does():
    assert opens(FAILED).start_at == at(2)  # a node's fault has 3 s to show itself
    assert opens(replace(FAILED, end=at(-9))).start_at is None
    found = opens(replace(FAILED, restarts=1, exit_code="2:0"), crashed(0, -60))
    assert found.start_at is not None
    assert at(40) <= found.start_at <= at(50)


LOW = "cause: program (low confidence)"
SAME = "the same crash 2 times without progress: its script ended with exit code 1"


def test_the_same_crash_twice_without_progress_ends_as_slurm_ended_it():
    found = holds(replace(FAILED, restarts=1), crashed(0, -60))
    assert found.gate == "ended"
    assert found.why == f"it is not restarted and stays FAILED: {SAME} ({LOW})"


def test_a_policy_may_hold_what_would_end():
    hold = replace(CRASH, ladder=(RunAction.REQUEUE, RunAction.HOLD))
    run = replace(RUN, treatments={TroubleKind.CRASH: hold})
    found = opens(replace(FAILED, restarts=1), crashed(0, -60), run=run)
    assert found.action is RunAction.HOLD
    assert found.over_budget == (
        f"hpctl: {SAME}; {LOW}; held for you to look (scontrol release 7 lets it go on)"
    )


def test_advice_for_an_array_task_releases_only_that_task():
    task = replace(FAILED, restarts=1, array_job=FAILED.id, array_task="3")
    hold = replace(CRASH, ladder=(RunAction.REQUEUE, RunAction.HOLD))
    found = opens(task, crashed(0, -60), run=replace(RUN, treatments={TroubleKind.CRASH: hold}))
    assert "(scontrol release 7_3 lets it go on)" in found.over_budget
    assert found.known_as == "7_3"


@pytest.mark.parametrize("restarts", [0, 1, 3])
def test_a_deterministic_bug_is_restarted_as_often_as_the_policy_says_and_then_ends(restarts):
    crash = TroubleTreatment((RunAction.REQUEUE,))
    run = replace(RUN, restarts=restarts, without_progress=9, treatments={TroubleKind.CRASH: crash})
    log = [event for n in range(restarts) for event in crashed(n, -60 * (restarts - n))]
    last = replace(FAILED, restarts=restarts)
    assert holds(last, log, run=run).why.startswith("it is not restarted and stays FAILED")
    if restarts:
        more = replace(run, restarts=restarts + 1)
        assert opens(last, log, run=more).action is RunAction.REQUEUE


def test_what_slurm_has_requeued_for_its_exit_code_is_cancelled_once_it_is_given_up():
    requeued = replace(QUEUED, restarts=2, exit_code="1:0")
    log = crashed(0, -60)
    log[0] = replace(log[0], trouble=replace(log[0].trouble, signature="PENDING 1:0"))
    found = opens(requeued, log, requeue_codes={1})
    assert (found.action, found.over_budget) == (RunAction.END, "")
    assert SAME in found.why


def given_up_in_queue() -> list[Event]:
    """The run 0, which failed, was requeued by Slurm, and was canceled by hpctl while it waited."""
    trouble = Trouble(TroubleKind.CRASH, at(-60), "exit code", "PENDING 3:0", exit_code=3)
    attempt = JobAttempt(7, at(-3700), 0)
    opened = JobRecoveryOpened(
        at(-60), "j-0", attempt, "", (), "", trouble=trouble, action=RunAction.END
    )
    return [opened, SignalSeen(at(-60), "j-0", "gone", "")]


def test_a_requeue_of_what_was_given_up_in_the_queue_is_an_order() -> None:
    """Its exit code is that of the run before."""
    waits = replace(QUEUED, restarts=2, exit_code="3:0")
    assert decided(waits, given_up_in_queue(), requeue_codes={3}) is None
    again = replace(QUEUED, restarts=3, exit_code="3:0")
    assert decided(again, given_up_in_queue(), requeue_codes={3}) is not None


def test_a_run_that_its_supervisor_gave_up_is_left_to_end():
    given_up = report_of(
        -2, kind=TroubleKind.CRASH, action=RunAction.END, wish=RequestedAction.NONE, why="a bug"
    )
    assert decided(job(), [given_up]) is None
    assert holds(FAILED, [given_up]).why == (
        "it is not restarted and stays FAILED: a bug (cause: program (low confidence))"
    )
    later = report_of(-1, kind=TroubleKind.CRASH, action=RunAction.REQUEUE)
    assert opens(job(), [given_up, later]).action is RunAction.REQUEUE


def test_a_wish_beyond_the_budget_of_its_kind_is_given_up():
    found = opens(job(), [report_of(-2)], run=replace(RUN, restarts=0))
    assert found.action is RunAction.END


def test_treated_run_is_not_treated_again():
    log = crashed(0, -60)
    assert decided(FAILED, log) is None
    assert decided(replace(FAILED, restarts=1, exit_code="2:0"), log) is not None


@pytest.mark.parametrize("code", [93, 94])
def test_a_final_exit_code_is_never_run_again(code):
    found = holds(replace(FAILED, exit_code=f"{code}:0"), run=replace(RUN, final_exit_codes=(94,)))
    assert found.gate == "asked_not_to"
    assert f"exit code {code}" in found.why


@pytest.mark.parametrize("code", [126, 127])
def test_a_command_that_was_never_there_is_not_run_again(code):
    found = holds(replace(FAILED, exit_code=f"{code}:0"))
    assert found.gate == "run_policy"
    assert f"(exit code {code}): another try would not change that" in found.why
    gone = opens(replace(FAILED, exit_code=f"{code}:0", restarts=1))
    assert (gone.trouble.kind, gone.action) == (TroubleKind.STORAGE, RunAction.REQUEUE)


def test_a_policy_that_cannot_be_used_is_said_and_does_no_harm():
    assert (
        "(its own policy is not used: x)" in opens(FAILED, note="its own policy is not used: x").why
    )
    assert "not a number of nodes" in opens(replace(FAILED, comment='hpctl:{"spares":"x"}')).why


def test_a_wish_of_a_running_job_is_granted_with_its_nodes_and_its_wait():
    found = opens(job(), [report_of(-2, exclude=("n2",), after_s=12.0)])
    assert (found.trouble.kind, found.exclude, found.start_at) == (
        TroubleKind.HANG,
        ("n2",),
        at(10),
    )
    assert "no healthy node is left" in found.why


def test_a_wish_for_a_hold():
    found = opens(
        job(), [report_of(wish=RequestedAction.HOLD, action=RunAction.HOLD, why="loss is NaN")]
    )
    assert found.action is RunAction.HOLD
    assert found.over_budget.startswith("hpctl: loss is NaN; cause: unknown; held for you")


def test_a_wish_without_a_trouble_is_planned():
    found = opens(job(), [report_of(trouble=None, why="nodes are free to grow back")])
    assert (found.trouble.kind, found.action) == (TroubleKind.PREEMPTED, RunAction.REQUEUE)
    assert found.why == "nodes are free to grow back"


def test_the_word_of_another_run_says_nothing_of_this_one():
    assert decided(job(restarts=1), [report_of(restarts=0)]) is None


def test_repeated_report_counts_once():
    """The answer was lost, so the supervisor told it again."""
    same = {
        "trouble": Trouble(TroubleKind.NAN, at(-3), "loss is NaN", "nan"),
        "wish": RequestedAction.REQUEUE,
    }
    run = replace(RUN, same_signature=2)
    found = opens(job(), [report_of(-3, **same), report_of(-2, **same)], run=run)
    assert found.action is RunAction.REQUEUE
    before = Trouble(TroubleKind.NAN, at(-60), "loss is NaN", "nan")
    earlier = report_of(-60, trouble=before, wish=RequestedAction.NONE, action=RunAction.STEP)
    held = opens(job(), [earlier, earlier, report_of(-3, **same), report_of(-2, **same)], run=run)
    assert held.action is RunAction.END
    assert "nan 2 times" in held.why


def test_nodes_that_the_job_could_not_do_without_are_not_left_out():
    nodes = {node_name(i): slurm_node(i) for i in (1, 2)}
    slurm = SchedulerView(at(0), nodes, {7: job()})
    assert opens(job(), [report_of(exclude=("n2",))], scheduler=slurm).exclude == ()


def test_a_job_that_requeued_itself_starts_at_once_or_when_its_answer_says():
    found = opens(QUEUED, [report_of(-3, wish=RequestedAction.NONE, after_s=0.0)])
    assert (found.start_at, found.attempt.restarts) == (None, 0)
    assert opens(QUEUED, [report_of(-3, wish=RequestedAction.NONE, after_s=30.0)]).start_at == at(
        27
    )


def test_a_job_that_slurm_took_off_a_dead_node_starts_at_once():
    nodes = {node_name(i): slurm_node(i) for i in range(1, 9)}
    nodes[HOST] = slurm_node(1, state="DOWN")
    shown = replace(QUEUED, nodes=(HOST, node_name(2)))
    found = opens(shown, scheduler=SchedulerView(at(0), nodes, {7: shown}))
    assert (found.trouble.kind, found.trouble.node) == (TroubleKind.NODE, HOST)
    assert (found.start_at, found.exclude) == (None, (HOST,))


def test_preempted_job_is_not_treated_when_its_former_node_dies():
    nodes = {HOST: slurm_node(1, state="DOWN")}
    shown = replace(QUEUED, nodes=(HOST,))
    run = JobAttempt(shown.id, shown.submit, 0)
    noted = JobRecoveryOpened(shown.submit, "j-1", run, "", (), "", note="preempted")
    over = SignalSeen(shown.submit, "j-1", "called_off", "")
    seen = SchedulerView(at(0), nodes, {shown.id: shown})
    assert decided(shown, [noted, over], scheduler=seen) is None
    assert decided(shown, scheduler=seen) is not None


def test_preempted_or_requeued_job_is_not_treated():
    assert decided(QUEUED) is None


@pytest.mark.parametrize("reason", ["NonZeroExitCode", "BeginTime"])
def test_a_run_that_slurm_requeued_for_its_exit_code_has_failed(reason):
    """By slurm.conf's RequeueExit. From 23.11 on the Reason is overwritten within a second."""
    failed = replace(QUEUED, reason=reason, exit_code="3:0")
    found = opens(failed, requeue_codes={3})
    assert (found.trouble.kind, found.trouble.exit_code) == (TroubleKind.CRASH, 3)
    assert decided(failed, requeue_codes={4}) is None
    assert decided(failed) is None


@pytest.mark.parametrize(
    "ordered",
    [
        replace(QUEUED, exit_code="0:0"),
        replace(QUEUED, exit_code="0:15"),
        replace(QUEUED, exit_code=""),
        replace(QUEUED, exit_code="3:0", ordered=True),
        replace(QUEUED, exit_code="3:0", preempted=at(-9)),
    ],
)
def test_a_requeue_that_an_exit_code_did_not_cause_is_an_order(ordered):
    """A preempted script that traps SIGTERM has an exit code as well."""
    assert decided(ordered, requeue_codes={3}) is None


def test_a_requeue_of_what_its_supervisor_gave_up_is_an_order() -> None:
    """The owner has mended the program; where Slurm itself requeues it, it stays given up."""
    given_up = report_of(
        -2, kind=TroubleKind.CRASH, action=RunAction.END, wish=RequestedAction.NONE, why="a bug"
    )
    waits = replace(QUEUED, exit_code="3:0")
    assert decided(waits, [given_up]) is None
    assert opens(waits, [given_up], requeue_codes={3}).action is RunAction.END


def test_a_node_that_booted_before_the_run_began_did_not_end_it():
    back = slurm_node(1, boot_time=at(-100), slurmd_start=at(-10))
    shown = replace(QUEUED, nodes=(HOST,))
    scheduler = SchedulerView(at(0), {HOST: back}, {7: shown})
    assert opens(shown, scheduler=scheduler).trouble.kind is TroubleKind.NODE
    ran_later = replace(shown, ran_from=at(-5))
    assert decided(ran_later, scheduler=SchedulerView(at(0), {HOST: back}, {7: ran_later})) is None


@pytest.mark.parametrize(
    ("exit_code", "flags", "kind"),
    [
        ("137:0", {"DRAIN"}, TroubleKind.NODE),
        ("137:0", {"FAIL"}, TroubleKind.NODE),
        ("137:0", set(), TroubleKind.KILLED),
        ("1:0", {"DRAIN"}, TroubleKind.CRASH),
    ],
)
def test_a_script_killed_on_a_closed_node_is_the_nodes_loss(exit_code, flags, kind):
    ended = replace(FAILED, exit_code=exit_code)
    nodes = {HOST: slurm_node(1, flags=frozenset(flags))}
    found = opens(ended, scheduler=SchedulerView(at(0), nodes, {7: ended}))
    assert (found.trouble and found.trouble.kind) is kind


def test_a_job_that_runs_without_its_batch_host_is_requeued():
    ghost = job(nodes=(node_name(2), node_name(3)))
    assert opens(ghost).trouble.why == "the node of its batch script, n1, is lost"


@pytest.mark.parametrize(
    ("gate", "policy", "changes"),
    [
        ("kill_switch", OWN, {"stopped": "the kill switch exists"}),
        ("stale_facts", OWN, {"current": False}),
        (
            "not_allowed",
            RecoveryPolicy(mode=OperatingMode.OWN, partitions=frozenset({"other"})),
            {},
        ),
        ("observing", RecoveryPolicy(mode=OperatingMode.OBSERVE), {}),
    ],
)
def test_the_gates_hold(gate, policy, changes):
    assert holds(FAILED, policy=policy, **changes).gate == gate


BOOTED = slurm_node(1, boot_time=at(-30), slurmd_start=at(-2))


@pytest.mark.parametrize("comment", [ASKED, "", "my own words"])
def test_job_of_any_user_is_restarted_after_its_node_booted(comment):
    queued = replace(QUEUED, comment=comment, nodes=(BOOTED.name,))
    seen = SchedulerView(at(0), {BOOTED.name: BOOTED}, {queued.id: queued})
    answer = opens(queued, scheduler=seen)
    assert (answer.trouble.kind, answer.action, answer.start_at) == (
        TroubleKind.NODE, RunAction.REQUEUE, None,
    )  # fmt: skip
    assert "n1, which had booted" in answer.why
    assert answer.attempt == JobAttempt(queued.id, queued.submit, 0)


@pytest.mark.parametrize(
    "node",
    [
        replace(BOOTED, boot_time=at(-2000)),  # its slurmd was restarted alone
        replace(BOOTED, slurmd_start=at(-500)),  # it had been well since
        replace(BOOTED, boot_time=at(9), slurmd_start=at(9)),  # it booted after the requeue
        replace(BOOTED, boot_time=None),
    ],
)
def test_requeued_unregistered_job_is_not_treated(node):
    queued = replace(QUEUED, comment="", nodes=(node.name,))
    seen = SchedulerView(at(0), {node.name: node}, {queued.id: queued})
    assert decided(queued, scheduler=seen) is None
