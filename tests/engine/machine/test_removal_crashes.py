"""Autoscaling removes an idle node, with a crash before and after every append and every call.

The end must be the one without a crash: the one instance is deleted, once, and never under a job.
"""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from hpctl.faults.catalogue import build_fault_rules
from hpctl.vocabulary.node_recovery import SCALE_DOWN, NodeRecoveryPhase
from hpctl.vocabulary.policy import (
    AutoscalePolicy,
    InstanceGroupSizeLimits,
    OperatingMode,
    RecoveryPolicy,
)
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.recovery import StepKind
from tests.engine.machine.daemon import Daemon
from tests.engine.machine.oracle import Oracle
from tests.engine.machine.world import World
from tests.fakes.provider import GROUP

pytestmark = pytest.mark.slow

SCALE = AutoscalePolicy(
    enabled=True, groups={GROUP: InstanceGroupSizeLimits(3, 4)}, down_after_s=60.0
)
POLICY = RecoveryPolicy(mode=OperatingMode.OWN, autoscale=SCALE)


class Removal:
    """Four nodes, of which a job holds three: the fourth leaves."""

    def __init__(self) -> None:
        self.world = World(4)
        self.job = self.world.slurm.submit(3, 50_000.0)
        self.oracle = Oracle(self.world, POLICY)
        self.daemon = Daemon(self.world, POLICY, build_fault_rules(), watcher=self.oracle)
        self.oracle.daemon = self.daemon
        self.world.passes(1.0)
        self.daemon.run()
        busy = self.world.slurm.jobs[self.job].nodes
        (self.idle,) = set(self.world.names) - set(busy)
        self.instance = self.world.provider.instance_of(self.idle)

    def play(self, happens: Callable[["Removal"], None] | None = None) -> tuple[object, ...]:
        """Some minutes, in which a node becomes idle for long enough. `happens` in each second."""
        for second in range(400):
            self.world.passes(1.0)
            if happens is not None:
                happens(self)
            if second < 200 or second % 20 == 0:
                self.daemon.run()
        self.oracle.check()
        if not self.in_doubt():
            self.oracle.ended_well()
        return self.end()

    def in_doubt(self) -> bool:
        """Whether nobody can say that the deletion was not ordered: nothing takes it back then."""
        recs = self.daemon.loop.state.nodes.values()
        return any(s.in_doubt for rec in recs for s in rec.steps if s.kind is StepKind.REMOVE)

    def end(self) -> tuple[object, ...]:
        """What counts: the orders, the node, how the removals ended, and the job."""
        orders = sorted({(o.kind, o.instance) for o in self.world.provider.orders})
        node, state = self.world.slurm.nodes[self.idle], self.daemon.loop.state
        ends = {rec.phase for rec in state.nodes.values() if rec.rule == SCALE_DOWN}
        return orders, node.drained, ends, self.world.slurm.jobs[self.job].state


def test_a_crash_at_every_boundary_deletes_the_one_instance_once() -> None:
    for lost in (0, 1, 2):
        whole = Removal()
        whole.world.provider.lose_reply(lost)
        wanted = whole.play()
        assert wanted == (
            [("remove", whole.instance)],
            True,
            {NodeRecoveryPhase.REMOVED},
            "RUNNING",
        )
        assert len(whole.world.provider.orders) == 1
        assert whole.daemon.boundary.count >= 6, whole.daemon.boundary.passed
        for number in range(1, whole.daemon.boundary.count + 1):
            for after in (False, True):
                story = Removal()
                story.world.provider.lose_reply(lost)
                story.daemon.boundary.arm(number, after)
                assert story.play() == wanted, (lost, number, after)
                assert len(story.world.provider.orders) == 1, (lost, number, after)


def test_a_job_that_comes_before_the_deletion_has_the_node_whatever_crashes() -> None:
    """A job comes as the node is drained, and the service throttles the deletion."""

    def come(story: Removal) -> None:
        slurm = story.world.slurm
        if slurm.nodes[story.idle].drained and len(slurm.jobs) == 1:
            slurm.submit(1, 50_000.0)

    whole = Removal()
    whole.world.provider.throttle(10)
    wanted = whole.play(come)
    assert wanted == ([], False, {NodeRecoveryPhase.CANCELLED}, "RUNNING")
    doubts = 0
    for number in range(1, whole.daemon.boundary.count + 1):
        for after in (False, True):
            story = Removal()
            story.world.provider.throttle(10)
            story.daemon.boundary.arm(number, after)
            end = story.play(come)
            assert end[0] == [], (number, after)
            if story.in_doubt():
                doubts += 1
                continue
            assert end[1] is False, (number, after)
            assert parse_recovery_id_from_reason(story.world.slurm.nodes[story.idle].reason) is None
            assert all(job.state == "RUNNING" for job in story.world.slurm.jobs.values())
    assert doubts == 4, "between the intent and the answer"


def test_a_group_at_its_minimum_loses_no_node() -> None:
    story = Removal()
    groups = {GROUP: InstanceGroupSizeLimits(4, 4)}
    story.daemon.policy = replace(POLICY, autoscale=replace(SCALE, groups=groups))
    assert story.play() == ([], False, set(), "RUNNING")
