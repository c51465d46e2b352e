"""The state in memory: what the journal's events amount to, and how old events leave both."""

import time
from collections.abc import Callable, Sequence

from hpctl.engine.journal.events import Event
from hpctl.engine.journal.port import Journal
from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.engine.journal.store import JournalStore


class JournaledState:
    """The loop changes it; other threads may read `state`."""

    def __init__(self, journal: Journal, took: Callable[[float], None] = lambda _: None) -> None:
        """Replay the journal. Raises Unavailable, CorruptJournalError, journal.state.Corrupt.

        `took` hears how many seconds each append took.
        """
        self._journal, self._took = journal, took
        self.state = EngineState()
        self.reread()

    def reread(self) -> None:
        """Replay the journal again, after a write whose outcome is unknown. Raises as above."""
        state = replay_events(self._journal.events())
        state.retired = self._journal.list_retired_recovery_ids()
        self.state = state

    def follow(self, store: JournalStore) -> None:
        """Fold what another daemon has appended since. Raises as above."""
        for event in store.events(after=store.position):
            self.state.fold(event)

    def take_over(self, store: JournalStore) -> None:
        """Fold what another daemon has appended and retired. Raises as above."""
        self.follow(store)
        self.state.retired = store.list_retired_recovery_ids()

    def append(self, events: Sequence[Event]) -> None:
        """Journal first, memory second: what is not on disk has not happened."""
        began = time.monotonic()
        self._journal.append(events)
        if events:
            self._took(time.monotonic() - began)
        for event in events:
            self.state.fold(event)
