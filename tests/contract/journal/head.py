"""One head of the fail-over test: the real Store and Leadership, and a file in place of Slurm.

    python -m tests.contract.journal.head URL NAME EFFECTS LEASE_S

Each effect is a line of EFFECTS: epoch, intent, the host's seconds immediately before. An intent is
an event of the journal, appended before the effect. A line on standard output says when it leads.
"""

import os
import sys
import time
from datetime import datetime

from hpctl.core.compat import UTC
from hpctl.daemon.leadership import Leadership, boottime
from hpctl.errors import Unavailable
from hpctl.store.rows import Holder
from hpctl.store.sql import LeaseLost, Store
from tests.contract.journal.events import numbers, signal


class SteppedClock:
    """A wall clock that somebody sets forth and back by a day, every second."""

    def now(self) -> datetime:
        step = 86400.0 * (int(boottime()) % 3 - 1)
        return datetime.fromtimestamp(time.time() + step, UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def live(url: str, name: str, effects: int, lease_s: float) -> None:
    """Stand by, lead, act; until another one leads."""
    store = Store(url, write=True)
    me = Holder(name, os.getpid(), "0", "own", f"{name}:1")
    head = Leadership(store, me, lease_s, SteppedClock(), shared=True)
    try:
        while not head.try_to_lead():
            head.note_standby()
            time.sleep(head.poll_s)
        info, done = store.daemon(), list(numbers(store.events()))
        assert info is not None
        print(f"{info.epoch} {boottime()}", flush=True)
        for intent in range(len(done), 1_000_000):
            head.progress()
            store.append([signal(intent)])
            if head.may_act():
                os.write(effects, f"{info.epoch} {intent} {boottime()}\n".encode())
            time.sleep(0.01)
    finally:
        store.close()


def main(url: str, name: str, path: str, lease_s: str) -> None:
    effects = os.open(path, os.O_WRONLY | os.O_APPEND)
    while True:
        try:
            live(url, name, effects, float(lease_s))
        except (LeaseLost, OSError, Unavailable):
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
