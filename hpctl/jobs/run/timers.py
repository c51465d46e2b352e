"""When something is due, by the monotonic clock."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime

from hpctl.core.trouble import Kind, Trouble
from hpctl.jobs.resume import ResumePoint, newest
from hpctl.jobs.run.allocation import AllocationState
from hpctl.jobs.run.launch import RunningStep
from hpctl.jobs.run.settings import RunSettings


class StepTimers:
    """When something is due. Seconds of the monotonic clock."""

    POLL_S = 30.0
    """How often slurmctld is asked about the job while all is well: one RPC, twice a minute."""
    CREATED_S = 3.0
    """After which a step should have been created."""
    GROW_S = 60.0
    """How often a smaller run looks for a newer checkpoint and for room."""
    LIMIT_S = 30.0
    """Beside the time to save, what is left of the time limit for the requeue."""

    def __init__(self, given: RunSettings) -> None:
        self._given = given
        self._kill = self._poll = self._grow = self._create = float("inf")
        self._ended = 0.0
        self._limit_told = False
        self._saved = ResumePoint(judged=False)
        self._trained = False
        self.restart_s: float | None = None
        """From the end of a step to the first training step of the next, as measured last."""

    def began(self, step: RunningStep, resume: ResumePoint) -> None:
        """A step was launched."""
        self._saved, self._trained = resume, False
        self._kill, self._poll = float("inf"), step.began + self.POLL_S
        self._grow, self._create = step.began + self.GROW_S, step.began + self.CREATED_S

    def ended(self) -> None:
        """It is over."""
        self._ended = time.monotonic()

    def kill_by(self, seconds: float) -> None:
        """End the step in so many seconds, if not before."""
        self._kill = min(self._kill, time.monotonic() + seconds)

    def wait_s(self, most: float) -> float:
        """How long the loop may wait for an event, so that it is not late."""
        return max(0.0, min(most, self._kill - time.monotonic()))

    def kill_due(self) -> bool:
        """Whether the step is to be ended now."""
        return time.monotonic() >= self._kill

    def created_due(self) -> bool:
        """Whether to see that the step was created: once."""
        if time.monotonic() < self._create:
            return False
        self._create = float("inf")
        return True

    def poll_due(self) -> bool:
        """Whether to ask about the job; if so, not again for a while."""
        if time.monotonic() < self._poll:
            return False
        self._poll = time.monotonic() + self.POLL_S
        return True

    def with_progress(self, trouble: Trouble) -> Trouble:
        """A trouble that names the newest complete checkpoint."""
        if trouble.progress is not None:
            return trouble
        return replace(trouble, progress=newest(self._given.directory).step)

    def growth_due(self, trained: int | None) -> bool:
        """Whether a newer checkpoint is there, looked for now and then. `trained`: the last
        training step that the ranks reported."""
        if not self._trained and trained is not None:
            self._trained = True
            self.restart_s = time.monotonic() - self._ended if self._ended else None
        if time.monotonic() < self._grow:
            return False
        self._grow = time.monotonic() + self.GROW_S
        found = newest(self._given.directory)
        fresh = found.path is not None and found != self._saved
        self._saved = found
        return fresh

    def time_limit(self, allocation: AllocationState, now: datetime) -> Trouble | None:
        """The time limit is near: once, and only where a save is worth a requeue."""
        left = allocation.left_s(now)
        if self._limit_told or self._given.directory is None or left is None:
            return None
        whole = allocation.whole_s or float("inf")
        if left > min(self._given.policy.save_grace_s + self.LIMIT_S, whole / 4):
            return None
        self._limit_told = True
        why = f"{left:.0f} s are left of the time limit"
        return Trouble(Kind.TIME_LIMIT, now, why, signature="time limit")
