"""Faults that come while every slot is taken: no job starts on a node whose fault is proven.

A simulated cluster, one loop, and one slot. A fault is proven once the daemon has decided on it:
in the journal its recovery is open, or a gate holds it. Jobs that start between the kernel line and
that moment are counted apart, with the time that it took.
"""

import random

import pytest

from hpctl.engine.remedies import find_beginning
from hpctl.faults.catalogue import rules as catalogue_rules
from hpctl.vocabulary.policy import Budgets, Mode, Policy
from tests.engine.machine.daemon import Daemon
from tests.engine.machine.world import Defect, World
from tests.examples import sliced

RULES = catalogue_rules()
ONE_SLOT = Budgets(
    open_min=1, open_fraction=0.0, partition_min=1, partition_fraction=0.0, per_hour=1000,
    correlated_min=30,
)  # fmt: skip
POLICY = Policy(mode=Mode.OWN, budgets=ONE_SLOT)
CODES = ("79", "48", "94", "64", "119")
NODES, FAULTS = 40, 40
MOST_CLOSED = 15
"""Of 40 nodes, 20 are the budget of drains, which stays out of this."""


class Figures:
    """What was counted. `early`: jobs that started between the kernel line and the decision."""

    def __init__(self) -> None:
        self.faults = self.full = self.after = self.early = self.starts = 0
        self.decided_s: list[float] = []

    def __str__(self) -> str:
        return (
            f"{self.faults} faults, {self.full} with every slot taken; {self.starts} jobs started,"
            f" {self.after} of them on a node after its fault was proven, {self.early} before;"
            f" proven after {max(self.decided_s, default=0.0):.1f} s at most"
        )


class Soak:
    """One world under load."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.world = World(NODES)
        self.daemon = Daemon(self.world, POLICY, RULES)
        self.figures = Figures()
        self._order = list(self.world.names)
        self._dice.shuffle(self._order)
        self._broken: dict[str, float] = {}
        """Faults that are not proven yet, by their nodes, and when each began."""
        self._proven: set[str] = set()
        self._runs: dict[int, int] = {}

    def play(self) -> Figures:
        """Let all faults come, and each be remedied."""
        self._pass(10.0)
        next_at = 0.0
        while self.figures.faults < FAULTS or self._broken or self._proven:
            now = self.world.clock.monotonic()
            assert now < 40 * 3600.0, f"{self.daemon.loop.state.open_nodes} {self.figures}"
            if self.figures.after:
                break
            closed = len(self._broken) + len(self._proven)
            if now >= next_at and closed < MOST_CLOSED and self.figures.faults < FAULTS:
                self._break_one()
                next_at = now + self._dice.uniform(1.0, 60.0)
                self._pass(0.5)
                continue
            self._pass(self._dice.choice((0.5, 2.0, 5.0)) if closed < MOST_CLOSED else 10.0)
        return self.figures

    def _break_one(self) -> None:
        state = self.daemon.loop.state
        open_now = [state.nodes[rid] for rid in state.open_nodes.values()]
        self.figures.full += any(find_beginning(rec) is not None for rec in open_now)
        idle = [n for n in self._order if n not in self._broken and n not in self._proven]
        node = idle[0]
        self._order.remove(node)
        self._order.append(node)
        defect = Defect(self._dice.choice(CODES), kills=self._dice.random() < 0.2)
        self.world.breaks(node, defect)
        self.figures.faults += 1
        self._broken[node] = self.world.clock.monotonic()

    def _pass(self, seconds: float) -> None:
        self._fill()
        self.world.passes(seconds)
        self._count_starts()
        self.daemon.run()
        self._look()

    def _fill(self) -> None:
        """Jobs that wait for every node that is free, half of which Slurm cannot start again."""
        waiting = sum(job.state == "PENDING" for job in self.world.slurm.jobs.values())
        for _ in range(5 - waiting):
            runtime = self._dice.choice((60.0, 300.0, 2000.0))
            self.world.slurm.submit(1, runtime, requeue=self._dice.random() < 0.5)

    def _count_starts(self) -> None:
        for job in self.world.slurm.jobs.values():
            if not job.runs or self._runs.get(job.id) == job.runs:
                continue
            self._runs[job.id] = job.runs
            self.figures.starts += 1
            self.figures.after += any(node in self._proven for node in job.nodes)
            self.figures.early += any(node in self._broken for node in job.nodes)

    def _look(self) -> None:
        """Which faults the daemon has decided on, and which nodes serve again."""
        state, now = self.daemon.loop.state, self.world.clock.monotonic()
        for node in list(self._broken):
            if node in state.open_nodes or node in state.holds:
                self.figures.decided_s.append(now - self._broken.pop(node))
                self._proven.add(node)
        serves = {n for n in self._proven if n not in state.open_nodes and n not in state.holds}
        for node in serves:
            assert state.nodes[state.last_of_node[node]].phase == "returned"
        self._proven -= serves


@pytest.mark.parametrize("seed", sliced(range(10), 1))
def test_no_job_starts_on_a_node_after_its_fault_was_proven(seed: int) -> None:
    figures = Soak(seed).play()
    print(figures)
    assert figures.after == 0, figures
    assert figures.full >= FAULTS / 2, figures
    assert max(figures.decided_s) <= 30.0, figures
