"""Slurm is read at rest as rarely as its log allows, and before anything is begun."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from hpctl.daemon.kinds import KINDS
from hpctl.engine.cloud_watch import CloudPoller
from hpctl.engine.config import Config
from hpctl.engine.execute import StepExecutor, StepExecutorPorts
from hpctl.engine.journal.in_process import InProcessJournal
from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop import RecoveryLoop
from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.observe import OPEN_EVERY_S, WHOLE_AGE_S, ClusterObserver, ObserverSources
from hpctl.engine.reading_pace import DISTRUST_S, JOB_S, NODE_S, SILENCE
from hpctl.engine.view import PlanningView, Request, SlurmReadScope
from hpctl.faults.catalogue import build_fault_rules
from hpctl.sagemaker.no_provider import NoProvider
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.controller_news import SlurmctldLogEvent
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.fakes.scheduler import SimSlurm
from tests.fakes.values import T0, Clock, opened
from tests.reports import Rows

NAMES = ["n1", "n2", "n3"]
PACE = Config().loop
SICK = Finding("kernel.xid", DeviceVerdict.FAIL, T0, T0, code="79")


class Log:
    """slurmctld's log: what was written, whether it is there, and how often it was asked for."""

    def __init__(self) -> None:
        self.news, self.trouble, self.is_following, self.opened = (
            SlurmctldLogEvent.NONE,
            "",
            False,
            0,
        )

    def open(self) -> str:
        self.opened += 1
        self.is_following = not self.trouble
        return self.trouble

    def read(self) -> SlurmctldLogEvent:
        news, self.news = self.news, SlurmctldLogEvent.NONE
        return news if self.is_following else SlurmctldLogEvent.NONE


class Slurm(SimSlurm):
    """It counts how often all of it is read."""

    wholes = 0

    def view(self) -> SchedulerView:
        self.wholes += 1
        return super().view()


class Head:
    """An observer over a cluster whose log is followed from the first cycle on."""

    def __init__(self, place, slurm: Callable[["Head"], Slurm] | None = None) -> None:
        self.clock, self.log = Clock(), Log()
        self.slurm = (
            slurm(self) if slurm else Slurm(NAMES, self.clock.now, lambda _: True, lambda _: T0)
        )
        self.health = NodeHealthStore({}, Rows(), lambda: None, self.clock)
        self.hear(*NAMES)
        cloud = CloudPoller(NoProvider(), lambda: None, 30)
        cloud.read()
        sources = ObserverSources(self.slurm, cloud, self.health, self.log)
        live = LiveConfig(Config(kill_switch=place / "STOP"))
        self.observer = ClusterObserver(sources, live, self.clock)
        self.state = replay_events([])

    def hear(self, *names: str, findings: tuple[Finding, ...] = ()) -> None:
        known = {
            n: NodeHealth(NodeGeneration(n, f"i-{n}", f"{n}-boot-1"), self.clock.now(), findings)
            for n in names
        }
        self.health.take_over({**self.health.copy_agent_health(), **known})

    def look(self, after_s: float = 0.0, *, quiet: bool = True, heard=NAMES) -> PlanningView:
        self.clock.at += timedelta(seconds=after_s)
        self.hear(*heard)
        return self.observer.look(self.state, build_fault_rules(), quiet=quiet)

    def settle(self) -> None:
        """The log is found, and what was written meanwhile is read."""
        assert self.look(quiet=False).reading is SlurmReadScope.WHOLE
        assert self.log.is_following
        assert self.look(NODE_S).reading is SlurmReadScope.WHOLE, "what came before it was followed"


@pytest.fixture
def head(tmp_path) -> Head:
    head = Head(tmp_path)
    head.settle()
    return head


def readings(head: Head, seconds: int, **more) -> int:
    """How many of the quiet cycles of some time, one each ten seconds, read Slurm."""
    looks = [head.look(10.0, **more).reading for _ in range(seconds // 10)]
    return sum(reading is not SlurmReadScope.NONE for reading in looks)


def test_at_rest_slurm_is_read_once_in_rest_s(head):
    before = head.slurm.wholes
    assert readings(head, 3000) == 3000 / PACE.rest_s
    assert head.slurm.wholes - before == 3000 / PACE.rest_s


def test_reading_keeps_its_age_and_is_confirmed_until_now(head):
    read = head.observer.slurm.as_of
    view = head.look(100.0)
    assert view.reading is SlurmReadScope.NONE
    assert view.scheduler.as_of == read
    assert view.scheduler.valid_at == head.clock.now()
    assert view.current


def test_an_event_has_slurm_read_at_once(head):
    assert head.look(1.0, quiet=False).reading is SlurmReadScope.WHOLE


def test_jobs_that_come_and_go_all_the_time_have_slurm_read_each_ten_seconds(head):
    def busy() -> bool:
        head.log.news = SlurmctldLogEvent.JOB
        head.observer.has_urgent_controller_log_event()
        return head.look(2.0).reading is SlurmReadScope.WHOLE

    assert sum(busy() for _ in range(150)) == 300 / JOB_S


@pytest.mark.parametrize("news", [SlurmctldLogEvent.NODE, SlurmctldLogEvent.JOB])
def test_a_line_about_a_node_or_a_job_ends_the_rest(head, news):
    head.look(20.0)
    assert not head.observer.has_urgent_controller_log_event()
    head.log.news = news
    assert head.observer.has_urgent_controller_log_event()
    assert head.look().reading is SlurmReadScope.WHOLE
    assert not head.observer.has_urgent_controller_log_event()


def test_without_a_log_each_cycle_reads_and_the_log_is_looked_for_now_and_then(tmp_path):
    head = Head(tmp_path)
    head.log.trouble = "SlurmctldLogFile names no file"
    assert readings(head, 1200) == 120
    assert head.log.opened == 1200 / OPEN_EVERY_S
    head.log.trouble = ""
    assert readings(head, 1200) < 70


def test_a_log_that_kept_a_change_back_is_not_trusted_for_a_while(head):
    head.slurm.nodes["n2"].close("bad fan, Ann", head.clock.now())
    head.look(PACE.rest_s)
    during = int(DISTRUST_S) - 10
    assert readings(head, during) == during / 10
    assert readings(head, 300) < 5


def test_a_change_that_the_log_announced_is_no_reason_for_distrust(head):
    head.slurm.nodes["n2"].close("bad fan, Ann", head.clock.now())
    head.log.news = SlurmctldLogEvent.NODE
    assert head.look(20.0).scheduler.nodes["n2"].drained
    assert readings(head, 200) == 0


def test_an_agent_that_became_silent_keeps_the_readings_frequent_for_a_while(head):
    rest = [n for n in NAMES if n != "n1"]
    assert readings(head, 20, heard=rest) == 0, "it is not silent yet"
    lasts = int(SILENCE.total_seconds()) - 20
    assert readings(head, lasts, heard=rest) == lasts / 10
    assert readings(head, 600, heard=rest) <= 3


def test_silent_node_lost_in_slurm_needs_no_further_readings(head):
    head.slurm.nodes["n1"].down = True
    head.log.news = SlurmctldLogEvent.NODE
    rest = [n for n in NAMES if n != "n1"]
    head.look(10.0, heard=rest)
    assert readings(head, 280, heard=rest) == 0


def test_an_open_recovery_has_each_cycle_read(head):
    head.state = replay_events([opened()])
    assert readings(head, 100) == 10


def test_a_slurm_that_does_not_answer_is_asked_at_each_cycle(head):
    head.slurm.away = True
    assert not head.look(PACE.rest_s).current
    assert not head.look(10.0).current
    head.slurm.away = False
    assert head.look(10.0).current


class Requests:
    """What operators ask for."""

    def __init__(self) -> None:
        self.waiting: list[Request] = []

    def pending(self) -> list[Request]:
        return self.waiting

    def news(self) -> list:
        return []


class Cycling:
    """The loop over such a head."""

    def __init__(self, head: Head) -> None:
        self.head, self.requests = head, Requests()
        memory = JournaledState(InProcessJournal())
        executor = StepExecutor(StepExecutorPorts(head.slurm, NoProvider()), memory, head.clock)
        asked = self.requests
        self.loop = RecoveryLoop(memory, executor, head.observer, asked, head.clock, KINDS, asked)

    def cycle(self, after_s: float, *, heard=NAMES) -> SlurmReadScope:
        self.head.clock.at += timedelta(seconds=after_s)
        self.head.hear(*heard)
        self.loop.cycle(RecoveryPolicy(mode=OperatingMode.ASSIST), build_fault_rules(), quiet=True)
        assert self.loop.last is not None
        return self.loop.last.view.reading

    @property
    def state(self) -> EngineState:
        return self.loop.state


def test_nothing_is_begun_on_what_was_read_before(head):
    cycling = Cycling(head)
    assert cycling.cycle(10.0) is SlurmReadScope.NONE
    rest = [n for n in NAMES if n != "n1"]
    head.hear("n1", findings=(SICK,))
    assert cycling.cycle(0.1, heard=rest) is SlurmReadScope.WHOLE, "it was read for the decision"
    assert [rec.node for rec in cycling.state.nodes.values()] == ["n1"]


def test_a_held_node_lets_slurm_rest(head):
    cycling = Cycling(head)
    head.slurm.nodes["n1"].close("bad fan, Ann", head.clock.now())
    head.log.news = SlurmctldLogEvent.NODE
    rest = [n for n in NAMES if n != "n1"]

    def cycle() -> SlurmReadScope:
        head.hear("n1", findings=(SICK,))
        return cycling.cycle(10.0, heard=rest)

    assert cycle() is SlurmReadScope.WHOLE
    assert [hold.gate for hold in cycling.state.holds.values()] == ["foreign_drain"]
    before = cycling.state.events
    assert {cycle() for _ in range(20)} == {SlurmReadScope.NONE}
    assert cycling.state.events == before, "the hold stands as it is"


def test_an_operators_request_has_slurm_read(head):
    cycling = Cycling(head)
    cycling.requests.waiting = [Request(1, T0, "pause", "", "ann", "munge")]
    assert cycling.cycle(10.0) is SlurmReadScope.WHOLE


class Large(Slurm):
    """All of it takes longer than a part; it knows which parts were read."""

    def __init__(self, head: Head) -> None:
        super().__init__(NAMES, head.clock.now, lambda _: True, lambda _: T0)
        self._clock, self.parts = head.clock, 0

    def view(self) -> SchedulerView:
        seen = super().view()
        self._clock.at += timedelta(seconds=0.2)
        return seen

    def part(self, nodes, known) -> SchedulerView:
        self.parts += 1
        whole = SimSlurm.view(self)
        return replace(whole, nodes={n: node for n, node in whole.nodes.items() if n in nodes})


def test_a_fault_after_a_long_rest_costs_a_part_and_finds_its_facts_fresh(tmp_path):
    head = Head(tmp_path, Large)
    head.settle()
    cycling = Cycling(head)
    for _ in range(20):
        assert cycling.cycle(10.0) is SlurmReadScope.NONE
    assert WHOLE_AGE_S < 20 * 10.0
    wholes = head.slurm.wholes
    rest = [n for n in NAMES if n != "n1"]
    head.hear("n1", findings=(SICK,))
    assert cycling.cycle(1.0, heard=rest) is SlurmReadScope.PART
    assert (head.slurm.wholes, head.slurm.parts) == (wholes, 1)
    assert [rec.node for rec in cycling.state.nodes.values()] == ["n1"]
    assert not cycling.state.holds
    cycling.cycle(6.0, heard=rest)
    assert head.slurm.wholes == wholes + 1, "the whole follows"


def test_slurm_that_is_away_raises_nothing(head):
    head.slurm.away = True
    with pytest.raises(ServiceUnavailable):
        head.slurm.view()
    assert not head.look(1.0, quiet=False).current
    assert not head.observer.has_urgent_controller_log_event()
