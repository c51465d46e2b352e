"""Drive the real window store and judge over a world, and rivals over the same windows."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct, field

from hpctl.insight.grey import decide
from hpctl.insight.grey.daemon import PeerGaugeWindows
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob
from tests.insight.grey.corpus import TICK, Fault, World

T0 = datetime(2026, 3, 1, tzinfo=UTC)
WINDOW_S = int(decide.WINDOW.total_seconds())
AFTERGLOW_S = 60
"""A finding may come this much after its fault's end: the windows end later."""
SAME_S = 600
"""A finding on the same node within this time of the last one is the same alarm."""
LEAST_S = 240
"""A fault counts where its node could be compared for so long in one piece."""


class Alarm(Struct):
    """A node under suspicion from `opened` to `closed`, by whatever signals."""

    node: int
    opened: int
    closed: int
    signals: set[str] = field(default_factory=set)


class Score(Struct):
    """Counts over worlds. `missed` and `false` are kept for people to look at."""

    true: int = 0
    false: list[str] = field(default_factory=list)
    found: int = 0
    missed: list[str] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    told: list[float] = field(default_factory=list)
    """Of the delays, the time in which a number told of the fault: pauses are not counted."""
    slow: list[str] = field(default_factory=list)
    node_hours: float = 0.0

    @property
    def precision(self) -> float:
        raised = self.true + len(self.false)
        return self.true / raised if raised else 1.0

    @property
    def recall(self) -> float:
        return self.found / (self.found + len(self.missed))

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def name(n: int) -> str:
    return f"n{n}"


def view_at(world: World, t: int) -> SchedulerView:
    """The jobs as Slurm shows them at second `t`."""
    jobs = {
        j.id: SlurmJob(
            j.id, "RUNNING", T0, nodes=tuple(map(name, j.nodes)),
            start=T0 + timedelta(seconds=j.start),
        )
        for j in world.running(t)
    }  # fmt: skip
    return SchedulerView(T0 + timedelta(seconds=t), jobs=jobs)


class Window(Struct, frozen=True):
    """One window of a world: its end, who can be compared, the means, the instance types."""

    t: int
    groups: tuple[decide.PeerGroup, ...]
    seen: decide.Seen
    kinds: dict[str, str]


def ours(world: World) -> tuple[list[Alarm], list[Window]]:
    """hpctl's alarms on a world, and its windows for the rivals."""
    book, windows = PeerGaugeWindows(), []
    reports = {n: NodeGeneration(name(n), f"i-{n}", "b") for n in range(len(world.nodes))}
    kinds = {name(n): kind for n, kind in world.kinds().items()}
    sums: dict[str, dict[str, list[float]]] = {}
    alarms = Alarms()
    for t, answer in world.ticks():
        for n, gauges in answer.items():
            g = reports[n]
            book.take(g, gauges)
            mine = sums.setdefault(g.node, {})
            for gauge, value in gauges.items():
                mine.setdefault(gauge, []).append(value)
        if (t + TICK) % WINDOW_S == 0:
            at = T0 + timedelta(seconds=t + TICK)
            groups = decide.group_peers(view_at(world, t), kinds, at)
            found = book.judge(groups, at)
            alarms.see(t + TICK, ((node, f.check) for node, fs in found.items() for f in fs))
            means = {n: {g: sum(v) / len(v) for g, v in m.items()} for n, m in sums.items()}
            windows.append(Window(t + TICK, groups, means, kinds))
            sums = {}
    return alarms.all, windows


class Alarms:
    """Findings over time, folded into alarms: one a node until it is quiet for SAME_S."""

    def __init__(self) -> None:
        self.all: list[Alarm] = []
        self._last: dict[str, Alarm] = {}

    def see(self, t: int, found: Iterable[tuple[str, str]]) -> None:
        for node, signal in found:
            alarm = self._last.get(node)
            if alarm is None or t - alarm.closed > SAME_S:
                alarm = self._last[node] = Alarm(int(node[1:]), t, t)
                self.all.append(alarm)
            alarm.closed = t
            alarm.signals.add(signal)


def visible_from(fault: Fault) -> int | None:
    """When a fault could first be seen: for LEAST_S seconds from then its node was among peers
    and a number told of it in two ticks of five at least. None: never. After the ticks."""
    need = 2 * LEAST_S // (5 * TICK)
    for first, t in enumerate(fault.shown):
        if (
            len([s for s in fault.shown[first : first + LEAST_S // TICK] if s < t + LEAST_S])
            >= need
        ):
            return t
    return None


def add(score: Score, world: World, alarms: list[Alarm]) -> None:
    """Take one world's alarms into a score."""
    of_node: dict[int, list[Fault]] = {}
    for fault in world.faults:
        of_node.setdefault(fault.node, []).append(fault)
    for alarm in alarms:
        if any(f.start <= alarm.opened <= f.end + AFTERGLOW_S for f in of_node.get(alarm.node, ())):
            score.true += 1
        else:
            score.false.append(
                f"seed {world.seed} n{alarm.node} at {alarm.opened} {sorted(alarm.signals)}"
            )
    for fault in world.faults:
        seen = visible_from(fault)
        if seen is None:
            continue
        hits = [
            a.opened
            for a in alarms
            if a.node == fault.node
            and a.opened <= fault.end + AFTERGLOW_S
            and a.closed >= fault.start
        ]
        if hits:
            # One that was open before is no discovery: it counts as found, and has no delay.
            score.found += 1
            for t in hits[:1] if hits[0] >= fault.start else ():
                score.delays.append(max(0, t - seen))
                score.told.append(TICK * sum(seen <= s < t for s in fault.shown))
                if t - seen > 180:
                    score.slow.append(f"{t - seen} s, seed {world.seed} {fault}")
        else:
            score.missed.append(f"seed {world.seed} {fault}")
    score.node_hours += len(world.nodes) * world.seconds / 3600
