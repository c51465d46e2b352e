"""What happens, in one queue: threads and signal handlers put in, the loop alone takes out."""

from __future__ import annotations

import queue
from dataclasses import dataclass

from hpctl.core.trouble import Trouble
from hpctl.jobs.run.launch import Step
from hpctl.jobs.run.said import Line


@dataclass(frozen=True, slots=True)
class StepEnded:
    """srun is gone. `code` is the shell's."""

    step: Step
    code: int


@dataclass(frozen=True, slots=True)
class Signalled:
    """A signal reached the supervisor."""

    number: int


Event = StepEnded | Signalled | Line | Trouble


class Events:
    """The queue. `put` may be called from a signal handler."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.put = self._queue.put

    def next(self, seconds: float) -> Event | None:
        """The next event, None where there is none for so long."""
        try:
            return self._queue.get(timeout=seconds) if seconds > 0 else self._queue.get_nowait()
        except queue.Empty:
            return None

    def forget(self) -> None:
        """Drop what was still said of the step before. Signals are for the run, and stay."""
        kept = []
        while (event := self.next(0)) is not None:
            kept += [event] if isinstance(event, Signalled) else []
        for event in kept:
            self.put(event)
