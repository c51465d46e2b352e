"""Hangs of real torch runs are found in time, and sound runs that are slow are left alone.

`HPCTL_TEST_HANGS`: how many of either at night, six at a time; 40 take half an hour.
"""

import os

import pytest

from tests.examples import SEED
from tests.jobs.hangs.live import runs

pytestmark = pytest.mark.integration

COUNT = int(os.environ.get("HPCTL_TEST_HANGS", "40"))
AT_ONCE = 6
BAR_S = 180.0


@pytest.fixture(autouse=True)
def torch() -> None:
    pytest.importorskip("torch")


def judged(found: list[runs.Run]) -> None:
    """The bars: 95 of 100 hangs within three minutes of the run's time, and no false alarm."""
    alarms = [(run.kind, run.why, run.trace[-20:]) for run in found if run.false_alarm]
    assert not alarms
    hangs = [run for run in found if run.hangs]
    late = [(run.kind, run.took_s, run.trace[-20:]) for run in hangs if run.took_s > BAR_S]
    assert len(late) <= len(hangs) // 20, late
    assert all(run.done for run in found if not run.hangs)


def test_one_that_hangs_and_one_that_does_not(monkeypatch):
    # Those that need little of the processor.
    kinds = [runs.chosen(4, ("sleep", "loader", "file", "mismatch"), SEED)[0], "checkpoint"]
    judged(runs.watched(kinds, monkeypatch))


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_many(monkeypatch):
    hangs, sound = (runs.chosen(COUNT, kinds, SEED) for kinds in (runs.HANGS, runs.SOUND))
    kinds = [kind for pair in zip(hangs, sound, strict=True) for kind in pair]
    found = []
    for at in range(0, len(kinds), AT_ONCE):
        found += runs.watched(kinds[at : at + AT_ONCE], monkeypatch)
    judged(found)
