"""How old events leave memory and journal."""

import logging
from collections.abc import Sequence

from hpctl.engine.journal.store import JournalStore
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.kinds import RecoveryKind
from hpctl.engine.retire import compute_journal_lookback_s, find_retirable_journal_records
from hpctl.faults.catalogue import FaultRules
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.ports import Clock
from hpctl.vocabulary.slurm_facts import SchedulerView

log = logging.getLogger(__name__)


FIRST_S = 600.0
"""Not before: who restarts a daemon in need waits for it, and a year's journal takes seconds."""


EVERY_S = 86400.0


MOST = 100_000
"""Events in one go, so that neither the lease nor systemd's patience runs out over the years that
a daemon finds when it is the first to retire any."""


AGAIN_S = 60.0


class JournalRetirementTask:
    """For the loop's thread, between two cycles: its state has no reader then."""

    def __init__(
        self,
        store: JournalStore,
        memory: JournaledState,
        clock: Clock,
        kinds: Sequence[RecoveryKind],
    ) -> None:
        """Nothing is due within the first FIRST_S seconds."""
        self._store, self._memory, self._clock = store, memory, clock
        self._kinds = kinds
        self._due = clock.monotonic() + FIRST_S
        self._moved = 0

    def look(
        self, slurm: SchedulerView, policy: RecoveryPolicy, rules: FaultRules, keep_days: int
    ) -> None:
        """Do it where it is due. `slurm`: as it was just read; the past of its jobs stays.

        Raises what the journal raises; what was under way then is tried again in a day.
        """
        if self._clock.monotonic() < self._due:
            return
        self._due = self._clock.monotonic() + EVERY_S
        now = self._clock.now()
        before = add_seconds_within_bounds(now, -compute_journal_lookback_s(policy, rules))
        retired = find_retirable_journal_records(
            self._memory.state, before, slurm.jobs, self._kinds
        )
        moved = self._store.retire(retired.over, MOST)
        self._moved += moved
        if moved >= MOST:
            # There may be more: memory of too much does no harm meanwhile.
            self._due = self._clock.monotonic() + AGAIN_S
            return
        self._store.forget(add_seconds_within_bounds(now, -86400.0 * keep_days))
        if self._moved:
            self._memory.reread()
            log.info("retired=%d", self._moved)
            self._moved = 0
