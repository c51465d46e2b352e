"""What wakes the loop, and how often the ends of jobs do."""

import os
from pathlib import Path

import pytest

from hpctl.engine.wake import FIFO_NAME, DaemonLoopWaker


@pytest.fixture
def waker(tmp_path: Path):
    waker = DaemonLoopWaker(tmp_path)
    yield waker
    waker.close()


def end_of_job(waker: DaemonLoopWaker) -> None:
    """What EpilogSlurmctld does."""
    fd = os.open(waker.path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, b"j")
    os.close(fd)


def test_jobs_that_end_by_the_hundred_wake_the_loop_a_few_times(waker: DaemonLoopWaker):
    assert waker.path.name == FIFO_NAME
    woken = 0
    for _ in range(300):
        end_of_job(waker)
        woken += waker.wait(0)
    assert 1 <= woken <= 15


def test_an_event_wakes_the_loop_amid_them(waker: DaemonLoopWaker):
    for _ in range(100):
        end_of_job(waker)
        waker.wait(0)
    end_of_job(waker)
    waker.poke()
    end_of_job(waker)
    assert waker.wait(0)
    assert not waker.wait(0)
