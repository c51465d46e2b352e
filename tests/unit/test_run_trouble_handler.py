"""Nodes that a job has had trouble with."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from hpctl.core.compat import UTC
from hpctl.core.job_report import JobReport, Wish
from hpctl.core.model import JobId, NodeName
from hpctl.core.run_policy import Action, Answer, Past, RunPolicy
from hpctl.core.trouble import Kind, Trouble
from hpctl.jobs.daemon_client import DaemonReply
from hpctl.jobs.run import trouble_handler
from hpctl.jobs.run.allocation import AllocationState, Fitness
from hpctl.jobs.run.history import JobHistory
from hpctl.jobs.run.launch import StepLauncher
from hpctl.jobs.run.settings import settings
from hpctl.jobs.run.srun import parse_srun
from hpctl.jobs.run.trouble_handler import PAUSES, TroubleHandler, offenders, persist

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def past(kind: Kind, node: str | None, hours: float) -> Past:
    at = NOW - timedelta(hours=hours)
    name = NodeName(node) if node else None
    return Past(Trouble(kind, at, "", node=name), Action.STEP)


def test_who_proved_bad_within_the_window_is_avoided() -> None:
    known = [
        past(Kind.NODE, "n1", 1),
        past(Kind.NODE, "n2", 25),
        past(Kind.HANG, "n3", 1),
        past(Kind.CORRUPTION, "n4", 2),
        past(Kind.NODE, None, 1),
    ]
    assert offenders(known, RunPolicy(), NOW) == {"n1", "n4"}


def told(*replies: DaemonReply | None) -> list[float]:
    """How long was waited between the attempts to tell, until one was enough."""
    left, waits = list(replies), list[float]()
    persist(JobReport(JobId(7), 0), lambda _: left.pop(0), waits.append)
    assert not left
    return waits


def test_a_word_to_the_daemon_is_said_again_while_it_is_away() -> None:
    assert told(DaemonReply(True)) == []
    assert told(None, DaemonReply(False, again=True), DaemonReply(True)) == list(PAUSES[:2])
    assert told(DaemonReply(False, text="404 unknown_job")) == []
    assert told(*[None] * (len(PAUSES) + 1)) == list(PAUSES)
    assert sum(PAUSES) + 2 * (len(PAUSES) + 1) < 60


def test_the_loss_of_a_spare_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = settings(parse_srun(["x"]), {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-3]"})
    said, reports = list[str](), list[JobReport]()
    one = TroubleHandler(
        given, cast(AllocationState, None), JobHistory(None), cast(StepLauncher, None), said.append
    )
    monkeypatch.setattr(one, "_report", reports.append)
    for gone in ([], ["n3"], ["n3"], ["n2", "n3"]):
        one.unaffected([NodeName(node) for node in gone])
    whys = [
        f"the job lost {node}, where no rank of this step runs: it runs on" for node in ("n3", "n2")
    ]
    assert said == whys
    assert [(r.job, r.restarts, r.trouble, r.action, r.why) for r in reports] == [
        (7, 0, None, Action.NONE, why) for why in whys
    ]


@pytest.mark.parametrize(("refused", "action"), [("", Action.PROCESS), ("deaf", Action.STEP)])
def test_a_launcher_that_refuses_leaves_the_next_rung(refused: str, action: Action) -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    given = settings(parse_srun(["x"]), environ)
    history, said = JobHistory(None), list[str]()
    state = SimpleNamespace(alive=True, recoverable=True, healed=set())
    one = TroubleHandler(
        given, cast(AllocationState, state), history, cast(StepLauncher, None), said.append
    )
    fit = Fitness((NodeName("n1"), NodeName("n2")), {})
    trouble = Trouble(Kind.HANG, NOW, "no step for 60 s", signature="hang")
    answer = one.answer(1, trouble, fit, running=True, inside=lambda *_: refused)
    assert answer.action is action
    assert [each.action for each in history.past] == [action]
    assert any("not restarted in their step: deaf" in line for line in said) == bool(refused)


def test_nothing_is_sent_after_a_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon takes the newest report of a run: a late one would take the wish back."""
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    sent = list[JobReport]()
    monkeypatch.setattr(trouble_handler, "send_report", lambda report: sent.append(report))
    one = TroubleHandler(
        settings(parse_srun(["x"]), environ),
        cast(AllocationState, None),
        JobHistory(None),
        cast(StepLauncher, None),
        lambda _: None,
    )
    late = JobReport(JobId(7), 0, progress=4)
    assert one._send(late) is None
    one.wish(None, Answer(Action.REQUEUE, "no spare is left"))
    assert one._send(late) == DaemonReply(ok=False)
    assert [report.wish for report in sent] == [Wish.NONE, Wish.REQUEUE]
