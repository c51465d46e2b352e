"""What follows from a cycle: flaws, orders for agents, retired events, and what rooms add."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpctl.daemon.cloud_pace import CloudPollIntervalController
from hpctl.daemon.health import InconsistentStateLogger
from hpctl.daemon.readiness import ReadinessNotifier
from hpctl.engine.execute import PendingAgentOrders
from hpctl.engine.journal.state import EngineState
from hpctl.engine.leadership import Leadership
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop import RecoveryCycleResult, RecoveryLoop
from hpctl.engine.observe import ClusterObserver
from hpctl.engine.retirement import JournalRetirementTask
from hpctl.engine.world_server import WorldServer
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.isolation import ItemProcessingFailure, call_and_capture_failure


@dataclass(kw_only=True, eq=False)
class CycleResultPublisher:
    """Passes on what a cycle saw and did."""

    live: LiveConfig
    observer: ClusterObserver
    readiness: ReadinessNotifier
    flaws: InconsistentStateLogger
    orders: PendingAgentOrders
    retirement: JournalRetirementTask
    leadership: Leadership
    cloud_pace: CloudPollIntervalController
    world: WorldServer
    on_history: Sequence[Callable[[EngineState], None]] = ()
    """Each looks at the state after each cycle; what one raises is a flaw."""
    on_orders: Sequence[Callable[[Mapping[NodeName, str]], None]] = ()
    """Each receives the orders that wait, by the node whose agent is to carry them out."""
    on_cycle: Sequence[Callable[[float, RecoveryCycleResult], None]] = ()
    """Each receives how many seconds a cycle took, and its result."""
    on_silent_heads: Sequence[Callable[[frozenset[str]], None]] = ()
    """Each receives the other heads that are silent, after each cycle."""

    def announce_ready_after_slurm_read(self) -> None:
        """The daemon is ready once Slurm was read."""
        if not self.observer.slurm_trouble:
            self.readiness.announce_ready_on_slurm_read()

    def publish_cluster_snapshot(self, loop: RecoveryLoop) -> None:
        """Give readers what the cycle saw and decided."""
        self.world.offer(loop.last)

    def log_inconsistencies(self, loop: RecoveryLoop) -> None:
        """Log the flaws of the cycle, and of the look at history that follows it."""
        flaws = list(loop.flaws)
        for look_back in self.on_history:
            history = call_and_capture_failure("history", "history", look_back, loop.state)
            if isinstance(history, ItemProcessingFailure):
                flaws.append(history)
        self.flaws.note(flaws)

    def forward_agent_orders(self) -> None:
        """Where Slurm was read: pass on the orders for agents, and retire old events. Raises what
        the journal raises."""
        if self.observer.slurm_trouble:
            return
        standing = self.orders.list_valid_order_credentials()
        for set_orders in self.on_orders:
            set_orders(standing)
        live = self.live
        keep_days = live.config.journal.keep_days
        self.retirement.look(self.observer.slurm, live.policy, live.rules, keep_days)

    def report(self, loop: RecoveryLoop, spent_s: float) -> None:
        """Pass the cycle on, and set how often the cloud is read."""
        if loop.last is not None:
            for take_cycle in self.on_cycle:
                take_cycle(spent_s, loop.last)
        silent = self.leadership.silent()
        for look in self.on_silent_heads:
            look(silent)
        self.cloud_pace.follow(loop.state)
