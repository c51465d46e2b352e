"""Real runs of torch (`rank.py`) under the real check of the agent and the daemon's watch."""

import contextlib
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

from msgspec import Struct, field

from hpctl.detection.check import CheckedMachine
from hpctl.detection.checks import job_activity as activity
from hpctl.jobs.hangs.daemon import HangDetector
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.policy import JobHangPolicy
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob
from tests.fakes.values import generation

HANGS = ("sleep", "spin", "loader", "file", "mismatch")
SOUND = ("evaluate", "checkpoint", "stall", "compile")
UNIT, AT, LOOK_S = 0.1, 80, 1.0
"""Seconds a second of the runs; the step at which something happens; the agent looks each 10 s."""
NODE, BEGIN = NodeName("n1"), datetime(2026, 1, 1, tzinfo=UTC)
POLICY = JobHangPolicy(floor_s=120 * UNIT, cap_s=1800 * UNIT, start_s=1800 * UNIT)
MOST_LOOKS = 500


class Clock:
    """Time as these runs have it: where the whole machine stood still they did, too."""

    def __init__(self) -> None:
        self._real, self.now = time.monotonic(), 0.0

    def tick(self) -> datetime:
        """Another look."""
        real = time.monotonic()
        self.now, self._real = self.now + min(real - self._real, 2 * LOOK_S), real
        return BEGIN + timedelta(seconds=self.now)


class Run(Struct):
    """One run and what was seen of it. Times are the Clock's."""

    job: JobId
    kind: str
    group: int = 0
    began: float | None = None
    done: bool = False
    found: float | None = None
    why: str = ""
    trace: list[tuple[float, dict[str, float]]] = field(default_factory=list)

    @property
    def hangs(self) -> bool:
        """Whether it is one of those that hang."""
        return self.kind in HANGS

    @property
    def over(self) -> bool:
        """Whether all was seen that is to be seen."""
        return self.found is not None if self.hangs else self.done

    @property
    def false_alarm(self) -> bool:
        """Whether it was called hung while it was sound."""
        early = self.began is None or (self.found or 0.0) < self.began
        return self.found is not None and (not self.hangs or early)

    @property
    def took_s(self) -> float:
        """From the hang to its being found, in seconds of the run."""
        return ((self.found or 1e9) - (self.began or 0.0)) / UNIT


class _Groups:
    """In place of Slurm's control groups: the process group of each run."""

    def __init__(self, runs: list[Run]) -> None:
        self._jobs = {run.group: str(run.job) for run in runs}

    def holder(self, pid: int) -> str:
        """The job of a process. Raises OSError where it has ended."""
        return self._jobs.get(os.getpgid(pid), "")


def chosen(count: int, kinds: tuple[str, ...], seed: int) -> list[str]:
    """So many kinds, each as often as the others, in an order by the seed."""
    found = [kinds[n % len(kinds)] for n in range(count)]
    random.Random(seed).shuffle(found)
    return found


def watched(kinds: list[str], monkeypatch) -> list[Run]:
    """Start these runs at once, watch them until all is seen, and end them."""
    runs = [Run(JobId(n + 1), kind) for n, kind in enumerate(kinds)]
    monkeypatch.setattr(activity, "RANK_S", 2.0 * UNIT)
    monkeypatch.setattr(activity, "ProcessJobFinder", lambda _: _Groups(runs))
    argv = [str(Path(__file__).with_name("rank.py")), str(UNIT), str(AT)]
    argv += [f"{run.job}:{run.kind}" for run in runs]
    pipe = subprocess.Popen(
        [sys.executable, *argv], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert pipe.stdout is not None
    try:
        _follow(runs, pipe.stdout.fileno())
    finally:
        for run in runs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.group, signal.SIGKILL) if run.group else None
        pipe.kill()
        pipe.wait()
        pipe.stdout.close()
    return runs


def _follow(runs: list[Run], told: int) -> None:
    watch, clock, before = HangDetector(), Clock(), None
    machine = CheckedMachine(monotonic=lambda: clock.now)
    jobs = {r.job: SlurmJob(r.job, "RUNNING", BEGIN, nodes=(NODE,)) for r in runs}
    with selectors.DefaultSelector() as selector:
        selector.register(told, selectors.EVENT_READ)
        for _ in range(MOST_LOOKS):
            due = time.monotonic() + LOOK_S
            while (left := due - time.monotonic()) > 0:
                if selector.select(left):
                    _hear(runs, os.read(told, 4096).decode(), clock.now)
            now = clock.tick()
            seen = activity.sample_job_processes(machine)
            gauges, before = activity.compute_job_activity_gauges(seen, before), seen
            watch.hear(generation(NODE), gauges)
            found = watch.look(SchedulerView(now, jobs=jobs), now, POLICY)
            for run in runs:
                mine = f"job.{run.job}."
                run.trace.append((seen.at, {k: v for k, v in gauges.items() if k.startswith(mine)}))
                if run.job in found and run.found is None:
                    run.found, run.why = clock.now, found[run.job].why
            if all(run.over for run in runs):
                return


def _hear(runs: list[Run], text: str, now: float) -> None:
    activity.clear_job_process_cache()
    for line in text.splitlines():
        job, what, *more = line.split()
        run = runs[int(job) - 1]
        if what == "group":
            run.group = int(more[0])
        elif what == "at":
            run.began = now
        else:
            run.done = True
