"""Orders to the cloud: one call at a time, and none that waits where nobody can call it off."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hpctl.engine.execute import StepExecutor, StepExecutorPorts
from hpctl.engine.journal.events import Event, StepResolved, StepStarted
from hpctl.engine.journal.in_process import InProcessJournal
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.kinds import DueRecoveryStep
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.recovery import StepKind, StepStartDecision
from tests.fakes.values import Clock, attempt


class SlowCloud:
    """A cloud whose answers come when the test lets them."""

    def __init__(self) -> None:
        self.called: list[tuple[str, ...]] = []
        self.answers = threading.Semaphore(0)
        self.error: Exception | None = None

    def replace(self, instances: Sequence[str]) -> Mapping[str, Outcome]:
        self.called.append(tuple(instances))
        self.answers.acquire(timeout=60)
        if self.error is not None:
            raise self.error
        return dict.fromkeys(instances, Outcome.accepted())

    reboot = remove = replace


class Unfolded(JournaledState):
    """A journal alone: these orders are of recoveries that nothing opened."""

    def __init__(self) -> None:
        super().__init__(InProcessJournal())
        self.written: list[Event] = []

    def append(self, events: Sequence[Event]) -> None:
        self.written.extend(events)


class Bench:
    """An executor in the daemon's own way, with a thread for the cloud."""

    def __init__(self) -> None:
        self.cloud = SlowCloud()
        self.journal = Unfolded()
        self.poked = threading.Event()
        self.leads = True
        self.asked: list[int] = []
        """How many steps were written down each time that the executor asked for the lease."""
        nobody: Any = None
        cloud: Any = self.cloud
        effectors = StepExecutorPorts(nobody, cloud)
        self.executor = StepExecutor(
            effectors, self.journal, Clock(), poke=self.poked.set, may_act=self.holds_lease
        )

    @property
    def written(self) -> list[Event]:
        return self.journal.written

    def holds_lease(self) -> bool:
        self.asked.append(len(self.started()))
        return self.leads

    def order(self, *instances: str) -> bool:
        return self.executor.run(
            [
                DueRecoveryStep(
                    f"n-{i}", StepStartDecision(StepKind.REPLACE, i, attempt=1, why="sick")
                )
                for i in instances
            ]
        )

    def answered(self) -> None:
        self.poked.clear()
        self.cloud.answers.release()
        assert self.poked.wait(60)
        self.executor.collect()

    def started(self) -> list[str]:
        return [e.target for e in self.written if isinstance(e, StepStarted)]


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.cloud.answers.release()
    bench.executor.close()


def test_an_order_that_cannot_go_out_now_is_not_begun(bench):
    """It would go out whatever came between: a pause, a cancelled recovery, the kill switch."""
    assert bench.order("i-1")
    assert not bench.order("i-2"), "nothing was done: the loop need not look again at once"
    assert bench.started() == ["i-1"]
    bench.answered()
    assert bench.order("i-2")
    bench.answered()
    assert (bench.started(), bench.cloud.called) == (["i-1", "i-2"], [("i-1",), ("i-2",)])


def test_executor_does_nothing_without_the_lease(bench):
    """It is asked after the step was written down, and immediately before the call."""
    bench.leads = False
    assert bench.order("i-1")
    assert bench.poked.wait(60)
    bench.executor.collect()
    assert (bench.asked, bench.cloud.called) == ([1], [])
    (resolved,) = [e for e in bench.written if isinstance(e, StepResolved)]
    assert (resolved.outcome.kind, resolved.outcome.transient) == (OutcomeKind.REJECTED, True)


def test_a_call_under_way_is_waited_for_before_the_lease_is_given_away(bench):
    assert bench.executor.settle(0.0), "none is under way"
    assert bench.order("i-1")
    assert not bench.executor.settle(0.05)
    bench.cloud.answers.release()
    assert bench.executor.settle(10)
    assert [type(e) for e in bench.written] == [StepStarted, StepResolved]


def test_orders_beyond_one_call_wait_for_the_next_cycle(bench):
    many = [f"i-{n}" for n in range(30)]
    assert bench.order(*many)
    assert bench.started() == many[:25]
    bench.answered()
    assert bench.order(*many[25:])
    bench.answered()
    assert (bench.started(), [len(call) for call in bench.cloud.called]) == (many, [25, 5])


class HungSlurm:
    """A slurmctld that answers the views and hangs on the second order."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.asked: list[int] = []

    def start_pending_job(self, job: int, *_) -> Outcome:
        self.asked.append(job)
        return self.outcome if len(self.asked) == 2 else Outcome.accepted()


@pytest.mark.parametrize(
    ("outcome", "asked"),
    [
        (Outcome.ambiguous("timeout", "no end after 10.0 s"), [1, 2]),
        (Outcome.rejected("unavailable", "scontrol show job 2", transient=True), [1, 2]),
        (Outcome.rejected("completing", transient=True), [1, 2, 3, 4]),
    ],
    ids=lambda v: v.code if isinstance(v, Outcome) else "",
)
def test_a_slurmctld_that_hangs_is_not_asked_for_all_the_rest(outcome, asked):
    """Ten seconds for each job of a mass event: systemd's watchdog would end the daemon first."""
    slurm: Any = HungSlurm(outcome)
    cloud: Any = None
    journal = Unfolded()
    executor = StepExecutor(StepExecutorPorts(slurm, cloud), journal, Clock())
    due = [
        DueRecoveryStep(f"j-{i}", StepStartDecision(StepKind.START_NOW, str(i), 1), attempt(i))
        for i in (1, 2, 3, 4)
    ]
    assert executor.run(due)
    assert slurm.asked == asked
    assert len([e for e in journal.written if isinstance(e, StepStarted)]) == len(asked)
    assert len([e for e in journal.written if isinstance(e, StepResolved)]) == len(asked)


class Orders:
    """A slurmctld that takes every order and remembers their order."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def resume_nodes(self, owners: Mapping[str, str]) -> Mapping[str, Outcome]:
        self.taken.append("RESUME")
        return dict.fromkeys(owners, Outcome.accepted())

    def reserve(self, *_) -> Outcome:
        self.taken.append("reservation")
        return Outcome.accepted()

    def start_pending_job(self, *_) -> Outcome:
        self.taken.append("start")
        return Outcome.accepted()


def test_a_reservation_goes_out_before_the_order_that_opens_its_nodes():
    """A job that waits takes a node within milliseconds of its RESUME."""
    slurm: Any = Orders()
    cloud: Any = None
    executor = StepExecutor(StepExecutorPorts(slurm, cloud), Unfolded(), Clock())
    executor.run(
        [
            DueRecoveryStep(
                "j-1", StepStartDecision(StepKind.START_NOW, "1", attempt=1), attempt(1)
            ),
            DueRecoveryStep("n-1", StepStartDecision(StepKind.RETURN, "node-4", attempt=1)),
            DueRecoveryStep("k-1", StepStartDecision(StepKind.RESERVE, "worker-1", attempt=1)),
        ]
    )
    assert slurm.taken == ["reservation", "RESUME", "start"]


def test_a_call_that_breaks_is_in_doubt_and_the_next_one_goes_out(bench):
    bench.cloud.error = KeyError("Successful")
    assert bench.order("i-1")
    bench.answered()
    (resolved,) = [e for e in bench.written if isinstance(e, StepResolved)]
    assert resolved.outcome.kind is OutcomeKind.AMBIGUOUS
    assert "KeyError" in resolved.outcome.detail
    bench.cloud.error = None
    assert bench.order("i-2")


def test_an_order_starts_no_thread(bench, monkeypatch):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert bench.order("i-1")
    bench.answered()
    assert bench.cloud.called == [("i-1",)]


def test_an_order_that_cannot_be_handed_on_keeps_no_other_waiting(bench, monkeypatch):
    def refuse(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(ThreadPoolExecutor, "submit", refuse)
        with pytest.raises(MemoryError):
            bench.order("i-1")
    assert bench.order("i-2")
    bench.answered()
    assert bench.cloud.called == [("i-2",)]
    assert bench.started() == ["i-1", "i-2"], "the first one is in doubt"
