"""The life of one daemon: stand by, take over, cycle, end in order, hand over."""

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hpctl.daemon.cycle import Cycle
from hpctl.daemon.locks import ClusterLock
from hpctl.daemon.readiness import Readiness
from hpctl.daemon.signals import Signals
from hpctl.daemon.standby import Standby
from hpctl.daemon.takeover import Takeover
from hpctl.engine.cloud_watch import CloudWatch
from hpctl.engine.execute import Executor
from hpctl.engine.journal.store import LeaseLost, Store
from hpctl.engine.leadership import Leadership
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.world_server import WorldServer
from hpctl.insight.grey.daemon import GreyFailures
from hpctl.service.intake.process import IntakeProcess
from hpctl.service.notify.daemon import Notifier
from hpctl.service.page.process import PageProcess
from hpctl.toolkit.errors import HpctlError
from hpctl.wire import munge

log = logging.getLogger("hpctl.daemon")

SETTLE_S = 10.0
"""For how long a call under way is waited for before the lease is given away, in seconds."""


@dataclass(kw_only=True, eq=False)
class Background:
    """What runs on threads of its own while this daemon leads."""

    cloud: CloudWatch
    grey: GreyFailures
    notifier: Notifier
    world: WorldServer

    def start(self) -> None:
        """Read the cloud, compare nodes, send notices, serve readers of the world."""
        self.cloud.start()
        self.grey.start()
        self.notifier.start()
        self.world.start()

    def stop(self) -> None:
        """Stop all of it but the notifier, which is stopped before."""
        self.world.stop()
        self.grey.stop()
        self.cloud.stop()


@dataclass(kw_only=True, eq=False)
class HeldResources:
    """What this process holds until its end."""

    state_lock: IO[str]
    cluster_lock: ClusterLock | None
    """None where the lease of a shared database tells the heads from each other."""
    store: Store

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
    signals: Signals
    readiness: Readiness
    leadership: Leadership
    standby: Standby
    takeover: Takeover
    cycle: Cycle
    background: Background
    intake: IntakeProcess
    page: PageProcess
    health: NodeHealthStore
    executor: Executor
    held: HeldResources
    _began: bool = False

    def run(self) -> int | None:
        """Serve until SIGTERM. Where this daemon is to go on as a standby: the descriptor of its
        listening socket. Raises LeaseLost (the journal is a file), JournalCorrupt, Corrupt;
        OSError at the start."""
        self.signals.install()
        self.intake.start()
        self.page.start()
        _check_munge(self.live.config.intake.munge_socket)
        listener = None
        try:
            self._lead()
            if not self.signals.stopping:
                listener = self.intake.keep_listener()
        except LeaseLost as error:
            if not self.shared:
                raise
            log.error("%s", error)
            listener = self.intake.keep_listener()
        finally:
            self.page.stop()
            self._end()
        return None if self.signals.stopping else listener

    def _lead(self) -> None:
        """Until this daemon is to stop, or another one is to lead."""
        if self.shared:
            self.standby.run()
        if not self.signals.stopping:
            self._begin()
        while not (self.signals.stopping or self.leadership.hand_over_to):
            self.cycle.run()

    def _begin(self) -> None:
        self.takeover.run()
        self.intake.say_who_leads()
        self.background.start()
        self._began = True
        if self.shared:
            self.readiness.announce_leader()
        config = self.live.config
        log.info("running mode=%s intake=%s", config.mode, config.intake.listen)

    def _end(self) -> None:
        """Release in order: no effect under way, then the lease, then the rest."""
        stopping = self.signals.stopping
        self.readiness.announce_end(stopping=stopping)
        self.background.notifier.stop()
        with contextlib.suppress(OSError, HpctlError):  # heartbeats: the agents repeat them
            self._release_lease()
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


def _check_munge(socket: Path | None) -> None:
    try:
        munge.encode(b"", socket)
    except munge.MungeUnavailable as error:
        log.error("no agent can report: %s. %s", error, error.hint)
