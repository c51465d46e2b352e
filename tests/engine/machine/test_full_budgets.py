"""Faults that come while every slot is taken: no job starts on a node whose fault is proven.

A simulated cluster, one loop, and one slot. A fault is proven once the daemon has decided on it:
in the journal its recovery is open, or a gate holds it. Jobs that start between the kernel line and
that moment are counted apart, with the time that it took. In every second world another daemon
takes over from the journal now and then, as a standby does.
"""

import random
from collections.abc import Callable

import pytest

from hpctl.engine.remedies import find_remedy_start
from hpctl.engine.status_view import ClusterStatusView, make_cluster_status_view
from hpctl.engine.world import World as ReadWorld
from hpctl.faults.catalogue import build_fault_rules as catalogue_rules
from hpctl.vocabulary.policy import ConcurrentRecoveryBudgets, OperatingMode, RecoveryPolicy
from tests.engine.machine.daemon import Daemon
from tests.engine.machine.world import Defect, World
from tests.examples import sliced

RULES = catalogue_rules()
ONE_SLOT = ConcurrentRecoveryBudgets(
    open_min=1, open_fraction=0.0, partition_min=1, partition_fraction=0.0, per_hour=1000,
    correlated_min=30,
)  # fmt: skip
POLICY = RecoveryPolicy(mode=OperatingMode.OWN, budgets=ONE_SLOT)
CODES = ("79", "48", "94", "64", "119")
NODES, FAULTS = 40, 40
MOST_CLOSED = 15
"""Of 40 nodes, 20 are the budget of drains, which stays out of this."""


class Figures:
    """What was counted. `early`: jobs that started between the kernel line and the decision."""

    def __init__(self) -> None:
        self.faults = self.full = self.after = self.early = self.starts = self.takeovers = 0
        self.decided_s: list[float] = []

    def __str__(self) -> str:
        return (
            f"{self.faults} faults, {self.full} with every slot taken; {self.takeovers} takeovers;"
            f" {self.starts} jobs started,"
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
        self._takes_over = seed % 2 == 1

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
        self.figures.full += any(find_remedy_start(rec) is not None for rec in open_now)
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
        if self._takes_over and self._dice.random() < 0.02:
            self.figures.takeovers += 1
            self.daemon.start()
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


class Queue:
    """Two nodes with a fault each, and one slot: the first is remedied, the second waits."""

    def __init__(self) -> None:
        self.world = World(8)
        self.daemon = Daemon(self.world, POLICY, RULES)
        self.world.breaks("n1", Defect("79", reboot_cures=False))
        self._until(lambda: self._begun("n1"))
        self.world.breaks("n2", Defect("48"))
        self._until(lambda: "n2" in self.daemon.loop.state.holds)
        hold = self.daemon.loop.state.holds["n2"]
        assert (hold.gate, self.phase("n2")) == ("budget", "vacated")

    def _begun(self, node: str) -> bool:
        rec = self.daemon.loop.state.node_recovery(node)
        return rec is not None and find_remedy_start(rec) is not None

    def _until(self, reached: Callable[[], bool]) -> None:
        for _ in range(2000):
            if reached():
                return
            self.go(1.0)
        raise AssertionError(self.daemon.loop.state.open_nodes)

    def go(self, seconds: float) -> None:
        self.world.passes(seconds)
        self.daemon.run()

    def phase(self, node: str) -> str:
        state = self.daemon.loop.state
        return str(state.nodes[state.last_of_node[node]].phase)

    def status(self) -> ClusterStatusView:
        """What `hpctl status` would show."""
        now, slurm = self.world.clock.now(), self.world.slurm.view()
        return make_cluster_status_view(ReadWorld(now, POLICY, self.daemon.loop.state, slurm=slurm))

    def settle(self) -> None:
        self._until(lambda: not self.daemon.loop.state.open_nodes)


def test_a_canceled_recovery_that_waited_for_a_slot_leaves_a_listed_node() -> None:
    queue = Queue()
    queue.daemon.ask("cancel", "n2")
    queue.go(1.0)
    assert queue.phase("n2") == "cancelled"
    assert "n2" not in queue.daemon.loop.state.holds
    queue.settle()
    view = queue.status()
    (line,) = view.problems
    assert line.startswith("n2 is out of service")
    assert "`hpctl undrain n2`" in line
    assert [(row.nodes, row.by) for row in view.out_of_service] == [(("n2",), "person")]
    queue.daemon.ask("return", "n2")
    queue.go(1.0)
    queue.settle()
    assert queue.phase("n2") == "returned"
    assert queue.status().problems == ()
    assert {order.node for order in queue.world.provider.orders} == {"n1"}


def test_a_standby_that_takes_over_keeps_drains_and_waits() -> None:
    queue = Queue()
    before, drained = dict(queue.daemon.loop.state.open_nodes), queue.world.slurm.view().nodes
    hold = queue.daemon.loop.state.holds["n2"]
    orders = len(queue.world.provider.orders)
    queue.daemon.start()
    for _ in range(5):
        queue.daemon.run()
    state = queue.daemon.loop.state
    assert state.open_nodes == before
    assert state.holds["n2"] == hold
    assert queue.world.slurm.view().nodes == drained
    assert len(queue.world.provider.orders) == orders
    queue.settle()
    assert (queue.phase("n1"), queue.phase("n2")) == ("returned", "returned")
