"""One head of the fail-over test: the real Store and Leadership, and a file in place of Slurm.

    python -m tests.engine.journal.head URL NAME EFFECTS LEASE_S

Each effect is a line of EFFECTS: epoch, intent, the host's seconds immediately before. An intent is
an event of the journal, appended before the effect. A line on standard output says when it leads.
"""

import contextlib
import os
import sys
import time
from datetime import datetime

from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.store import JournalStore, LeaseLostError
from hpctl.engine.leadership import Leadership, LeaseTerms, read_seconds_since_boot
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from tests.engine.journal.events import signal


class SteppedClock:
    """A wall clock that somebody sets forth and back by a day, every second."""

    def now(self) -> datetime:
        step = 86400.0 * (int(read_seconds_since_boot()) % 3 - 1)
        return datetime.fromtimestamp(time.time() + step, UTC)

    def monotonic(self) -> float:
        return time.monotonic()


def live(url: str, name: str, effects: int, lease_s: float) -> None:
    """Stand by, lead, act; until another one leads."""
    store = JournalStore(url)
    me = DaemonIdentity(name, os.getpid(), "0", "own", f"{name}:1")
    head = Leadership(store, me, LeaseTerms(lease_s, shared=True), SteppedClock())
    known = 0
    try:
        while not head.try_to_lead():
            known += sum(1 for _ in store.events(after=store.position))
            head.record_standby_heartbeat()
            time.sleep(head.poll_s)
        info = store.daemon()
        assert info is not None
        print(f"{info.epoch} {read_seconds_since_boot()}", flush=True)
        known += sum(1 for _ in store.events(after=store.position))
        for intent in range(known, 1_000_000):
            head.progress()
            store.append([signal(intent)])
            if head.may_act():
                os.write(effects, f"{info.epoch} {intent} {read_seconds_since_boot()}\n".encode())
            time.sleep(0.01)
    finally:
        # Its thread would go on to renew what this head has given up.
        with contextlib.suppress(LeaseLostError, OSError, ServiceUnavailable):
            head.release()
        store.close()


def main(url: str, name: str, path: str, lease_s: str) -> None:
    effects = os.open(path, os.O_WRONLY | os.O_APPEND)
    while True:
        try:
            live(url, name, effects, float(lease_s))
        except (LeaseLostError, OSError, ServiceUnavailable):
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
