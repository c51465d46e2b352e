"""What a durable step costs: an append of three events, on stable storage when it returns."""

import sqlite3
import tempfile
from datetime import datetime
from pathlib import Path

from benchmarks.table import Outcome, Row, median, p99, seconds_of
from hpctl.engine.journal.events import Event, SignalSeen, StepResolved, StepStarted
from hpctl.engine.journal.rows import DaemonIdentity, encode_event
from hpctl.engine.journal.store import JournalStore
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import RecoveryId
from hpctl.vocabulary.outcome import Outcome as StepOutcome
from hpctl.vocabulary.recovery import StepKind

RUNS = 500
NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
RID = RecoveryId("n-0123abcd")
BATCH: tuple[Event, ...] = (
    StepStarted(NOW, RID, StepKind.DRAIN, 1, "ip-10-1-2-3", "GPU has fallen off the bus"),
    StepResolved(NOW, RID, StepKind.DRAIN, 1, StepOutcome.accepted()),
    SignalSeen(NOW, RID, "cordon_seen", "slurmctld shows DRAIN with our Reason"),
)


def run() -> Outcome:
    """The Store with its lease against the bare module with the same rows and pragmas."""
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as directory:
        store = JournalStore(f"sqlite:///{directory}/journal.db")
        store.take_lease(DaemonIdentity("bench", 1, "0", "own", ""), store.daemon(), NOW, 3600)
        bare = _Bare(Path(directory) / "bare.db")
        ours: list[float] = []
        rival: list[float] = []
        # In turn, so that a busy disk hits both alike.
        for _ in range(RUNS):
            ours += seconds_of(lambda: store.append(BATCH), 1)
            rival += seconds_of(bare.append, 1)
        store.close()
        bare.connection.close()
    name = "bare sqlite3, same rows and pragmas"
    rows = [
        Row("append of 3 events, median", 1e3 * median(ours), "ms", name, 1e3 * median(rival)),
        Row("append of 3 events, p99", 1e3 * p99(ours), "ms", name, 1e3 * p99(rival)),
    ]
    note = f"{RUNS} appends each, in turn; journal_mode=WAL, synchronous=FULL"
    return Outcome("journal", rows, [note, "ours also encodes the events and checks the lease"])


class _Bare:
    """The least that SQLite itself needs for the same promise."""

    def __init__(self, path: Path) -> None:
        self.connection = sqlite3.connect(path)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000"):
            self.connection.execute(f"PRAGMA {pragma}")
        self.connection.execute(
            "CREATE TABLE events (seq INTEGER PRIMARY KEY AUTOINCREMENT,"
            " kind TEXT NOT NULL, payload TEXT NOT NULL)"
        )
        self.connection.execute("CREATE INDEX by_kind ON events (kind)")
        self._rows = [encode_event(event) for event in BATCH]

    def append(self) -> None:
        with self.connection:
            self.connection.executemany(
                "INSERT INTO events (kind, payload) VALUES (?, ?)", self._rows
            )
