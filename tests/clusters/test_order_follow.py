"""An order that the daemon carries out, followed in its world."""

import itertools

import pytest
from msgspec.structs import replace

from hpctl.clusters.order_follow import DaemonNodeOrderFollower
from hpctl.clusters.order_progress import NodeOrderPhase
from hpctl.clusters.order_terms import NodeAction, NodeOrderOptions
from hpctl.engine.journal.events import NodeRecoveryOpened, SignalSeen, StepResolved, StepStarted
from hpctl.engine.journal.state import EngineState
from hpctl.engine.world import World
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, NodeName
from hpctl.vocabulary.node_recovery import NodeRecoverySignal
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import StepKind
from tests.clusters.bed import CLUSTER

pytestmark = pytest.mark.integration


class Daemon:
    """A journal to which a test appends what a daemon would."""

    def __init__(self, desk) -> None:
        self.desk, self.state, self.rid = desk, EngineState(), "n-1"
        self.name, self.old = NodeName(desk.workers[0]), InstanceId(desk.bed.worker())

    def opens(self) -> None:
        generation = NodeGeneration(self.name, self.old, BootId("a"))
        self.state.fold(
            NodeRecoveryOpened(
                self.desk.now(), self.rid, generation, "operator-replace", "asked for",
                Urgency.AFTER_JOBS, (Remedy.REPLACE,), "asked for by ana", "own", by="ana",
            )
        )  # fmt: skip

    def sees(self, *signals: NodeRecoverySignal, why: str = "seen") -> None:
        for signal in signals:
            self.state.fold(SignalSeen(self.desk.now(), self.rid, signal, why))

    def orders(self, outcome: Outcome) -> None:
        at, step = self.desk.now(), StepKind.REPLACE
        self.state.fold(StepStarted(at, self.rid, step, 1, self.old))
        self.state.fold(StepResolved(at, self.rid, step, 1, outcome))

    def follow(self, refusals=None, **how) -> DaemonNodeOrderFollower:
        order = self.desk.plan(NodeAction.REPLACE, self.name)
        options = NodeOrderOptions(every_s=2.0, **how)
        return DaemonNodeOrderFollower(order, refusals or {}, self.read, self.desk.ports(), options)

    def read(self) -> World:
        """The world as the daemon would serve it."""
        at = self.desk.now()
        try:
            return World(at, RecoveryPolicy(), self.state, slurm=self.desk.slurm.view())
        except ServiceUnavailable as error:
            return World(at, RecoveryPolicy(), self.state, slurm_error=str(error))


@pytest.fixture
def daemon(desk) -> Daemon:
    made = Daemon(desk)
    made.opens()
    return made


def test_a_recovery_is_shown_in_the_words_of_an_order_until_it_has_ended(daemon, desk):
    desk.slurm.run(7, daemon.name)
    looks = daemon.follow().iter_progress()
    (one,) = next(looks)
    assert (one.phase, one.jobs) == (NodeOrderPhase.JOBS, (7,))
    desk.slurm.end(7)
    daemon.sees(NodeRecoverySignal.CORDON_SEEN, NodeRecoverySignal.JOBS_GONE)
    daemon.orders(Outcome.accepted())
    daemon.sees(NodeRecoverySignal.REMEDY_ACCEPTED)
    assert next(looks)[0].phase is NodeOrderPhase.ORDERED
    request = {"ClusterName": CLUSTER, "NodeIds": [daemon.old]}
    desk.bed.emulator.handle("BatchReplaceClusterNodes", request)
    desk.bed.emulator.wait_until_cluster_in_service(CLUSTER, 60)
    assert next(looks)[0].phase is NodeOrderPhase.JOINING
    fresh = NodeGeneration(daemon.name, InstanceId(desk.bed.worker()), BootId("b"))
    seen = SignalSeen(
        desk.now(), daemon.rid, NodeRecoverySignal.NEW_GENERATION_SEEN, "booted", fresh
    )
    daemon.state.fold(seen)
    daemon.sees(NodeRecoverySignal.REJOINED, NodeRecoverySignal.RETURN_SEEN)
    (one,) = next(looks)
    assert (one.phase, one.new_instance_id) == (NodeOrderPhase.DONE, desk.bed.worker())
    assert one.left_drained == ""
    assert next(looks, None) is None


def test_an_order_whose_recovery_is_not_seen_yet_has_not_ended(desk):
    daemon = Daemon(desk)
    looks = daemon.follow().iter_progress()
    (one,) = next(looks)
    assert (one.phase, "not seen yet" in one.text) == (NodeOrderPhase.JOBS, True)
    daemon.opens()
    daemon.sees(NodeRecoverySignal.CORDON_SEEN)
    assert next(looks)[0].text == ""


def test_slurm_that_the_daemon_cannot_read_is_said(daemon, desk):
    looks = daemon.follow().iter_progress()
    next(looks)
    desk.slurm.blind = 1
    assert next(looks)[0].text == "slurmctld does not answer"
    assert next(looks)[0].text == ""


def test_an_escalation_is_a_failure_with_the_reason_that_stays(daemon):
    daemon.sees(NodeRecoverySignal.CORDON_SEEN, NodeRecoverySignal.JOBS_GONE)
    daemon.orders(Outcome.rejected("ValidationException", "no such cluster"))
    daemon.sees(NodeRecoverySignal.NEEDS_HUMAN, why="cannot replace it")
    (one,) = [*daemon.follow().iter_progress()][-1]
    assert (one.phase, one.code, one.text) == (
        NodeOrderPhase.REFUSED, "ValidationException", "no such cluster",
    )  # fmt: skip


def test_a_deadline_is_a_failure_and_the_node_stays_drained(daemon):
    daemon.sees(NodeRecoverySignal.CORDON_SEEN, NodeRecoverySignal.JOBS_GONE)
    daemon.orders(Outcome.accepted())
    daemon.sees(NodeRecoverySignal.REMEDY_ACCEPTED)
    daemon.sees(NodeRecoverySignal.DEADLINE, why="remedying for too long")
    (one,) = [*daemon.follow().iter_progress()][-1]
    assert (one.phase, one.text) == (NodeOrderPhase.FAILED, "remedying for too long")
    assert one.left_drained.startswith("hpctl:n-1 ")


def test_ctrl_c_leaves_the_order_to_the_daemon(daemon, desk):
    desk.slurm.run(7, daemon.name)
    follow = daemon.follow()
    next(follow.iter_progress())
    (one,) = follow.let_go()
    assert one.phase is NodeOrderPhase.LEFT
    assert desk.slurm.updates == []


def test_what_the_daemon_refuses_is_said_in_its_words(daemon):
    refusals = {daemon.name: "held by foreign_drain: drained by bob"}
    (one,) = [*daemon.follow(refusals).iter_progress()][-1]
    assert (one.phase, one.text) == (
        NodeOrderPhase.REFUSED,
        "held by foreign_drain: drained by bob",
    )


def test_the_time_that_the_command_waits_is_the_commands_own(daemon):
    daemon.sees(NodeRecoverySignal.CORDON_SEEN, NodeRecoverySignal.JOBS_GONE)
    daemon.orders(Outcome.accepted())
    daemon.sees(NodeRecoverySignal.REMEDY_ACCEPTED)
    (one,) = [*itertools.islice(daemon.follow(timeout_s=5.0).iter_progress(), 20)][-1]
    assert (one.phase, one.text) == (NodeOrderPhase.LEFT, "not back after 5 s")


def test_an_earlier_recovery_of_the_node_is_not_followed(daemon, desk):
    daemon.sees(NodeRecoverySignal.OPERATOR_CANCELLED)
    daemon.rid = "n-2"
    daemon.opens()
    desk.slurm.run(7, daemon.name)
    (one,) = next(daemon.follow().iter_progress())
    assert one.phase is NodeOrderPhase.JOBS
    assert replace(one, jobs=()).text == ""
