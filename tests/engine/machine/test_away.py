"""Time in which nobody looked, or nobody was allowed to act, brings no deadline about."""

import pytest
from msgspec.structs import replace

from hpctl.faults.hma_marks import MARKS
from hpctl.vocabulary.job_recovery import JobRecoveryPhase
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from tests.engine.machine.daemon import Daemon
from tests.engine.machine.oracle import Oracle
from tests.engine.machine.scenario import BROKEN, POLICY, RULES, VARIANTS, Story
from tests.engine.machine.world import Defect, World

CURED = Defect("79", reboot_cures=True)
HOURS = 4 * 3600.0


class Interrupted(Story):
    """A story that the tests tell step by step."""

    def __init__(self) -> None:
        super().__init__(VARIANTS[0])
        self.pass_time(1.0)

    def until(self, phase: NodeRecoveryPhase, step_s: float = 1.0) -> None:
        """Go on until the first node's recovery is in a phase."""
        for _ in range(1000):
            self.pass_time(step_s)
            if self.phase() is phase:
                return
        raise AssertionError(f"never {phase}: {self.phase()}")

    def phase(self) -> NodeRecoveryPhase | None:
        state = self.daemon.loop.state
        rid = state.last_of_node.get(self.world.names[0])
        return None if rid is None else state.nodes[rid].phase

    def effects(self) -> list[str]:
        """All that was ever asked of Slurm and the cloud."""
        return [name for name in self.daemon.boundary.passed if not name.startswith("append")]

    def agents(self, *, silent: bool) -> None:
        for machine in self.world.machines.values():
            machine.agent_silent = silent

    def orders(self) -> list[str]:
        return [order.kind for order in self.world.provider.orders]


@pytest.mark.parametrize("phase", [NodeRecoveryPhase.REMEDYING, NodeRecoveryPhase.VERIFYING])
def test_head_node_off_for_hours_continues_where_it_was(phase):
    """In its first seconds no agent has been heard, and each deadline is long past."""
    story = Interrupted()
    story.world.breaks(story.world.names[0], CURED)
    story.until(phase)
    story.world.passes(HOURS)
    story.agents(silent=True)
    story.daemon.start()
    for _ in range(8):
        story.pass_time(1.0)
    assert story.phase() is phase
    story.agents(silent=False)
    story.continues(300)
    assert story.phase() is NodeRecoveryPhase.RETURNED
    assert story.orders() == ["reboot"], "the machine that came back well is not replaced"


@pytest.mark.parametrize("away", ["slurm", "pause", "switch"])
def test_waiting_recoveries_continue_after_an_outage(away):
    story = Interrupted()
    slurm = story.world.slurm
    story.world.breaks(story.world.names[0], CURED)
    story.daemon.scheduler.mishaps.lost_before = 1
    story.daemon.run()
    assert story.phase() is NodeRecoveryPhase.OPEN
    (job,) = story.daemon.loop.state.jobs.values()
    assert job.phase is JobRecoveryPhase.HIT
    if away == "slurm":
        story.world.away("slurm", HOURS)
    elif away == "pause":
        story.daemon.ask("pause")
    story.daemon.kill_switch.on = away == "switch"
    for _ in range(int(HOURS / 600)):
        story.pass_time(600.0)
    if away == "pause":
        story.daemon.ask("unpause")
    story.daemon.kill_switch.on = False
    story.continues(600)
    assert story.phase() is NodeRecoveryPhase.RETURNED
    (job,) = story.daemon.loop.state.jobs.values()
    assert job.phase is JobRecoveryPhase.RESUMED
    assert slurm.jobs[story.job].restarts == 1


def test_a_deadline_still_comes_when_all_had_time_to_speak():
    story = Interrupted()
    story.world.breaks(story.world.names[0], CURED)
    story.until(NodeRecoveryPhase.VERIFYING)
    story.world.machines[story.world.names[0]].agent_silent = True
    story.world.passes(HOURS)
    story.daemon.start()
    story.continues(300)
    assert story.phase() is NodeRecoveryPhase.ESCALATED


@pytest.mark.parametrize(
    "phase",
    [
        NodeRecoveryPhase.OPEN,
        NodeRecoveryPhase.CORDONED,
        NodeRecoveryPhase.VACATED,
        NodeRecoveryPhase.VERIFYING,
    ],
)
def test_open_recoveries_rest_while_mode_is_observe(phase):
    story = Interrupted()
    story.world.breaks(story.world.names[0], CURED)
    if phase is NodeRecoveryPhase.OPEN:
        story.daemon.scheduler.mishaps.lost_before = 1
        story.daemon.run()
        assert story.phase() is phase
    else:
        story.until(phase, 0.05 if phase is NodeRecoveryPhase.CORDONED else 1.0)
    own, story.daemon.policy = story.daemon.policy, replace(POLICY, mode=OperatingMode.OBSERVE)
    before = story.effects()
    for _ in range(int(HOURS / 60)):
        story.pass_time(60.0)
    assert story.effects() == before
    assert story.phase() in (phase, NodeRecoveryPhase.VACATED), "a phase that only looks may end"
    story.daemon.policy = own
    story.continues(600)
    assert story.phase() is NodeRecoveryPhase.RETURNED
    assert story.orders() == ["reboot"]


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_that_comes_just_before_our_drain_stays_and_the_service_acts(mark):
    policy = RecoveryPolicy(mode=OperatingMode.ASSIST)
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
    assert recovery.phase is NodeRecoveryPhase.RETURNED
    assert world.provider.instance_of(sick) != born, "by the service"
    assert sick not in world.slurm.jobs[job].nodes
