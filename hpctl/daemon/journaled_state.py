"""The state in memory: what the journal's events amount to, and how old events leave both."""

import logging
import time
from collections.abc import Callable, Sequence

from hpctl.core.bounds import later
from hpctl.core.catalogue import Rules
from hpctl.core.journal import Event, State, replay
from hpctl.core.kinds import Kind
from hpctl.core.model import SchedulerView
from hpctl.core.policy import Policy
from hpctl.core.retire import retire, window_s
from hpctl.ports import Clock, Journal
from hpctl.store.sql import Store

log = logging.getLogger(__name__)

FIRST_S = 600.0
"""Not before: who restarts a daemon in need waits for it, and a year's journal takes seconds."""
EVERY_S = 86400.0
MOST = 100_000
"""Events in one go, so that neither the lease nor systemd's patience runs out over the years that
a daemon finds when it is the first to retire any."""
AGAIN_S = 60.0


class JournaledState:
    """The loop changes it; other threads may read `state`."""

    def __init__(self, journal: Journal, took: Callable[[float], None] = lambda _: None) -> None:
        """Replay the journal. Raises Unavailable, JournalCorrupt, core.journal.Corrupt.

        `took` hears how many seconds each append took.
        """
        self._journal, self._took = journal, took
        self.state = State()
        self.reread()

    def reread(self) -> None:
        """Replay the journal again, after a write whose outcome is unknown. Raises as above."""
        state = replay(self._journal.events())
        state.retired = self._journal.retired()
        self.state = state

    def follow(self, store: Store) -> None:
        """Fold what another daemon has appended since. Raises as above."""
        for event in store.events(after=store.position):
            self.state.fold(event)

    def append(self, events: Sequence[Event]) -> None:
        """Journal first, memory second: what is not on disk has not happened."""
        began = time.monotonic()
        self._journal.append(events)
        if events:
            self._took(time.monotonic() - began)
        for event in events:
            self.state.fold(event)


class Retirement:
    """For the loop's thread, between two cycles: nobody reads its state then."""

    def __init__(
        self, store: Store, memory: JournaledState, clock: Clock, kinds: Sequence[Kind]
    ) -> None:
        """Nothing is due within the first FIRST_S seconds."""
        self._store, self._memory, self._clock = store, memory, clock
        self._kinds = kinds
        self._due = clock.monotonic() + FIRST_S
        self._moved = 0

    def look(self, slurm: SchedulerView, policy: Policy, rules: Rules, keep_days: int) -> None:
        """Do it where it is due. `slurm`: as it was just read; the past of its jobs stays.

        Raises what the journal raises; what was under way then is tried again in a day.
        """
        if self._clock.monotonic() < self._due:
            return
        self._due = self._clock.monotonic() + EVERY_S
        now = self._clock.now()
        before = later(now, -window_s(policy, rules))
        retired = retire(self._memory.state, before, slurm.jobs, self._kinds)
        moved = self._store.retire(retired.over, MOST)
        self._moved += moved
        if moved >= MOST:
            # There may be more: memory of too much does no harm meanwhile.
            self._due = self._clock.monotonic() + AGAIN_S
            return
        self._store.forget(later(now, -86400.0 * keep_days))
        if self._moved:
            self._memory.reread()
            log.info("retired=%d", self._moved)
            self._moved = 0
