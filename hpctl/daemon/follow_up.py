"""What follows from a cycle: flaws, orders for agents, retired events, metrics, notices."""

from dataclasses import dataclass

from hpctl.daemon.cloud_pace import CloudPace
from hpctl.daemon.health import FlawLog
from hpctl.daemon.readiness import Readiness
from hpctl.engine.execute import AgentOrders
from hpctl.engine.leadership import Leadership
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop import Loop
from hpctl.engine.observe import Observer
from hpctl.engine.retirement import Retirement
from hpctl.engine.world_server import WorldServer
from hpctl.insight.grey.daemon import GreyFailures
from hpctl.service.intake.line import IntakeLine
from hpctl.service.metrics import Metrics
from hpctl.service.notify.daemon import Notifier
from hpctl.vocabulary.isolation import Flaw, walled


@dataclass(kw_only=True, eq=False)
class FollowUp:
    """Passes on what a cycle saw and did."""

    live: LiveConfig
    observer: Observer
    readiness: Readiness
    flaws: FlawLog
    grey: GreyFailures
    line: IntakeLine
    orders: AgentOrders
    retirement: Retirement
    metrics: Metrics
    notifier: Notifier
    leadership: Leadership
    cloud_pace: CloudPace
    world: WorldServer

    def announce_ready(self) -> None:
        """The daemon is ready once Slurm was read."""
        if not self.observer.slurm_trouble:
            self.readiness.announce_slurm_read()

    def offer_world(self, loop: Loop) -> None:
        """Give readers what the cycle saw and decided."""
        self.world.offer(loop.last)

    def note_flaws(self, loop: Loop) -> None:
        """Log the flaws of the cycle, and of the look at history that follows it."""
        flaws = list(loop.flaws)
        history = walled("history", "history", self.grey.look_back, loop.state)
        if isinstance(history, Flaw):
            flaws.append(history)
        self.flaws.note(flaws)

    def use_slurm(self) -> None:
        """Where Slurm was read: pass on the orders for agents, and retire old events. Raises what
        the journal raises."""
        if self.observer.slurm_trouble:
            return
        self.line.set_orders(self.orders.standing())
        live = self.live
        keep_days = live.config.journal.keep_days
        self.retirement.look(self.observer.slurm, live.policy, live.rules, keep_days)

    def report(self, loop: Loop, spent_s: float) -> None:
        """Pass the cycle on to metrics and notices, and set how often the cloud is read."""
        if loop.last is not None:
            self.metrics.cycle(spent_s, loop.last.view, self.live.policy, loop.last.flaws)
        self.notifier.look(self.leadership.silent())
        self.cloud_pace.follow(loop.state)
