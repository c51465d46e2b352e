"""A daemon without the lease: it follows the journal, and takes the lease where it has run out."""

import logging
import math
import time
from dataclasses import dataclass

from hpctl.daemon.controller_watch import ActiveControllerPoller
from hpctl.daemon.readiness import ReadinessNotifier
from hpctl.daemon.reload import ConfigReload
from hpctl.daemon.signals import DaemonSignalHandler
from hpctl.engine.journal.store import JournalStore
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.leadership import Leadership
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.wake import DaemonLoopWaker
from hpctl.toolkit.errors import ServiceUnavailable

log = logging.getLogger("hpctl.daemon")

REREAD_S = 86400.0
"""How often a standby replays the whole journal, in seconds: for what the leader has retired."""


@dataclass(kw_only=True, eq=False)
class StandbyDaemon:
    """Waits for the lease of a database that several heads share."""

    live: LiveConfig
    store: JournalStore
    memory: JournaledState
    leadership: Leadership
    controllers: ActiveControllerPoller
    readiness: ReadinessNotifier
    signals: DaemonSignalHandler
    reload: ConfigReload
    waker: DaemonLoopWaker

    def run(self) -> None:
        """Wait until this daemon has the lease, or is to stop. Raises CorruptJournalError,
        InconsistentEventError."""
        config = self.live.config
        log.info("standing by address=%s lease=%.1fs", config.address, config.lease_s)
        self.readiness.announce_standby()
        self.controllers.start()
        follower = _JournalFollower(self.store, self.memory, self.leadership, config.lease_s / 3)
        trouble = ""
        while not self.signals.stopping:
            self.readiness.send_watchdog_keepalive()
            try:
                if self.leadership.try_to_lead():
                    return
                follower.follow()
                trouble = ""
            except (OSError, ServiceUnavailable) as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.error("trouble=%s", trouble)
            if self.signals.consume_reload_request():
                self.reload.run()
            self.waker.wait(self.leadership.poll_s)


class _JournalFollower:
    """Keeps the memory of a standby as the journal is, and says that the standby lives."""

    def __init__(
        self,
        store: JournalStore,
        memory: JournaledState,
        leadership: Leadership,
        note_every_s: float,
    ) -> None:
        self._store, self._memory, self._leadership = store, memory, leadership
        self._note_every_s = note_every_s
        self._noted = -math.inf
        self._reread_at = time.monotonic() + REREAD_S

    def follow(self) -> None:
        """Once. Raises OSError, Unavailable, CorruptJournalError, InconsistentEventError."""
        self._memory.follow(self._store)
        now = time.monotonic()
        if now - self._noted >= self._note_every_s:
            self._noted = now
            self._leadership.record_standby_heartbeat()
        if now > self._reread_at:
            self._reread_at = now + REREAD_S
            self._memory.reread()
