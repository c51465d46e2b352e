"""A journal that cannot be written: a full disk, a database that is away.

Nothing is done and no report is accepted until the journal can be written again. What was under
way is in doubt then, as after a crash; so the journal is read again. A journal in a file has a
reserve for a full disk (`hpctl.engine.journal.reserve`).
"""

import logging

from hpctl.engine.journal.reserve import JournalDiskReserve
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.wake import DaemonLoopWaker
from hpctl.toolkit.errors import ServiceUnavailable

log = logging.getLogger("hpctl.daemon")

RETRY_S = 1.0
"""How long to wait before a journal that cannot be written is tried again."""


class JournalAvailabilityGuard:
    """Waits for the journal, and reads it again after a write whose outcome is unknown."""

    def __init__(
        self,
        memory: JournaledState,
        waker: DaemonLoopWaker,
        reserve: JournalDiskReserve | None = None,
    ) -> None:
        """The memory is as the journal says. `reserve` None: the journal is in a database."""
        self._memory, self._waker, self._reserve = memory, waker, reserve
        self._stale = False

    def replay_journal_if_stale(self) -> None:
        """Replay the journal where the last attempt failed. Raises as `reread` does."""
        if self._stale:
            self.reread()

    def reread(self) -> None:
        """Replay the journal. Raises Unavailable, OSError, CorruptJournalError,
        InconsistentEventError."""
        self._stale = True
        self._memory.reread()
        self._stale = False

    def create_disk_reserve(self) -> None:
        """Make the journal's reserve where it is missing and the disk has room. Raises nothing."""
        if self._reserve is not None:
            self._reserve.allocate_reserve_if_due()

    def wait(self, error: Exception) -> None:
        """Log the error, wait, and replay the journal where it can be read. Raises OSError,
        CorruptJournalError, Corrupt."""
        log.error("trouble=%s", error)
        if self._reserve is not None:
            self._reserve.free_space_for_write()
        self._waker.wait(RETRY_S)
        try:
            self.reread()
        except ServiceUnavailable as still:
            log.error("trouble=%s", still)
