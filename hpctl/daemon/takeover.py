"""What a daemon does once, when it has got the lease, before its first cycle."""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpctl import __version__
from hpctl.daemon.configuration_audit import ConfigurationChangeRecorder
from hpctl.daemon.journal_guard import JournalAvailabilityGuard
from hpctl.daemon.signals import DaemonSignalHandler
from hpctl.engine.journal.events import DaemonStarted
from hpctl.engine.journal.state import EngineState
from hpctl.engine.journal.store import JournalStore
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.leadership import Leadership
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.node_health import NodeHealthStore, drop_findings_of_checks
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.ports import Clock


@dataclass(kw_only=True, eq=False)
class LeadershipTakeover:
    """Takes the journal as it is, and writes down that this daemon acts from here on."""

    live: LiveConfig
    store: JournalStore
    memory: JournaledState
    health: NodeHealthStore
    leadership: Leadership
    audit: ConfigurationChangeRecorder
    journal: JournalAvailabilityGuard
    signals: DaemonSignalHandler
    clock: Clock
    shared: bool
    """Several heads share the database: one that is away is waited for."""
    local_checks: tuple[str, ...] = ()
    """Checks whose findings each head keeps for itself: how their names begin."""
    on_takeover: Sequence[Callable[[EngineState], None]] = ()
    """Each is called with the state that this daemon starts from."""

    def run(self) -> None:
        """Wait until it is done, or the daemon is to stop. Raises LeaseLostError,
        CorruptJournalError, Corrupt; OSError and Unavailable where no other head could lead
        instead."""
        while not self.signals.stopping:
            self.leadership.progress()
            try:
                self._take_over_journal()
                break
            except (OSError, ServiceUnavailable) as error:
                if not self.shared:
                    raise
                self.journal.wait(error)
        self.leadership.mark_leader_state_caught_up()

    def _take_over_journal(self) -> None:
        if self.shared:
            self.memory.take_over(self.store)
            self.health.take_over(drop_findings_of_checks(self.store.health(), self.local_checks))
        for begin in self.on_takeover:
            begin(self.memory.state)
        started = DaemonStarted(
            self.clock.now(), __version__, self.live.config.mode, socket.gethostname(), os.getpid()
        )
        self.memory.append([started])
        self.audit.write()
