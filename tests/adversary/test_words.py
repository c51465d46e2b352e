"""What jobs say: it wakes the loop seldom, and fills neither disk nor memory."""

import shutil
import time
from collections import namedtuple
from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import JobReported
from hpctl.engine.wake import DaemonWakeRateLimiter
from hpctl.jobs import report_intake
from hpctl.toolkit import rate_limiter
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.rate_limiter import RateLimiter
from hpctl.vocabulary.job_recovery import JobReport, RequestedAction
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from hpctl.wire.authentication import RequestRefusal
from tests.fakes.desk import NOON, Desk
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.adversary]

HANG = JobReport(7, 0, Trouble(TroubleKind.HANG, NOON, "rank 3 makes no progress", "hang"))


class Bed(Desk):
    def take(self, report: JobReport) -> None:
        self.desk.take(report, self.uid, datetime.now(UTC))


def test_a_word_said_again_is_written_once_and_another_is_written():
    bed = Bed()
    for _ in range(50):
        bed.take(HANG)
    bed.take(replace(HANG, wish=RequestedAction.REQUEUE))
    assert (len(bed.stored), bed.poked) == (2, 2)


def test_signs_of_life_are_kept_in_memory(monkeypatch):
    bed = Bed()
    for step in range(50):
        bed.take(JobReport(7, 0, progress=step))
    assert [e.report.progress for e in bed.stored if isinstance(e, JobReported)] == [0]
    assert [reported.report.progress for reported in bed.desk.news()] == list(range(50))
    monkeypatch.setattr(report_intake, "LIFE_S", 0.0)
    bed.take(JobReport(7, 0, progress=50))
    assert len(bed.stored) == 2, "one now and then is kept for good"


def test_a_nearly_full_disk_turns_words_off_and_says_so(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, report_intake.LOW_DISK - 1))
    bed = Bed(tmp_path)
    with pytest.raises(RequestRefusal) as refused:
        bed.take(HANG)
    assert (refused.value.status, refused.value.code) == (503, "low_disk")
    assert bed.stored == []
    assert "nearly full" in bed.desk.trouble
    monkeypatch.undo()
    monkeypatch.setattr(report_intake, "LOW_DISK", 0)
    monkeypatch.setattr(bed.desk, "_room", (True, 0.0))
    bed.take(HANG)
    assert (len(bed.stored), bed.desk.trouble) == (1, "")


def test_a_job_that_slurm_lacks_is_asked_for_and_then_unknown():
    bed = Bed()
    unknown = replace(HANG, job=99)
    with pytest.raises(RequestRefusal) as refused:
        bed.take(unknown)
    assert refused.value.code == "slurm_behind"
    assert bed.view is not None
    bed.view = replace(bed.view, as_of=datetime.now(UTC) + timedelta(seconds=1))
    with pytest.raises(RequestRefusal) as refused:
        bed.take(unknown)
    assert refused.value.code == "unknown_job"
    assert bed.poked == 1, "Slurm was read since: asking again wakes nobody"


def test_the_loop_is_woken_once_a_second_and_never_forgotten():
    poked: list[float] = []
    seldom = DaemonWakeRateLimiter(lambda: poked.append(time.monotonic()), 0.2)
    begun = time.monotonic()
    seldom.poke()
    assert len(poked) == 1, "the first at once"

    def poke_on() -> bool:
        seldom.poke()
        return len(poked) >= 4

    until(poke_on, every=0.005)
    last = time.monotonic()
    seldom.poke()
    until(lambda: poked[-1] >= last)  # the last is not lost
    assert len(poked) <= 2 + (time.monotonic() - begun) / 0.2


def test_an_allowance_is_each_ones_own_and_comes_back(monkeypatch):
    now = [0.0]
    args = RateLimiter(3, 1.0, lambda: now[0])
    assert [args.take(1) for _ in range(4)] == [True, True, True, False]
    assert args.take(2)
    now[0] = 2.0
    assert [args.take(1) for _ in range(3)] == [True, True, False]
    monkeypatch.setattr(rate_limiter, "MOST_KEYS", 10)
    for key in range(100):
        now[0] += 10
        args.take(("many", key))
    assert len(args._buckets) < 20
