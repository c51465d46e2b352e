"""HyperPod's health agent marks a node in the moment between our look at it and our drain."""

import pytest

from hpctl.core.marks import MARKS
from hpctl.core.node_recovery import Phase
from hpctl.core.policy import Mode, Policy
from tests.properties.daemon import Daemon
from tests.properties.oracle import Oracle
from tests.properties.scenario import BROKEN, RULES
from tests.properties.world import World


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_that_comes_just_before_our_drain_stays_and_the_service_acts(mark: str) -> None:
    policy = Policy(mode=Mode.ASSIST)
    world = World(8, automatic=True)
    job = world.slurm.submit(4, 50_000.0)
    oracle = Oracle(world, policy)
    daemon = oracle.daemon = Daemon(world, policy, RULES, watcher=oracle)
    daemon.run()
    sick = world.names[0]
    born = world.provider.instance_of(sick)
    world.breaks(sick, BROKEN)
    daemon.scheduler.mishaps.mark = mark
    for _ in range(120):
        world.passes(5.0)
        daemon.run()
    assert not daemon.scheduler.mishaps.mark, "our drain came"
    (recovery,) = daemon.loop.state.nodes.values()
    assert recovery.phase is Phase.RETURNED
    assert world.provider.instance_of(sick) != born, "by the service"
    assert sick not in world.slurm.jobs[job].nodes
