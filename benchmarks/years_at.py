"""One journal, in a process of its own: `python -m benchmarks.years_at measure|retire FOLDER`.

A process each, because memory that was once taken would hide what the next one needs.
"""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.cycle_at import Bench, peak_mb
from benchmarks.table import median
from benchmarks.world import CAREFUL, CLOCK, NODES_OF_YEARS, World
from hpctl.engine.journal.events import NodeRecoveryOpened
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.state import replay_events
from hpctl.engine.journal.store import JournalStore
from hpctl.engine.retire import compute_journal_lookback_s, find_retirable_journal_records
from hpctl.faults.catalogue import build_fault_rules
from hpctl.vocabulary.policy import RecoveryPolicy

CYCLES = 9


def measure(folder: Path) -> dict[str, Any]:
    """The daemon's start from this journal, its memory then, and its cycle."""
    world = World(NODES_OF_YEARS, NODES_OF_YEARS // 10)
    begun = time.perf_counter()
    bench = Bench(world, folder)
    start_s, mb = time.perf_counter() - begun, peak_mb()
    cycles = [bench.cycle(CAREFUL) for _ in range(CYCLES)]
    found = {"start_s": start_s, "mb": mb, "cycle_s": median(cycles)}
    return {**found, "events": bench.loop.state.events}


def retire_all(folder: Path) -> dict[str, Any]:
    """Retire what is past, as a daemon does that meets such a journal for the first time; and a
    day's, as every day. `oldest`: the id of a recovery that is past."""
    store = JournalStore(f"sqlite:///{folder}/journal.db")
    store.take_lease(DaemonIdentity("bench", 1, "0", "own", ""), store.daemon(), CLOCK.now(), 3600)
    # What has a day of its own stays for the second time.
    first_s = _retire(store, timedelta(days=1))
    daily_s = _retire(store, timedelta())
    opened = (e for e in store.events(past=True) if isinstance(e, NodeRecoveryOpened))
    return {"first_s": first_s, "daily_s": daily_s, "oldest": next(opened).recovery}


def _retire(store: JournalStore, earlier: timedelta) -> float:
    state = replay_events(store.events())
    known = time.perf_counter()
    before = (
        CLOCK.now()
        - earlier
        - timedelta(seconds=compute_journal_lookback_s(RecoveryPolicy(), build_fault_rules()))
    )
    assert store.retire(find_retirable_journal_records(state, before, ()).over)
    replay_events(store.events())
    # The daemon knows its state already when it begins.
    return time.perf_counter() - known


if __name__ == "__main__":
    work = {"measure": measure, "retire": retire_all}[sys.argv[1]]
    print(json.dumps(work(Path(sys.argv[2]))))
