"""The life of one daemon: stand by, take over, cycle, end in order, hand over."""

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from msgspec import Struct

from hpctl.daemon.cycle import DaemonCycle
from hpctl.daemon.locks import SlurmClusterLock
from hpctl.daemon.readiness import ReadinessNotifier
from hpctl.daemon.signals import DaemonSignalHandler
from hpctl.daemon.standby import StandbyDaemon
from hpctl.daemon.takeover import LeadershipTakeover
from hpctl.engine.cloud_watch import CloudPoller
from hpctl.engine.execute import StepExecutor
from hpctl.engine.journal.store import JournalStore, LeaseLostError
from hpctl.engine.leadership import Leadership
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.world_server import WorldServer
from hpctl.toolkit.errors import HpctlError
from hpctl.wire import munge

log = logging.getLogger("hpctl.daemon")

SETTLE_S = 10.0
"""For how long a call under way is waited for before the lease is given away, in seconds."""


class BackgroundService(Protocol):
    """What runs next to the loop, on a thread or in a separate process."""

    def start(self) -> None:
        """Begin. Returns at once."""

    def stop(self) -> None:
        """End it. What has not begun is ended as well."""


class Intake(Protocol):
    """Takes what agents, jobs and operators send, on a standby too."""

    def start(self) -> None:
        """Listen and serve. Raises Unavailable where the port cannot be had."""

    def send_leadership_change_now(self) -> None:
        """Tell at once, where that has just changed."""

    def duplicate_listening_socket(self) -> int:
        """Return a descriptor of the listening socket that outlives `stop`."""

    def stop(self, *, wait: bool = True) -> None:
        """End it; without `wait`, leave what is being answered to itself."""


class DaemonRestartRequest(Struct, frozen=True):
    """The program is to be executed again, as a standby in the same process.

    `listener`: the descriptor of the socket that it takes over; None where there is none.
    """

    listener: int | None = None


@dataclass(kw_only=True, eq=False)
class BackgroundThreads:
    """What runs on separate threads while this daemon leads."""

    cloud: CloudPoller
    world: WorldServer
    others: Sequence[BackgroundService] = ()
    senders: Sequence[BackgroundService] = ()
    """Work that writes to the journal's database: it ends before the lease is given away."""

    def start(self) -> None:
        """Start all of it; the readers of the world are served last."""
        self.cloud.start()
        for work in (*self.others, *self.senders):
            work.start()
        self.world.start()

    def stop_lease_dependent_senders(self) -> None:
        """Stop what must not write after the lease is gone."""
        for work in self.senders:
            work.stop()

    def stop(self) -> None:
        """Stop the rest."""
        self.world.stop()
        for work in self.others:
            work.stop()
        self.cloud.stop()


@dataclass(kw_only=True, eq=False)
class DaemonResources:
    """What this process holds until its end."""

    state_lock: IO[str]
    cluster_lock: SlurmClusterLock | None
    """None where the lease of a shared database tells the heads from each other."""
    store: JournalStore

    def close(self) -> None:
        """Release everything but the lock of the state directory, which ends with the process."""
        self.store.close()
        if self.cluster_lock is not None:
            self.cluster_lock.close()


@dataclass(kw_only=True, eq=False)
class Daemon:
    """One daemon, as `hpctl.daemon.composition` assembles it."""

    live: LiveConfig
    shared: bool
    """Several heads share the database."""
    signals: DaemonSignalHandler
    readiness: ReadinessNotifier
    leadership: Leadership
    standby: StandbyDaemon
    takeover: LeadershipTakeover
    cycle: DaemonCycle
    background: BackgroundThreads
    health: NodeHealthStore
    executor: StepExecutor
    held: DaemonResources
    intake: Intake | None = None
    servers: Sequence[BackgroundService] = ()
    """They run for the whole life of this daemon, on a standby too."""
    _began: bool = False

    def run(self) -> DaemonRestartRequest | None:
        """Serve until SIGTERM; return how to go on where this daemon is to be a standby.

        Raises LeaseLostError (the journal is a file), CorruptJournalError, InconsistentEventError;
        OSError at the start.
        """
        self.signals.install()
        if self.intake is not None:
            self.intake.start()
        for server in self.servers:
            server.start()
        _log_munge_failure(self.live.config.intake.munge_socket)
        again = None
        try:
            self._run_cycles_until_stop()
            if not self.signals.stopping:
                again = self._make_restart_request()
        except LeaseLostError as error:
            if not self.shared:
                raise
            log.error("%s", error)
            again = self._make_restart_request()
        finally:
            for server in self.servers:
                server.stop()
            self._release_daemon_resources()
        return None if self.signals.stopping else again

    def _make_restart_request(self) -> DaemonRestartRequest:
        return DaemonRestartRequest(
            self.intake.duplicate_listening_socket() if self.intake is not None else None
        )

    def _run_cycles_until_stop(self) -> None:
        """Until this daemon is to stop, or another one is to lead."""
        if self.shared:
            self.standby.run()
        if not self.signals.stopping:
            self._take_over_leadership()
        while not (self.signals.stopping or self.leadership.hand_over_to):
            self.cycle.run()

    def _take_over_leadership(self) -> None:
        self.takeover.run()
        if self.intake is not None:
            self.intake.send_leadership_change_now()
        self.background.start()
        self._began = True
        if self.shared:
            self.readiness.announce_leader()
        config = self.live.config
        log.info("running mode=%s intake=%s", config.mode, config.intake.listen)

    def _release_daemon_resources(self) -> None:
        """Release in order: no effect under way, then the lease, then the rest."""
        stopping = self.signals.stopping
        self.readiness.announce_stop_or_handover(stopping=stopping)
        self.background.stop_lease_dependent_senders()
        with contextlib.suppress(OSError, HpctlError):  # heartbeats: the agents repeat them
            self._release_lease()
        if self.intake is not None:
            self.intake.stop(wait=stopping)
        if self._began:
            self.background.stop()
        self.held.close()

    def _release_lease(self) -> None:
        """Give the lease away where no effect is under way. Raises OSError, HpctlError."""
        leads = self.leadership.leads
        settled = not leads or not self.shared or self.executor.settle(SETTLE_S)
        if self._began and leads:
            self.health.flush()
        if settled and self.shared:
            self.leadership.release()


def _log_munge_failure(socket: Path | None) -> None:
    try:
        munge.encode_munge_credential(b"", socket)
    except munge.MungeUnavailable as error:
        log.error("no agent can report: %s. %s", error, error.hint)
