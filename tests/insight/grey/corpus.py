"""Made-up clusters with slow and lossy nodes in them: counters as agents read them, and labels.

Everything comes from one seed (`random.Random`, whose stream is the same on every release).
Each node keeps cumulative counters (throttle nanoseconds, PCIe replays, EFA packets sent and sent
again, remote events) and instant readings (clock, power, utilisation), read every 10 s as an
agent would: rates are differences, and one that is negative (a counter that began again) is left
out. The package says which shapes and ranges.
"""

import math
from collections.abc import Iterator
from random import Random

from msgspec import Struct, field

TICK = 10
"""Seconds between two reports of an agent."""


class Kind(Struct, frozen=True):
    """An instance type: nominal SM clock in MHz, power of a busy and an idle GPU in W."""

    name: str
    clock: float
    power: float
    idle: float


SHOWS_IN = {
    "throttle": "gpu.throttle_share", "brake": "gpu.throttle_share", "clock": "gpu.sm_clock_mhz",
    "replay": "gpu.pcie_replays_per_minute", "retrans": "efa.retrans_ratio",
    "remote": "efa.remote_events_per_s",
}  # fmt: skip
KINDS = (Kind("p5", 1980.0, 620.0, 95.0), Kind("p4d", 1410.0, 360.0, 62.0))


class Fault(Struct):
    """One node that is not as its peers from `start` to `end`. `on`/`off`: seconds, if it flaps."""

    kind: str
    node: int
    start: int
    end: int
    size: float
    on: int = 0
    off: int = 0
    witnesses: float = 1.0
    shown: list[int] = field(default_factory=list)
    """When a number told of it on a node that had four to be compared with (itself one)."""

    def active(self, t: int) -> bool:
        if not self.start <= t < self.end:
            return False
        return not self.off or (t - self.start) % (self.on + self.off) < self.on


class Job(Struct):
    """One job: who runs it, how it loads its nodes, and what befalls all of it at once."""

    id: int
    nodes: list[int]
    start: int
    end: int
    shape: str
    load: float
    every: int
    pause: int
    lossy: float
    lag: dict[int, int]
    shared: list[tuple[str, int, int, float, frozenset[int]]] = field(default_factory=list)

    def paused(self, node: int, t: int) -> bool:
        """Writing a checkpoint: all wait, some a little longer."""
        if self.shape == "serving":
            return False
        return (t - self.start + self.lag[node] % 13) % self.every < self.pause


class Node(Struct):
    kind: Kind
    silicon: float
    hot: float
    replay: float
    old_efa: bool
    wander: float = 0.0
    demand: float = 0.0
    idle_clock: float = 1.0
    counters: list[float] = field(default_factory=lambda: [0.0] * 5)
    before: list[float] | None = None
    away: int = 0


class World(Struct):
    """One cluster for a few hours. `ticks` yields what each node's agent reports."""

    seed: int
    nodes: list[Node]
    jobs: list[Job]
    faults: list[Fault]
    blips: dict[int, list[tuple[int, int, str, float]]]
    restarts: dict[int, list[tuple[int, int, bool]]]
    seconds: int
    hour: float

    def kinds(self) -> dict[int, str]:
        return {n: node.kind.name for n, node in enumerate(self.nodes)}

    def running(self, t: int) -> list[Job]:
        return [j for j in self.jobs if j.start <= t < j.end]

    def ticks(self) -> Iterator[tuple[int, dict[int, dict[str, float]]]]:
        """Seconds since the start, and the gauges of every node that reports then."""
        random = Random(f"ticks {self.seed}")
        for t in range(0, self.seconds, TICK):
            of = {n: job for job in self.running(t) for n in job.nodes}
            slow = {job.id: self._slowness(job, t) for job in self.running(t)}
            answer: dict[int, dict[str, float]] = {}
            for n, node in enumerate(self.nodes):
                job = of.get(n)
                now = self._reading(random, n, node, job, slow[job.id] if job else 1.0, t)
                gauges = self._make_gauges(n, node, now, t)
                if gauges is not None:
                    answer[n] = gauges
            self._note(t, of, answer)
            yield t, answer

    def _note(self, t: int, of: dict[int, Job], answer: dict[int, dict[str, float]]) -> None:
        """Write down of each fault that it could be seen now, whatever a detector makes of it."""
        for fault in self.faults:
            job = of.get(fault.node)
            if not fault.active(t) or job is None:
                continue
            gauge = SHOWS_IN[fault.kind]
            kind = self.nodes[fault.node].kind
            able = {
                n for n in job.nodes if gauge in answer.get(n, ()) and self.nodes[n].kind == kind
            }
            if fault.node in able and len(able) >= 4:
                fault.shown.append(t)

    def _slowness(self, job: Job, t: int) -> float:
        """In synchronous training the slowest node sets everybody's pace."""
        if job.shape == "serving":
            return 1.0
        pace = 1.0
        for fault in self.faults:
            if fault.node in job.nodes and fault.active(t):
                if fault.kind == "clock":
                    pace = min(pace, fault.size)
                elif fault.kind in ("throttle", "brake"):
                    pace = min(pace, 1 - 0.6 * fault.size)
        return pace

    def _reading(self, random, n, node, job, pace, t):  # noqa: C901 -- one case for each fault of the corpus
        """Let 10 s pass on one node; its utilisation, clock and power."""
        node.wander = 0.9 * node.wander + random.gauss(0, 0.003)
        busy, clock = self._work(random, n, node, job, t)
        throttle = 0.0
        if busy > 0.3:
            noon = max(0.0, math.sin((self.hour + t / 3600 - 8) / 24 * 2 * math.pi))
            throttle = max(0.0, random.gauss(node.hot * noon, 0.004)) if node.hot else 0.0
        replays = random.expovariate(1 / (node.replay * TICK)) if node.replay else 0.0
        packets = (2e6 * busy * pace if job and len(job.nodes) > 1 else 40.0) * TICK
        loss = job.lossy * random.lognormvariate(0, 0.8) if job else 1e-6
        remote = 1.0 if random.random() < 0.0005 else 0.0
        for start, end, what, size in self.blips.get(n, ()):
            if start <= t < end:
                if what == "throttle" and busy > 0.3:
                    throttle += size
                    clock *= 1 - 0.6 * size
                replays += size * TICK * (what == "replay")
                loss += size * (what == "retrans")
        for fault in self.faults:
            if not fault.active(t) or fault.node != n:
                continue
            size = fault.size * random.uniform(0.8, 1.2)
            if fault.kind in ("throttle", "brake") and busy > 0.3:
                throttle += size
                clock *= 1 - 0.6 * min(size, 1.0)
            elif fault.kind == "clock":
                clock *= fault.size
            elif fault.kind == "replay":
                replays += size * TICK
            elif fault.kind == "retrans":
                loss += size
        if job:
            clock, loss = self._shared(random, n, job, t, clock, loss)
            remote += self._remote(random, n, job, t)
        lost = packets * loss
        grown = (min(throttle, 1.0) * TICK * 1e9, replays, packets, lost, remote)
        for place, more in enumerate(grown):
            # Packets and events are whole; a small rate shows as one now and then.
            whole = place in (1, 2, 3) and more < 50
            more = math.floor(more) + (random.random() < more % 1) if whole else more
            node.counters[place] += more
        power = node.kind.idle + (node.kind.power - node.kind.idle) * busy * (0.4 + 0.6 * pace)
        power *= (clock / node.kind.clock) ** 0.5 * random.gauss(1, 0.03)
        return busy, clock, power

    def _work(self, random, n, node, job, t):
        if job is None:
            if random.random() < 0.02:
                node.idle_clock = random.choice((0.17, 0.58, 1.0))
            return random.uniform(0, 0.03), node.kind.clock * node.idle_clock
        rank = job.nodes.index(n)
        full = node.kind.clock * (1 - node.silicon + node.wander)
        late = t - job.start < job.lag[n]
        if late or job.paused(n, t):
            first = rank == 0 and not late
            return (0.6, full) if first else (random.uniform(0, 0.1), full * node.idle_clock)
        if job.shape == "serving":
            noon = 0.5 + 0.3 * math.sin((self.hour + t / 3600 - 8) / 24 * 2 * math.pi)
            node.demand = 0.97 * node.demand + random.gauss(0, 0.05)
            busy = min(1.0, max(0.0, noon + node.demand))
            return busy, full * (1 - 0.12 * busy)
        if job.shape == "leader" and rank == 0:
            return random.uniform(0.1, 0.45), full * random.choice((0.17, 0.58, 1.0))
        stage = 4 * rank // len(job.nodes) if job.shape == "pipeline" else 0
        busy = min(1.0, max(0.0, random.gauss(job.load, 0.02)))
        return busy, full * (1 - 0.012 * stage - 0.05 * (job.load > 0.97))

    def _shared(self, random, n, job, t, clock, loss):
        for what, start, end, size, nodes in job.shared:
            if n in nodes and start + job.lag[n] % 30 <= t < end + job.lag[n] % 30:
                if what == "cap":
                    clock *= size * random.gauss(1, 0.01)
                else:
                    loss += size * random.lognormvariate(0, 0.7)
        return clock, loss

    def _remote(self, random: Random, n: int, job: Job, t: int) -> float:
        events = 0.0
        if job.end - t <= 2 * TICK and random.random() < 0.6:
            events += random.randint(1, 40)
        for fault in self.faults:
            talks = (n * 7919 + fault.node * 31) % 100 < 100 * fault.witnesses
            if (
                fault.kind == "remote"
                and fault.active(t)
                and n != fault.node
                and fault.node in job.nodes
                and talks
                and not job.paused(n, t)
                and random.random() < 0.9
            ):
                events += random.expovariate(1 / (fault.size * TICK))
        return float(round(events))

    def _make_gauges(self, n, node, now, t):
        """What the agent makes of it: rates by difference, nothing where it cannot tell."""
        for start, end, driver in self.restarts.get(n, ()):
            if start <= t < end:
                node.before = node.before if driver else None
                node.counters = [0.0] * 5 if driver else node.counters
                return None
        answer = {"gpu.busy": now[0], "gpu.power_w": now[2]}
        busy = now[0] >= 0.5
        if busy:
            answer["gpu.sm_clock_mhz"] = now[1]
        before, node.before = node.before, list(node.counters)
        if before is None:
            return answer
        throttle, replays, sent, again, remote = (
            late - early for late, early in zip(node.counters, before, strict=True)
        )
        if throttle >= 0 and busy:
            answer["gpu.throttle_share"] = throttle / (TICK * 1e9)
        if replays >= 0:
            answer["gpu.pcie_replays_per_minute"] = replays * 60 / TICK
        if sent >= 10_000 and again >= 0 and not node.old_efa:
            answer["efa.retrans_ratio"] = again / sent
        if remote >= 0 and not node.old_efa:
            answer["efa.remote_events_per_s"] = remote / TICK
        return answer
