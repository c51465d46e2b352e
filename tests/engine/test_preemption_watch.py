"""The reading of what may preempt what: it starts no thread when it is wanted, and is repeated."""

import threading
from datetime import datetime

import pytest

from hpctl.engine.preemption_watch import AGAIN_S, PreemptionOrderCache
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.preemption_order import PreemptionOrder
from tests.fakes.values import at, slurm_job
from tests.waiting import until

WAITS = slurm_job(7, state="PENDING", restarts=1)
KNOWN = PreemptionOrder(tiers={"high": 2, "low": 1})


class PreemptingSlurm:
    """A Slurm that fails as often as `errors` says, and its clock."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.asked = 0
        self.seconds = 0.0

    def preemption_order(self) -> PreemptionOrder:
        self.asked += 1
        if self.errors:
            raise self.errors.pop()
        return KNOWN

    def now(self) -> datetime:
        return at(self.seconds)

    def monotonic(self) -> float:
        return self.seconds


def test_the_loop_starts_no_thread_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = PreemptingSlurm()
    watch = PreemptionOrderCache(slurm, slurm)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    watch.look([WAITS])
    until(lambda: watch.look([WAITS]) == KNOWN)
    assert slurm.asked == 1


@pytest.mark.parametrize(
    "error", [ServiceUnavailable("slurmdbd is away", "wait"), MemoryError(), ValueError("tier")]
)
def test_a_reading_that_failed_is_repeated(error: Exception) -> None:
    slurm = PreemptingSlurm(error)
    watch = PreemptionOrderCache(slurm, slurm)
    watch.look([WAITS])
    until(lambda: slurm.asked == 1)
    assert watch.look([WAITS]) == PreemptionOrder()
    slurm.seconds = AGAIN_S
    until(lambda: watch.look([WAITS]) == KNOWN)
