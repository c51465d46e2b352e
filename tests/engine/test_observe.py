"""What the observer remembers of jobs that Slurm forgets too early, and when it must look again."""

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from hpctl.engine.advance import RecoveryPassResult
from hpctl.engine.cloud_watch import CloudPoller
from hpctl.engine.config import Config
from hpctl.engine.journal.events import RequestTaken
from hpctl.engine.journal.state import replay_events
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop import find_next_loop_cycle_time
from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.observe import (
    ClusterObserver,
    ObserverSources,
    carry_over_last_job_nodes,
    carry_over_last_job_runs,
    find_next_agent_silence,
)
from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import build_fault_rules
from hpctl.toolkit.errors import ReadInterrupted, ServiceUnavailable
from hpctl.vocabulary.assessment import NodeCondition
from hpctl.vocabulary.cloud_facts import CloudProviderView
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmReservation
from tests.fakes.values import T0, opened, slurm_node
from tests.reports import Rows

BOTH = ("n1", "n2")


def seen(**job) -> SchedulerView:
    one = SlurmJob(7, submit=T0, **job)
    return SchedulerView(T0, {}, {one.id: one})


RUNNING = seen(state="RUNNING", nodes=BOTH)


ELSEWHERE = ("n3",)
COMPLETING = seen(state="FAILED", flags=frozenset({"COMPLETING"}), nodes=BOTH[:1])


@pytest.mark.parametrize(
    ("after", "kept"),
    [
        (seen(state="PENDING", restarts=1), BOTH),
        (COMPLETING, BOTH),
        (seen(state="RUNNING", restarts=1, nodes=ELSEWHERE), ELSEWHERE),
    ],
    ids=["requeued", "completing, a node has left it", "runs elsewhere"],
)
def test_a_job_keeps_the_nodes_of_its_last_run_until_the_next(after, kept):
    assert carry_over_last_job_nodes(RUNNING, after).jobs[7].nodes == kept


WAITS = seen(state="PENDING", restarts=1)


@pytest.mark.parametrize(
    ("before", "after", "ordered"),
    [
        (seen(state="FAILED"), WAITS, True),
        (seen(state="COMPLETED"), WAITS, True),
        (COMPLETING, WAITS, False),
        (RUNNING, WAITS, False),
        (seen(state="PENDING", restarts=1, ordered=True), WAITS, True),
        (seen(state="PENDING", restarts=0, ordered=True), WAITS, False),
        (seen(state="FAILED"), seen(state="RUNNING", restarts=1), False),
    ],
)
def test_a_requeue_of_a_job_that_had_ended_is_remembered_while_it_waits(before, after, ordered):
    assert carry_over_last_job_runs(before, after).jobs[7].ordered is ordered


def heard(node: str, seconds: float) -> NodeHealth:
    return NodeHealth(NodeGeneration(node, "i-1", "b-1"), T0 + timedelta(seconds=seconds))


def test_the_loop_looks_again_when_the_next_node_falls_silent():
    reported = {h.generation.node: h for h in (heard("n1", -7), heard("n2", -3), heard("n3", -900))}
    at = find_next_agent_silence(reported, build_fault_rules(), T0)
    assert at is not None
    assert timedelta(0) < at - (T0 + timedelta(seconds=13)) < timedelta(seconds=0.1)
    judged = {
        node: assess_health(h, build_fault_rules(), at).condition for node, h in reported.items()
    }
    assert judged == {
        "n1": NodeCondition.UNKNOWN,
        "n2": NodeCondition.HEALTHY,
        "n3": NodeCondition.UNKNOWN,
    }
    # And then at the next; that one alone is left, and when it is silent too, nobody is.
    assert find_next_agent_silence(reported, build_fault_rules(), at) == at + timedelta(seconds=4)
    assert find_next_agent_silence(reported, build_fault_rules(), at + timedelta(seconds=5)) is None


class Still:
    """A Slurm, a cloud and a clock in which nothing happens."""

    def __init__(self) -> None:
        self.at = T0

    def view(self) -> SchedulerView:
        return SchedulerView(self.at)

    def reservations(self) -> dict[str, SlurmReservation]:
        return {}

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return self.at.timestamp()


class Late(Still):
    """A cloud in which the cluster is made after the first look."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.errors = [error]

    def view(self):
        if self.errors:
            raise self.errors.pop()
        return CloudProviderView(self.at, present=True)


@pytest.mark.parametrize(
    "error",
    [
        ServiceUnavailable("there is no such cluster"),
        # A proxy's page where the service's answer should be: the thread must outlive it.
        KeyError("ClusterNodeSummaries"),
    ],
)
def test_a_cloud_that_did_not_answer_is_asked_again_soon(error, monkeypatch):
    monkeypatch.setattr("hpctl.engine.cloud_watch.AGAIN_S", 0.01)
    poked = threading.Event()
    cloud = CloudPoller(Late(error), poked.set, 3600)
    cloud.start()
    try:
        assert poked.wait(60)
        assert (cloud.view.as_of, cloud.trouble) == (T0, "")
    finally:
        cloud.stop()


class Counted(Still):
    """A cloud that counts how often it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.read = threading.Event()

    def view(self):
        self.reads += 1
        self.read.set()
        return CloudProviderView(self.at, present=True)

    def again(self, timeout_s: float) -> bool:
        """Whether it is read once more within the time."""
        again = self.read.wait(timeout_s)
        self.read.clear()
        return again


@pytest.mark.parametrize("fresh_s", [0.0, 3600.0])
def test_a_reading_that_blocks_something_is_taken_again_once(fresh_s, monkeypatch):
    monkeypatch.setattr("hpctl.engine.cloud_watch.FRESH_S", fresh_s)
    counted = Counted()
    cloud = CloudPoller(counted, lambda: None, 3600)
    cloud.start()
    try:
        assert counted.again(10)
        one, two = ("n1", "provider_acts"), ("n2", "wrong_instance")
        cloud.look(3600, {one})
        assert counted.again(10 if fresh_s == 0 else 0.1) is (fresh_s == 0)
        cloud.look(3600, {one})
        assert not counted.again(0.1), "it is known"
        cloud.look(3600, {one, two})
        assert counted.again(10 if fresh_s == 0 else 0.1) is (fresh_s == 0)
        cloud.look(3600, {two})
        assert not counted.again(0.1), "one less"
    finally:
        cloud.stop()


def observing(slurm, place, cloud=None, *reported):
    """An observer of this Slurm, and of nodes whose agents said that."""
    watch = CloudPoller(slurm, lambda: None, 30)
    watch.view = cloud or watch.view
    health = NodeHealthStore({h.generation.node: h for h in reported}, Rows(), lambda: None, slurm)
    sources = ObserverSources(slurm, watch, health)
    return watch, ClusterObserver(sources, LiveConfig(Config(kill_switch=place / "STOP")), slurm)


def looked(reported, returned, tmp_path):
    _, observer = observing(Still(), tmp_path, CloudProviderView(T0), reported)
    taken = []
    if returned is not None:
        taken.append(RequestTaken(returned, 1, "return", "n1", "ann", "as you wish", True))
        taken.append(RequestTaken(returned, 2, "return", "n2", "ann", "no such node", False))
    return observer.look(replay_events(taken), build_fault_rules())


class Flaky(Still):
    """A Slurm that answers only while it is up."""

    up = True

    def view(self) -> SchedulerView:
        if not self.up:
            raise ServiceUnavailable("connection refused")
        return super().view()


@pytest.mark.parametrize(("seconds", "begins_anew"), [(60, False), (61, True)])
def test_pause_counts_when_it_lasted_long_enough(seconds, begins_anew, tmp_path):
    """A slurmctld that misses a question now and then puts no deadline off."""
    world = Flaky()
    _, observer = observing(world, tmp_path)

    def able_since(up: bool, after: float) -> datetime | None:
        world.up, world.at = up, T0 + timedelta(seconds=after)
        return observer.look(replay_events([]), build_fault_rules()).able_since

    assert able_since(True, 0) == T0, "a start ends a gap"
    assert able_since(True, 30) == T0
    assert able_since(False, 100) == world.at
    assert able_since(False, 150) == world.at
    assert able_since(True, 100 + seconds) == (world.at if begins_anew else T0)


class Restarted(Flaky):
    """It tells when it started."""

    asked = 0

    def read_slurmctld_boot_time(self) -> datetime:
        self.asked += 1
        return T0


@pytest.mark.parametrize(
    ("phase", "flags", "asked"),
    [
        (NodeRecoveryPhase.CORDONED, frozenset(), 1),
        (NodeRecoveryPhase.CORDONED, frozenset({"DRAIN"}), 0),
        (NodeRecoveryPhase.OPEN, frozenset(), 0),
    ],
)
def test_slurmctlds_start_is_asked_where_a_node_of_ours_is_in_service(
    phase, flags, asked, tmp_path
):
    state = replay_events([opened()])
    (rid,) = state.nodes
    node = slurm_node(1, flags=flags)
    state.nodes[rid] = replace(state.nodes[rid], phase=phase)
    assert state.nodes[rid].node == node.name
    slurm = Restarted()
    slurm.view = lambda: SchedulerView(T0, {node.name: node})
    _, observer = observing(slurm, tmp_path)
    view = observer.look(state, build_fault_rules())
    assert (slurm.asked, view.scheduler.booted) == (asked, T0 if asked else None)


def test_an_operators_return_clears_what_only_he_clears(tmp_path):
    first = T0 - timedelta(minutes=5)
    module = Finding(
        "host.edac",
        DeviceVerdict.FAIL,
        first,
        T0,
        code="uncorrected",
        clears=ClearCondition.OPERATOR,
    )
    reported = replace(heard("n1", 0), findings=(module,))
    for returned, counted in ((None, 1), (first - timedelta(seconds=1), 1), (T0, 0)):
        view = looked(reported, returned, tmp_path)
        assert (len(view.health["n1"].findings), len(view.assessments)) == (counted, counted)
    # The same on a node whose return was refused.
    other = replace(reported, generation=replace(reported.generation, node="n2"))
    assert len(looked(other, T0, tmp_path).assessments) == 1


def test_the_loop_sleeps_no_longer_than_until_the_next_silence(tmp_path):
    view = looked(heard("n1", -15), None, tmp_path)
    assert view.silent_at is not None
    assert (
        find_next_loop_cycle_time(RecoveryPassResult((), (), ()), view, False).until
        == view.silent_at
    )
    assert view.silent_at - T0 < timedelta(seconds=5.1)


class Large(Still):
    """A Slurm of two nodes, whose whole takes long to read; it counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.states = dict.fromkeys(BOTH, "IDLE")
        self.event: Callable[[], None] | None = None
        self.gives_up = True

    def view(self) -> SchedulerView:
        self.asked.append("whole")
        if event := self.event:
            self.event = None
            event()
            if self.gives_up:
                raise ReadInterrupted("given up")
        return self._shown(BOTH)

    def part(self, nodes, known):
        self.asked.append("+".join(nodes))
        return self._shown(nodes)

    def leaves(self) -> dict[str, str]:
        return {}

    def _shown(self, names):
        found = {n: slurm_node(int(n[1:]), state=self.states[n]) for n in names}
        return SchedulerView(self.at, found, {})


MODULE = Finding("host.edac", DeviceVerdict.FAIL, T0, T0, code="uncorrected")


@pytest.fixture
def live(tmp_path) -> LiveConfig:
    return LiveConfig(Config(kill_switch=tmp_path / "STOP"))


@pytest.fixture
def large(live) -> tuple[Large, dict[str, NodeHealth], ClusterObserver]:
    slurm = Large()
    cloud = CloudPoller(slurm, lambda: None, 30)
    health: dict[str, NodeHealth] = {}
    store = Mock(spec=NodeHealthStore, snapshot=lambda: dict(health))
    sources = ObserverSources(slurm, cloud, store)
    observer = ClusterObserver(sources, live, slurm, whole_cheap_s=-1)
    return slurm, health, observer


def test_a_fault_interrupts_the_reading_of_a_large_cluster(large):
    slurm, health, observer = large
    observer.look(replay_events([]), build_fault_rules())
    slurm.event = lambda: health.update(n1=replace(heard("n1", 0), findings=(MODULE,)))
    slurm.at = T0 + timedelta(seconds=40)
    seen = observer.look(replay_events([]), build_fault_rules())
    assert slurm.asked == ["whole", "whole", "n1"]
    assert seen.health["n1"].findings
    for after, asked in (44, "n1"), (46, "whole"):
        slurm.at = T0 + timedelta(seconds=after)
        observer.look(replay_events([]), build_fault_rules())
        assert slurm.asked[-1] == asked


def test_a_report_that_comes_too_late_to_interrupt_a_reading_counts_in_the_same_look(large):
    slurm, health, observer = large
    slurm.gives_up = False
    slurm.event = lambda: health.update(n1=replace(heard("n1", 0), findings=(MODULE,)))
    assert observer.look(replay_events([]), build_fault_rules()).health["n1"].findings
    assert slurm.asked == ["whole"]


def test_an_event_without_a_node_has_the_whole_read_once_more(large):
    slurm, _, observer = large
    slurm.event = lambda: None
    observer.look(replay_events([]), build_fault_rules())
    assert slurm.asked == ["whole", "whole"]
    assert not observer.trouble


def test_a_part_of_a_large_cluster_is_read_while_something_is_to_be_done(large, live):
    slurm, health, observer = large

    def look(after: float) -> SchedulerView:
        slurm.at = T0 + timedelta(seconds=after)
        return observer.look(replay_events([]), build_fault_rules()).scheduler

    look(0)
    look(1)
    assert slurm.asked == ["whole", "whole"], "nothing is the matter: each node matters"
    health[BOTH[0]] = replace(heard("n1", 0), findings=(MODULE,))
    slurm.states = dict.fromkeys(BOTH, "DOWN")
    for after in (20, 22, 25):
        seen = look(after)
        assert (slurm.asked[-1], [seen.nodes[n].state for n in BOTH]) == ("n1", ["DOWN", "IDLE"])
        assert seen.as_of == T0 + timedelta(seconds=1), "the rest is as old as that"
    assert (look(25.1).nodes[BOTH[1]].state, slurm.asked[-1]) == ("DOWN", "whole")
    look(26)
    assert slurm.asked[-1] == "n1"
    look(60)
    assert slurm.asked[-1] == "whole", "no part beside a whole that is older than half a minute"
    live.replace(Config(spares={"gpu": 1}))
    look(61)
    assert slurm.asked[-1] == "whole", "spares are chosen among all nodes"


def test_a_view_says_whether_reservations_and_topology_were_read_for_it(
    large, live, monkeypatch
) -> None:
    slurm, _, observer = large
    assert not observer.look(replay_events([]), build_fault_rules()).placed, "nothing needs them"
    live.replace(Config(spares={"gpu": 1}))
    assert observer.look(replay_events([]), build_fault_rules()).placed
    with monkeypatch.context() as patch:
        patch.setattr(
            slurm, "reservations", lambda: _raise(ServiceUnavailable("slurmctld is away", ""))
        )
        assert not observer.look(replay_events([]), build_fault_rules()).placed, (
            "what is known is of before"
        )
    assert observer.look(replay_events([]), build_fault_rules()).placed
    live.replace(Config())
    assert not observer.look(replay_events([]), build_fault_rules()).placed


def _raise(error: Exception) -> None:
    raise error


class Registering(Still):
    """A Slurm whose one node bears a mark, and whose clock is set back after the node's boot."""

    back = timedelta()

    def view(self) -> SchedulerView:
        booted = T0 + timedelta(seconds=5) - self.back
        node = slurm_node(
            1, flags=frozenset({"FAIL"}), reason="Action:Reboot", reason_at=T0, boot_time=booted
        )
        return SchedulerView(self.at, {node.name: node})


def test_a_spent_mark_asks_for_no_second_reboot_when_the_clock_is_set_back(tmp_path):
    slurm = Registering()
    _, observer = observing(slurm, tmp_path, CloudProviderView(T0))
    for back in (timedelta(), timedelta(hours=1)):
        slurm.back = back
        (found,) = observer.look(replay_events([]), build_fault_rules()).health["n1"].findings
        assert found.code == "spent"
