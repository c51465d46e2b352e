"""Watching one sandbox's slurmctld from outside: when a thing first became true, by the clock.

hpctl's own journal is not asked: the figures of the demo are what an outsider sees in Slurm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hpctl.config import load
from hpctl.core.model import JobId, NodeName, SchedulerView, SlurmJob, SlurmNode
from hpctl.errors import Unavailable
from hpctl.sandbox.api import Sandbox
from hpctl.wiring import make_scheduler

Test = Callable[[SchedulerView], bool]


class Watch:
    """Polls `scontrol` in a thread; marks the monotonic time at which each test first held."""

    def __init__(self, sandbox: Sandbox, interval_s: float = 0.05) -> None:
        """Nothing is read before the `with` block begins."""
        self._scheduler = make_scheduler(load(sandbox.config_path))
        self._interval_s = interval_s
        self._tests: dict[str, Test] = {}
        self._marks: dict[str, float] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.view: SchedulerView | None = None

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def expect(self, name: str, test: Test) -> None:
        """Begin to look for something; a former mark of that name is forgotten."""
        with self._changed:
            self._marks.pop(name, None)
            self._tests[name] = test

    def seen(self, name: str) -> float | None:
        """When the test first held, on the monotonic clock."""
        with self._changed:
            return self._marks.get(name)

    def wait(self, name: str, timeout_s: float) -> float:
        """Wait until it holds; answers when that was. Raises Unavailable when it did not."""
        with self._changed:
            if not self._changed.wait_for(lambda: name in self._marks, timeout_s):
                raise Unavailable(f"{name}: not seen within {timeout_s:g} s")
            return self._marks[name]

    def job(self, job: int) -> SlurmJob | None:
        """A job as last seen."""
        return self.view.jobs.get(JobId(job)) if self.view else None

    def node(self, node: str) -> SlurmNode | None:
        """A node as last seen."""
        return self.view.nodes.get(NodeName(node)) if self.view else None

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                view = self._scheduler.view()
            except Unavailable:
                self._stop.wait(self._interval_s)
                continue
            seen = time.monotonic()
            with self._changed:
                self.view = view
                held = [n for n, t in self._tests.items() if t(view)]
                for name in held:
                    self._marks[name] = seen
                    del self._tests[name]
                self._changed.notify_all()
            self._stop.wait(self._interval_s)


def runs(job: int, restarts: int = 0) -> Test:
    """The job is RUNNING, in its given or a later attempt."""

    def test(view: SchedulerView) -> bool:
        known = view.jobs.get(JobId(job))
        return known is not None and known.state == "RUNNING" and known.restarts >= restarts

    return test


def ended(job: int) -> Test:
    """The job has completed, or slurmctld has forgotten it."""

    def test(view: SchedulerView) -> bool:
        known = view.jobs.get(JobId(job))
        if known is None:
            return True
        return not known.running and known.state != "PENDING" and not known.completing

    return test


def drained(node: str) -> Test:
    """The node is closed to new work."""

    def test(view: SchedulerView) -> bool:
        known = view.nodes.get(NodeName(node))
        return known is not None and known.drained

    return test


def in_service(node: str) -> Test:
    """The node takes work again."""

    def test(view: SchedulerView) -> bool:
        known = view.nodes.get(NodeName(node))
        return known is not None and known.in_service and known.responding

    return test
