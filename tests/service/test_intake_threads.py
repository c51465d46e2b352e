"""The threads of the daemon's side of the intake."""

import threading
from collections import Counter
from typing import Any

from hpctl.service.intake import channel
from hpctl.service.intake.line import IntakeConnection
from hpctl.service.intake.process import IntakeProcess


def count_threads() -> Counter[str]:
    """Return how many threads there are of each pool, by the name of the pool."""
    return Counter(thread.name.rpartition("_")[0] for thread in threading.enumerate())


def test_the_intake_starts_no_thread_when_work_comes() -> None:
    # Thread.start() may never return in a process without memory, and keeps a lock then that every
    # pool of the process needs: the loop stands still until systemd's watchdog ends the daemon.
    before = count_threads()
    backend: Any = None
    intake = IntakeProcess(
        channel.Setup("", (0,), None), "127.0.0.1:0", backend, IntakeConnection()
    )
    try:
        started = count_threads() - before
        wanted = {"intake-reports": 2, "intake-others": 3, "intake-send": 1}
        assert {name: started[name] for name in wanted} == wanted
    finally:
        intake.stop()
