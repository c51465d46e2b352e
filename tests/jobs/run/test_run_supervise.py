"""What the supervisor answers to troubles, refused steps, returned nodes and the time limit."""

from datetime import timedelta
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from hpctl.jobs.decide import PastJobFailure
from hpctl.jobs.run import trouble_handler
from hpctl.jobs.run.allocation import AllocationState, NodeFitness
from hpctl.jobs.run.ending import StepEndEvidence
from hpctl.jobs.run.history import JobHistory
from hpctl.jobs.run.settings import RunSettings, read_run_settings
from hpctl.jobs.run.srun import SrunLaunchFailure, parse_srun_command
from hpctl.jobs.run.supervise import (
    MOST_NO_GRES,
    MOST_REFUSALS,
    REFUSED_S,
    REQUEUE_S,
    StepGrowthCapacity,
    StepTimers,
    plan_step_growth,
)
from hpctl.jobs.run.trouble_handler import (
    PAUSES,
    find_nodes_with_recent_job_failures,
    retry_supervisor_report,
)
from hpctl.vocabulary.job_recovery import JobReport, RequestedAction
from hpctl.vocabulary.policy_file import RunPolicyFile
from hpctl.vocabulary.run_policy import RunAction, RunActionDecision, RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from hpctl.wire.job_report_client import JobReportReply
from tests.fakes.values import T0 as NOW
from tests.jobs.run.supervisors import (
    end_step,
    make_allocation,
    make_handler,
    make_step,
    make_supervisor,
)
from tests.waiting import until

ELASTIC = RunPolicy(nodes=(6, 8), grow_gain=3.0)
HOUR = StepGrowthCapacity(have=6, inside=8, left_s=3600, restart_s=60)


def test_a_node_that_is_back_is_used_where_it_pays():
    answer = plan_step_growth(ELASTIC, 8, HOUR)
    assert (answer.action, answer.size) == (RunAction.STEP, 8)


@pytest.mark.parametrize(
    "room",
    [
        replace(HOUR, left_s=600),  # 150 s won for a restart of 60 s: under three times
        replace(HOUR, inside=6),
        replace(HOUR, inside=6, idle=1, missing=2),
        replace(HOUR, inside=6, idle=9, missing=2, left_s=1800),
    ],
)
def test_run_continues_unchanged_otherwise(room):
    assert plan_step_growth(ELASTIC, 8, room) is None


def test_idle_nodes_outside_are_worth_a_requeue_only_with_its_delay():
    outside = replace(HOUR, inside=6, idle=2, missing=2, left_s=4 * 3 * (60 + REQUEUE_S))
    assert plan_step_growth(ELASTIC, 8, outside).action is RunAction.REQUEUE
    assert plan_step_growth(ELASTIC, 8, replace(outside, left_s=(outside.left_s or 0) - 10)) is None


NODES = ("n1", "n2")
STEP = make_step(*NODES)
FIT = NodeFitness(NODES, {})
NO_GRES = "Invalid generic resource (gres) specification"


def refused(text: str) -> StepEndEvidence:
    return StepEndEvidence(1, failed=[SrunLaunchFailure(None, text)])


def handler(lines=None, *, nodes="n[1-2]"):
    said = [] if lines is None else lines
    return make_handler(make_allocation(FIT), said.append, nodes)


@pytest.mark.parametrize(
    ("text", "most"),
    [("Job/step already completing or completed", MOST_REFUSALS), (NO_GRES, MOST_NO_GRES)],
)
def test_the_allocation_is_given_up_for_another_one(text, most):
    one = make_supervisor(FIT)
    for _ in range(most):
        again = end_step(one, STEP, refused(text))
        assert (again.trouble, again.answer.action) == (None, RunAction.STEP)
        assert (again.answer.after_s, again.answer.size) == (REFUSED_S, 2)
    last = end_step(one, STEP, refused(text))
    assert (last.trouble.kind, last.answer.action) == (TroubleKind.NODE, RunAction.REQUEUE)
    assert last.why == f"Slurm no longer creates steps in this allocation: {text}"


def test_a_step_that_ran_starts_the_count_afresh():
    one = make_supervisor(FIT)
    for _ in range(MOST_NO_GRES):
        assert end_step(one, STEP, refused(NO_GRES)).trouble is None
    assert end_step(one, STEP, StepEndEvidence(1)).trouble.kind is TroubleKind.CRASH
    assert end_step(one, STEP, refused(NO_GRES)).answer.action is RunAction.STEP


def past(kind: TroubleKind, node: str | None, hours: float) -> PastJobFailure:
    at = NOW - timedelta(hours=hours)
    return PastJobFailure(Trouble(kind, at, "", node=node), RunAction.STEP)


def test_who_proved_bad_within_the_window_is_avoided():
    known = [
        past(TroubleKind.NODE, "n1", 1), past(TroubleKind.NODE, "n2", 25),
        past(TroubleKind.HANG, "n3", 1),
        past(TroubleKind.CORRUPTION, "n4", 2), past(TroubleKind.NODE, None, 1),
    ]  # fmt: skip
    assert find_nodes_with_recent_job_failures(known, RunPolicy(), NOW) == {"n1", "n4"}


def waits_of(*replies: JobReportReply | None) -> list[float]:
    """How long was waited between the attempts to tell, until one was enough."""
    left, waits = list(replies), list[float]()
    retry_supervisor_report(JobReport(7, 0), lambda _: left.pop(0), waits.append)
    assert not left
    return waits


def test_a_word_to_the_daemon_is_said_again_while_it_is_away():
    assert waits_of(JobReportReply(True)) == []
    assert waits_of(None, JobReportReply(False, again=True), JobReportReply(True)) == list(
        PAUSES[:2]
    )
    assert waits_of(JobReportReply(False, text="404 unknown_job")) == []
    assert waits_of(*[None] * (len(PAUSES) + 1)) == list(PAUSES)
    assert sum(PAUSES) + 2 * (len(PAUSES) + 1) < 60


def test_loss_of_a_spare_is_reported_once(monkeypatch):
    lines, reports = list[str](), list[JobReport]()

    def note_report(report: JobReport, **_: object) -> JobReportReply:
        reports.append(report)
        return JobReportReply(True)

    one = handler(lines, nodes="n[1-3]")
    monkeypatch.setattr(trouble_handler, "send_job_report", note_report)
    for gone in ([], ["n3"], ["n3"], ["n2", "n3"]):
        one.report_unused_node_loss(list(gone))
        until(lambda: len(reports) == len(lines))  # a thread sends them
    whys = [
        f"the job lost {node}, where no rank of this step runs: it runs on" for node in ("n3", "n2")
    ]
    assert lines == whys
    assert [(r.job, r.restarts, r.trouble, r.action, r.why) for r in reports] == [
        (7, 0, None, RunAction.NONE, why) for why in whys
    ]


@pytest.mark.parametrize(("refused", "action"), [("", RunAction.PROCESS), ("deaf", RunAction.STEP)])
def test_a_launcher_that_refuses_leaves_the_next_rung(refused, action):
    lines, history = list[str](), JobHistory(None)
    one = make_handler(make_allocation(FIT), lines.append, "n[1-2]", history)
    trouble = Trouble(TroubleKind.HANG, NOW, "no step for 60 s", signature="hang")
    assert one.answer(1, trouble, FIT, running=True, inside=lambda *_: refused).action is action
    assert [each.action for each in history.past] == [action]
    assert any("not restarted in their step: deaf" in line for line in lines) == bool(refused)


def test_nothing_is_sent_after_a_wish(monkeypatch):
    """The daemon takes the newest report of a run: a late one would take the wish back."""
    sent = list[JobReport]()
    monkeypatch.setattr(trouble_handler, "send_job_report", lambda report, **_: sent.append(report))
    one = handler()
    late = JobReport(7, 0, progress=4)
    assert one._send_report(late) is None
    one.request_daemon_requeue_or_hold(
        None, RunActionDecision(RunAction.REQUEUE, "no spare is left")
    )
    assert one._send_report(late) == JobReportReply(ok=False)
    assert [report.wish for report in sent] == [RequestedAction.NONE, RequestedAction.REQUEUE]


def limits(left: float | None, whole_s: float | None) -> AllocationState:
    """What the allocation says of the time limit."""
    return Mock(spec=AllocationState, left_s=Mock(return_value=left), total_time_limit_s=whole_s)


def given(tmp_path, saves: bool = True) -> RunSettings:
    environ = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n1", "HOME": str(tmp_path)}
    if saves:
        environ["HPCTL_CHECKPOINT_DIR"] = str(tmp_path)
    return read_run_settings(parse_srun_command(["x"]), environ, [RunPolicyFile(save_grace_s=60)])


@pytest.mark.parametrize(
    ("left", "whole", "near"),
    [
        (3600.0, 7200.0, False),
        (89.0, 7200.0, True),
        (91.0, 7200.0, False),
        (89.0, 120.0, False),  # a job of two minutes is not near its end all the time
        (29.0, 120.0, True),
        (None, None, False),
    ],
)
def test_it_is_near_when_a_save_and_a_requeue_just_fit(tmp_path, left, whole, near):
    trouble = StepTimers(given(tmp_path)).find_time_limit_failure(limits(left, whole), NOW)
    assert (trouble is not None and trouble.kind is TroubleKind.TIME_LIMIT) is near


def test_time_limit_is_signaled_once_and_only_to_programs_that_save(tmp_path):
    allocation = limits(50.0, 7200.0)
    clocks = StepTimers(given(tmp_path))
    assert clocks.find_time_limit_failure(allocation, NOW) is not None
    assert clocks.find_time_limit_failure(allocation, NOW) is None
    assert StepTimers(given(tmp_path, saves=False)).find_time_limit_failure(allocation, NOW) is None
