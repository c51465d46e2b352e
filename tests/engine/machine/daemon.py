"""The real daemon's inside on a simulated world, with a boundary to crash at before each I/O.

Real: core, Loop, Executor, Observer, CloudWatch (read here and now), Book. Ours: the doors, which
count, crash, lose replies and tell the oracle. Slurm, cloud and journal are `tests.fakes`, each
proved by the contract suite that the real one passes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.daemon.kinds import KINDS
from hpctl.engine.cloud_watch import CloudPoller
from hpctl.engine.config import Config
from hpctl.engine.execute import StepExecutor, StepExecutorPorts
from hpctl.engine.journal.events import Event, JobReported
from hpctl.engine.journal.port import Journal
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop import NextLoopCycleTime, RecoveryLoop
from hpctl.engine.loop_port import RecoveryLoopAccess
from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.observe import ClusterObserver, ObserverSources
from hpctl.engine.request_intake import OperatorRequestHandler
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.cloud_facts import CloudProviderView
from hpctl.vocabulary.controller_news import SlurmctldLogEvent
from hpctl.vocabulary.evidence import EvidenceCollectionOrder
from hpctl.vocabulary.identity import JobAttempt
from hpctl.vocabulary.isolation import ItemProcessingFailure
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.model import AgentReport, NodeHealth
from hpctl.vocabulary.node_test import NodeTestJobSpec
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.reset_order import GpuResetOrder
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.engine.machine.world import World
from tests.fakes.journal import Disk, MemoryJournal
from tests.fakes.slurmctld import shown

R = TypeVar("R")


class Crash(BaseException):
    """The process is gone. Not an Exception: nothing may catch it."""


class Boundary(Struct):
    """Counts every journal append and port call; dies before or after a chosen one."""

    count: int = 0
    die_at: int = -1
    after: bool = False
    passed: list[str] = field(default_factory=list)

    def arm(self, ahead: int, after: bool) -> None:
        """Die so many boundaries from now."""
        self.die_at, self.after = self.count + ahead, after

    def cross(self, name: str, call: Callable[[], R]) -> R:
        """Do a thing, unless this is where the process dies."""
        self.count += 1
        self.passed.append(name)
        here = self.count == self.die_at
        if here and not self.after:
            raise Crash(f"before {name}")
        result = call()
        if here:
            raise Crash(f"after {name}")
        return result


class Watcher:
    """What the doors tell: the oracle overrides it."""

    def on_flaws(self, flaws: Sequence[ItemProcessingFailure]) -> None:
        """What raised in a cycle, each inside its wall."""

    def on_append(self, events: Sequence[Event]) -> None:
        """Written down."""

    def before(self, kind: str, targets: Mapping[str, Any]) -> None:
        """About to change the world."""

    def after(self, kind: str, targets: Mapping[str, Any], outcomes: Mapping[str, Outcome]) -> None:
        """Changed it, or not."""


class _Switch:
    """The kill-switch file, without a disk."""

    def __init__(self) -> None:
        self.on = False

    def stat(self) -> None:
        """As Path has it: raises FileNotFoundError where it is not there."""
        if not self.on:
            raise FileNotFoundError


class JournalDoor:
    """Appends, each behind a boundary."""

    def __init__(self, journal, boundary: Boundary, watcher: Watcher) -> None:
        self._journal, self._boundary, self._watcher = journal, boundary, watcher

    def append(self, events: Sequence[Event]) -> None:
        if events:
            self._boundary.cross(f"append {_names(events)}", lambda: self._append(events))

    def _append(self, events: Sequence[Event]) -> None:
        self._journal.append(events)
        self._watcher.on_append(events)

    def events(self) -> Iterable[Event]:
        return list(self._journal.events())

    def list_retired_recovery_ids(self) -> frozenset[str]:
        return frozenset(self._journal.list_retired_recovery_ids())

    def health(self) -> Mapping[str, NodeHealth]:
        found: Mapping[str, NodeHealth] = self._journal.health()
        return found


def _names(events: Sequence[Event]) -> str:
    return ",".join(
        f"{type(e).__name__}:{getattr(e, 'step', getattr(e, 'signal', ''))}" for e in events
    )


class Mishaps(Struct):
    """What happens to the next mutating calls on Slurm: lost before, or after it was done.

    `mark`: HyperPod's health agent marks the nodes between our look and our next drain of them.
    """

    lost_before: int = 0
    lost_after: int = 0
    mark: str = ""


ON_NODES = {"drain": "drain", "down": "down", "resume_nodes": "return"}
ON_JOBS = {
    "signal": "signal",
    "requeue": "requeue",
    "start_pending_job": "start_now",
    "hold": "hold",
    "lift": "lift",
    "cancel_attempt": "cancel",
}
OF_TESTS = {"reserve": "isolate", "test": "test", "cancel_node_test": "end_test"}
"""The orders of the Scheduler port."""


class SchedulerDoor:
    """Slurm behind a boundary."""

    def __init__(self, world: World, boundary: Boundary, watcher: Watcher) -> None:
        self.world, self._slurm = world, world.slurm
        self._boundary, self._watcher = boundary, watcher
        self.mishaps = Mishaps()
        self.seen: SchedulerView | None = None
        self.seen_at = -1e9

    def view(self) -> SchedulerView:
        self.seen = None
        self.seen = self._slurm.view()
        self.seen_at = self.world.clock.monotonic()
        return self.seen

    def find_jobs(self, ids):
        return self._slurm.find_jobs(ids)

    def part(self, nodes, known) -> SchedulerView:
        part = self._slurm.part(nodes, known)
        self.seen_at = self.world.clock.monotonic()
        if self.seen is not None:
            self.seen = replace(part, nodes={**self.seen.nodes, **part.nodes})
        return part

    def __getattr__(self, name: str):
        """Reads go through; an order on nodes or on a job crosses the boundary."""
        order = getattr(self._slurm, name)
        if name in ON_NODES:
            return partial(self._on_nodes, ON_NODES[name], order)
        if name in OF_TESTS:
            return partial(self._on_test, OF_TESTS[name], order)
        return partial(self._on_job, ON_JOBS[name], order) if name in ON_JOBS else order

    def _on_test(self, kind, order, what, *detail, **options):
        name = what.name if isinstance(what, NodeTestJobSpec) else what
        kind = "unreserve" if kind == "isolate" and not detail[0] else kind
        return self._call(kind, {name: None}, lambda: {name: order(what, *detail, **options)})[name]

    def _on_nodes(self, kind, order, nodes, **options):
        mark = self.mishaps.mark if kind == "drain" else ""
        if mark:
            self.mishaps.mark = ""
            for name in nodes:
                self.world.marks(name, mark)
        return self._call(kind, nodes, lambda: order(nodes, **options))

    def _on_job(self, kind, order, job, *detail):
        number = job.job if isinstance(job, JobAttempt) else job
        target = detail[0] if kind == "signal" else str(number)
        targets = {target: (number, detail)}
        return self._call(kind, targets, lambda: {target: order(job, *detail)})[target]

    def _call(self, kind, targets, call):
        def whole() -> dict[str, Outcome]:
            self._watcher.before(kind, targets)
            lost = dict.fromkeys(targets, Outcome.ambiguous("timeout", "no answer from slurmctld"))
            if self.mishaps.lost_before > 0:
                self.mishaps.lost_before -= 1
                return lost
            outcomes = dict(call())
            self._watcher.after(kind, targets, outcomes)
            if self.mishaps.lost_after > 0:
                self.mishaps.lost_after -= 1
                return lost
            return outcomes

        return self._boundary.cross(f"{kind} {','.join(map(str, targets))}", whole)


class ProviderDoor:
    """The cloud behind a boundary; what it lists is stamped with the wall clock."""

    def __init__(self, world: World, boundary: Boundary, watcher: Watcher) -> None:
        self.world, self._boundary, self._watcher = world, boundary, watcher

    def view(self) -> CloudProviderView:
        if self.world.cloud_away:
            raise ServiceUnavailable("the cloud is away", "wait")
        return replace(self.world.provider.view(), as_of=self.world.clock.now())

    def __getattr__(self, name: str):
        return partial(self._call, name, getattr(self.world.provider, name))

    def _call(self, kind, call, instances):
        targets = dict.fromkeys(instances)

        def whole() -> dict[str, Outcome]:
            self._watcher.before(kind, targets)
            if self.world.cloud_away:
                away = Outcome.rejected("EndpointConnectionError", transient=True)
                return dict.fromkeys(instances, away)
            outcomes: dict[str, Outcome] = dict(call(instances))
            self._watcher.after(kind, targets, outcomes)
            return outcomes

        return self._boundary.cross(f"{kind} {','.join(instances)}", whole)


class AgentsDoor:
    """The agents behind a boundary: an order is offered, whatever becomes of it."""

    def __init__(self, world: World, boundary: Boundary) -> None:
        self.world, self._boundary = world, boundary

    def reset(self, orders: Sequence[GpuResetOrder]) -> Mapping[str, Outcome]:
        def whole() -> dict[str, Outcome]:
            for order in orders:
                self.world.ordered(order)
            return dict.fromkeys((o.generation.node for o in orders), Outcome.accepted())

        nodes = ",".join(order.generation.node for order in orders)
        return self._boundary.cross(f"reset {nodes}", whole)

    def request_evidence(self, orders: Sequence[EvidenceCollectionOrder]) -> Mapping[str, Outcome]:
        def whole() -> dict[str, Outcome]:
            for order in orders:
                self.world.keeps_evidence(order)
            return dict.fromkeys((o.generation.node for o in orders), Outcome.accepted())

        nodes = ",".join(order.generation.node for order in orders)
        return self._boundary.cross(f"evidence {nodes}", whole)


MAX_BUSY_CYCLES = 20


class ControllerLog:
    """slurmctld's log, of which a line is all that is known: what changed since the last look."""

    is_following = False

    def __init__(self, world: World) -> None:
        self._slurm = world.slurm
        self._seen = self._look()

    def _look(self) -> tuple[object, object]:
        """The nodes and the jobs as they are, whoever asks."""
        slurm = self._slurm
        nodes = [slurm.node(node) for node in slurm.nodes.values()]
        of_nodes = [(n.name, n.down, n.closed, n.drained, n.reason, n.boot_time) for n in nodes]
        of_jobs = [(j.id, j.state, j.restarts, j.submit) for j in map(shown, slurm.jobs.values())]
        return of_nodes, of_jobs

    @property
    def speaks(self) -> bool:
        """Whether there is a line that ends the loop's sleep."""
        return self.is_following and self._seen != self._look()

    def open(self) -> str:
        self.is_following = True
        return ""

    def read(self) -> SlurmctldLogEvent:
        before, self._seen = self._seen, self._look()
        if not self.is_following or before == self._seen:
            return SlurmctldLogEvent.NONE
        return SlurmctldLogEvent.NODE if before[0] != self._seen[0] else SlurmctldLogEvent.JOB


class Daemon:
    """One hpctl daemon after another, on one journal and one world."""

    def __init__(self, world, policy, rules, journal=None, watcher=None, reopen=None):
        self.world, self.policy, self.rules = world, policy, rules
        if journal is None:
            disk = Disk()
            journal, reopen = MemoryJournal(disk), lambda: MemoryJournal(disk)
        self.journal, self._reopen = journal, reopen
        self.watcher = watcher or Watcher()
        self.boundary = Boundary()
        self.kill_switch = _Switch()
        self.scheduler: Any = SchedulerDoor(world, self.boundary, self.watcher)
        self.provider: Any = ProviderDoor(world, self.boundary, self.watcher)
        self.crashes = 0
        self._read_cloud = -1.0
        self.start()

    def start(self) -> None:
        """What a process does when it starts."""
        door: Journal = JournalDoor(self.journal, self.boundary, self.watcher)
        clock = self.world.clock
        self._quiet = False
        self.book = NodeHealthStore(self.journal.health(), self.journal, self._wake, clock)
        self.cloud = CloudPoller(self.provider, self._wake, 30.0)
        switch: Path = self.kill_switch
        live = LiveConfig(Config(kill_switch=switch))
        self.log = ControllerLog(self.world)
        sources = ObserverSources(self.scheduler, self.cloud, self.book, self.log)
        # Parts are read wherever they may be.
        self.observer = ClusterObserver(sources, live, clock, whole_cheap_s=-1.0)
        memory = JournaledState(door)
        agents = AgentsDoor(self.world, self.boundary)
        effectors = StepExecutorPorts(self.scheduler, self.provider, agents)
        executor = StepExecutor(effectors, memory, clock)
        port = RecoveryLoopAccess(self.observer, memory, clock, self._wake)
        requests = OperatorRequestHandler(self.journal, port, live)
        jobs: Any = self
        self.loop = RecoveryLoop(memory, executor, self.observer, requests, clock, KINDS, jobs)
        self._untold: list[JobReported] = []
        self._newest: dict[str, tuple[Any, int]] = {}
        self._read_cloud = -1.0

    def _wake(self) -> None:
        """An event: the next cycle reads Slurm."""
        self._quiet = False

    def crashed(self) -> None:
        """The process died: nothing in memory is left."""
        self.crashes += 1
        self.boundary.die_at = -1
        if self._reopen is not None:
            self.journal = self._reopen()
        self.start()

    def hear(self, report: AgentReport) -> None:
        """The intake: takes what is newer than what it took before."""
        newest = (report.agent_start, report.seq)
        known = self._newest.get(report.node)
        if known is None or newest > known:
            self.book.accept(report)
            self._newest[report.node] = newest

    def tell(self, report: JobReport) -> None:
        """The intake: a supervisor's word, which is in the journal before it is in memory."""
        text = JobReported(self.world.clock.now(), report)
        self.journal.append([text])
        self.watcher.on_append([text])
        self._untold.append(text)

    def news(self) -> list[JobReported]:
        """What supervisors told since the last cycle."""
        news, self._untold = self._untold, []
        return news

    def ask(self, verb: str, target: str = "", by: str = "eve") -> None:
        """What `hpctl pause` and the like write."""
        self.journal.ask(verb, target, by, self.world.clock.now())

    def cycle(self) -> NextLoopCycleTime | None:
        """One cycle; None where the process died in it and was started again."""
        self.world.speak(self.hear)
        every = 2.0 if self.loop.state.open_nodes else 30.0
        now = self.world.clock.monotonic()
        try:
            if self._read_cloud < 0 or now - self._read_cloud >= every:
                self._read_cloud = now
                self.cloud.read()
            # Here no time passes between cycles, and the loop would sleep for NODE_S at most.
            quiet, self._quiet = self._quiet and not self.log.speaks, True
            pace = self.loop.cycle(self.policy, self.rules, quiet=quiet)
            self._quiet = self._quiet and not pace.acted
        except Crash:
            self.crashed()
            return None
        self.watcher.on_flaws(self.loop.flaws)
        return pace

    def run(self) -> None:
        """Cycle until there is nothing more to do at this moment."""
        for _ in range(MAX_BUSY_CYCLES):
            pace = self.cycle()
            if pace is not None and not pace.acted:
                return
        raise AssertionError("the loop acts again and again without time passing")


DAY = 86400.0
LONGEST = 29 * DAY
"""A recovery may wait fourteen days for the jobs on its node to end by themselves, and as long for
a slot for its remedy."""


def calm_down(world: World, daemon: Daemon, until: float = LONGEST) -> None:
    """No more faults; time passes, in ever larger steps, until every recovery has ended."""
    world.calm()
    daemon.kill_switch.on = False
    daemon.ask("unpause")
    daemon.boundary.die_at = -1
    daemon.scheduler.mishaps.lost_before = daemon.scheduler.mishaps.lost_after = 0
    begun = world.clock.monotonic()
    pause, cycles = 1.0, 0
    while True:
        world.refresh()
        daemon.run()
        state = daemon.loop.state
        idle = not state.open_nodes and not state.open_jobs
        if idle and cycles > 20:
            return
        spent = world.clock.monotonic() - begun
        if spent > until:
            return
        cycles += 1
        pause = min(max(1.0, spent / 15), 3600.0) if cycles > 10 else 2.0
        world.passes(pause)
