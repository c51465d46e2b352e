"""Once a day: what ended long ago leaves the journal's working part, and its past in the end."""

from __future__ import annotations

import logging

from hpctl.core.bounds import later
from hpctl.core.catalogue import Rules
from hpctl.core.model import SchedulerView
from hpctl.core.policy import Policy
from hpctl.core.retire import retire, window_s
from hpctl.daemon.loop import Loop
from hpctl.ports import Clock
from hpctl.store.sql import Store

log = logging.getLogger(__name__)

FIRST_S = 600.0
"""Not before: who restarts a daemon in need waits for it, and a year's journal takes seconds."""
EVERY_S = 86400.0
MOST = 100_000
"""Events in one go, so that neither the lease nor systemd's patience runs out over the years that
a daemon finds when it is the first to retire any."""
AGAIN_S = 60.0


class Retirement:
    """The loop's, between two cycles: nobody looks at its memory then."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Nothing is due within the first FIRST_S seconds."""
        self._store, self._clock = store, clock
        self._due = clock.monotonic() + FIRST_S
        self._moved = 0

    def look(
        self, loop: Loop, slurm: SchedulerView, policy: Policy, rules: Rules, keep_days: int
    ) -> None:
        """Do it where it is due. `slurm`: as it was just read; the past of its jobs stays.

        Raises what the journal raises; what was under way then is tried again in a day.
        """
        if self._clock.monotonic() < self._due:
            return
        self._due = self._clock.monotonic() + EVERY_S
        now = self._clock.now()
        before = later(now, -window_s(policy, rules))
        moved = self._store.retire(retire(loop.state, before, slurm.jobs).over, MOST)
        self._moved += moved
        if moved >= MOST:
            # There may be more: memory of too much does no harm meanwhile.
            self._due = self._clock.monotonic() + AGAIN_S
            return
        self._store.forget(later(now, -86400.0 * keep_days))
        if self._moved:
            loop.reread()
            log.info("retired=%d", self._moved)
            self._moved = 0
