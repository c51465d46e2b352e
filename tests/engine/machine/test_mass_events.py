"""A check that breaks on many nodes at once: no healthy node is remedied for it.

A simulated cluster, one loop: the check fails on most nodes within a minute, one node is under
treatment for a fault of its own, and the check recovers, or never does, on one node after another.
"""

import random

import pytest

from hpctl.faults.catalogue import build_fault_rules as catalogue_rules
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.identity import RuleId
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding
from hpctl.vocabulary.policy import (
    FaultClassOverride,
    NodeRecoveryPolicy,
    OperatingMode,
    RecoveryPolicy,
)
from tests.engine.machine.daemon import Daemon
from tests.engine.machine.world import Defect, World
from tests.examples import sliced

RULE = RuleId("plugin-storage")
OVERRIDE = FaultClassOverride(
    urgency=Urgency.NOW,
    ladder=(Remedy.REBOOT, Remedy.REPLACE),
    settle_s=0.0,
    meaning="the storage check fails",
)
RULES = catalogue_rules({RULE: OVERRIDE})
POLICY = RecoveryPolicy(mode=OperatingMode.OWN, node=NodeRecoveryPolicy(verify_healthy_s=30.0))
NEVER = 1e9


class BrokenCheck:
    """The findings of one plugin on every node: from when, and until when, it fails there."""

    def __init__(self, world: World, spans: dict[str, tuple[float, float]]) -> None:
        self._world, self._spans = world, spans

    def run(self) -> None:
        """Have each agent run the check now: it reports a failure as long as it lasts."""
        now, seconds = self._world.clock.now(), self._world.clock.monotonic()
        for name, (begins, ends) in self._spans.items():
            machine = self._world.machines[name]
            kept = tuple(f for f in machine.findings if f.check != RULE)
            if not begins <= seconds < ends:
                machine.findings = kept
                continue
            known = [f.first for f in machine.findings if f.check == RULE]
            first = known[0] if known else now
            failed = Finding(str(RULE), DeviceVerdict.FAIL, first, now, clears=ClearCondition.GONE)
            machine.findings = (*kept, failed)


class MassEvent:
    """One mass event, and what comes of it. `sick`: the node with a fault of its own, or none."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.world = World(dice.randint(4, 8))
        self.instances = {n: self.world.provider.instance_of(n) for n in self.world.names}
        self.daemon = Daemon(self.world, POLICY, RULES)
        names = list(self.world.names)
        dice.shuffle(names)
        self.sick = names[0] if seed % 3 else ""
        hit = names[: max(3, len(names) - dice.randint(0, 2))]
        # The first node is at any stage of its treatment by then.
        self._begins = dice.uniform(60.0, 400.0)
        self._ends = self._begins + dice.uniform(300.0, 1500.0)
        self._slowest = dice.choice((60.0, 400.0, 1500.0))
        spans = {}
        for name in hit:
            starts = self._begins + dice.uniform(0.0, 40.0)
            recovers = self._ends + dice.uniform(0.0, self._slowest)
            spans[name] = (starts, recovers if seed % 2 == 0 else NEVER)
        self._check = BrokenCheck(self.world, spans)
        self._restarts_at = dice.uniform(self._begins, self._ends) if seed % 4 == 0 else NEVER

    def play(self) -> None:
        """Let time pass until all is over."""
        if self.sick:
            self.world.breaks(self.sick, Defect("79"))
        seconds = 0.0
        while seconds < self._ends + self._slowest + 1500.0:
            self._check.run()
            if seconds > self._restarts_at:
                self._restarts_at = NEVER
                self.daemon.start()
            self.daemon.run()
            step = 5.0 if self._begins - 10.0 < seconds < self._begins + 120.0 else 30.0
            self.world.passes(step)
            seconds += step

    def find_orders(self) -> list[tuple[str, str]]:
        """Every order to the cloud: what, and for which node."""
        nodes = {instance: name for name, instance in self.instances.items()}
        mine = [order for order in self.world.provider.orders if order.by == "customer"]
        return [(order.kind, nodes.get(order.instance, order.instance)) for order in mine]


@pytest.mark.parametrize("seed", sliced(range(50), 8))
def test_no_healthy_node_is_treated_for_a_broken_check(seed: int) -> None:
    event = MassEvent(seed)
    event.play()
    assert event.find_orders() == ([("reboot", event.sick)] if event.sick else [])
    drained = [name for name, node in event.world.slurm.nodes.items() if node.drained]
    assert drained == []
    assert not event.daemon.loop.state.open_nodes
