"""The daemon's collector of stacks, with agents that do not answer."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpctl.engine.clock import SystemClock
from hpctl.engine.kinds import DueRecoveryStep
from hpctl.engine.node_health import NodeHealthStore
from hpctl.jobs.hangs import daemon
from hpctl.jobs.hangs.daemon import StackCollector
from hpctl.vocabulary.identity import JobAttempt, JobId, NodeName
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.recovery import StepKind, StepStartDecision
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob
from hpctl.wire.stack_request import RankStackTraceRequest
from tests.reports import NOON, Rows
from tests.waiting import until


class Agents:
    """What the agents are asked for now."""

    def __init__(self) -> None:
        self.stacks: dict[NodeName, RankStackTraceRequest] = {}

    def request_stack_traces(self, stacks: Mapping[NodeName, RankStackTraceRequest]) -> None:
        self.stacks = dict(stacks)


@dataclass
class Reading:
    """The last reading of Slurm."""

    slurm: SchedulerView


def run_job(number: int, node: str) -> SlurmJob:
    return SlurmJob(JobId(number), "RUNNING", NOON, nodes=(NodeName(node),), uid=0)


def ask_for(number: int) -> DueRecoveryStep:
    return DueRecoveryStep(
        f"j-{number}",
        StepStartDecision(StepKind.STACKS, str(number), 1),
        JobAttempt(JobId(number), NOON, 0),
    )


def wait_for_two(collector: StackCollector) -> list[tuple[DueRecoveryStep, Outcome]]:
    ended: list[tuple[DueRecoveryStep, Outcome]] = []

    def has_two() -> bool:
        ended.extend(collector.done())
        return len(ended) == 2

    until(has_two)
    return ended


@pytest.fixture
def collect(tmp_path: Path) -> Callable[..., tuple[StackCollector, Agents]]:
    def make(*jobs: SlurmJob) -> tuple[StackCollector, Agents]:
        health = NodeHealthStore({}, Rows(), lambda: None, SystemClock())
        agents = Agents()
        reading = Reading(SchedulerView(as_of=NOON, jobs={job.id: job for job in jobs}))
        return StackCollector(health, reading, tmp_path / "kept", lambda: None, agents), agents

    return make


def test_stacks_are_awaited_where_no_thread_can_be_started(collect, monkeypatch) -> None:
    monkeypatch.setattr(daemon, "ANSWER_S", 0.3)
    collector, agents = collect(run_job(1, "n1"), run_job(2, "n2"))

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    collector.begin(ask_for(1))
    collector.begin(ask_for(2))
    assert set(agents.stacks) == {"n1", "n2"}
    ended = wait_for_two(collector)
    assert {(due.recovery, outcome.kind) for due, outcome in ended} == {
        ("j-1", OutcomeKind.REJECTED), ("j-2", OutcomeKind.REJECTED),
    }  # fmt: skip
    assert agents.stacks == {}


def test_a_job_whose_answers_break_costs_no_other_job_its_own(collect, monkeypatch) -> None:
    monkeypatch.setattr(daemon, "ANSWER_S", 0.3)
    collector, _ = collect(run_job(1, "n1"), run_job(2, "n2"))
    judge = daemon.diagnose_hang_from_rank_stacks

    def fail_for_the_first(answers, nodes):
        if "n1" in nodes:
            raise ValueError("broken")
        return judge(answers, nodes)

    monkeypatch.setattr(daemon, "diagnose_hang_from_rank_stacks", fail_for_the_first)
    collector.begin(ask_for(1))
    collector.begin(ask_for(2))
    ended = wait_for_two(collector)
    assert {due.recovery: outcome.kind for due, outcome in ended} == {
        "j-1": OutcomeKind.AMBIGUOUS, "j-2": OutcomeKind.REJECTED,
    }  # fmt: skip
