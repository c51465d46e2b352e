"""From agents' gauges to a Suspect node that `hpctl explain` explains, and no further."""

from datetime import timedelta
from unittest.mock import Mock

import pytest

from hpctl.engine.cloud_watch import CloudPoller
from hpctl.engine.config import Config
from hpctl.engine.explain_view import build_explain_view
from hpctl.engine.journal.events import Event, SignalSeen
from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.observe import ClusterObserver, ObserverSources
from hpctl.engine.world import World
from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import FaultRules, build_fault_rules
from hpctl.insight.grey.daemon import GreyFailureDetector, GreyFailureFindings
from hpctl.insight.grey.decide import WINDOW
from hpctl.vocabulary.assessment import NodeCondition, Remedy, Urgency
from hpctl.vocabulary.cloud_facts import CloudProviderView
from hpctl.vocabulary.model import AgentReport, NodeHealth
from hpctl.vocabulary.policy import FaultClassOverride
from hpctl.vocabulary.ports import CloudProvider
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmReservation
from tests.fakes.engine import plan
from tests.fakes.values import (
    N1,
    OWN,
    T0,
    Clock,
    at,
    generation,
    node_name,
    opened,
    slurm_job,
    slurm_node,
)

NAMES = tuple(node_name(n) for n in range(1, 9))
USUAL = {"gpu.busy": 0.95, "gpu.power_w": 600.0, "gpu.throttle_share": 0.0}
HOT = {**USUAL, "gpu.throttle_share": 0.5}


class Slurm:
    """One job on all nodes."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.frozen = clock, False

    def view(self) -> SchedulerView:
        as_of = T0 if self.frozen else self.clock.now()
        nodes = {n: slurm_node(k + 1, state="ALLOCATED") for k, n in enumerate(NAMES)}
        job = slurm_job(7, nodes=NAMES)
        return SchedulerView(as_of, nodes, {job.id: job})

    def reservations(self) -> dict[str, SlurmReservation]:
        return {}


class Head:
    """The daemon's wiring of health, grey failures and observer; what is stored is in `rows`."""

    def __init__(self, tmp):
        self.clock, self.pokes = Clock(), 0
        self.slurm = Slurm(self.clock)
        self.rows: dict[str, NodeHealth] = {}
        found = GreyFailureFindings()
        self.book = NodeHealthStore({}, self, self._poke, self.clock, [found])
        no_provider = Mock(spec=CloudProvider, view=lambda: CloudProviderView(self.clock.now()))
        self.cloud = cloud = CloudPoller(no_provider, lambda: None, 30.0)
        live = LiveConfig(Config(kill_switch=tmp / "STOP"))
        sources = ObserverSources(self.slurm, cloud, self.book)
        self.observer = ClusterObserver(sources, live, self.clock)
        self.grey = GreyFailureDetector(found, self.book, self.observer, self.clock)

    def record(self, rows):
        self.rows |= {r.generation.node: r for r in rows}

    def store_last_heard_times(self, heard):
        """Not stored."""

    def _poke(self) -> None:
        self.pokes += 1

    def windows(self, count, *, hot=(), boot=1):
        for _ in range(count):
            for _ in range(2):
                self.clock.at += WINDOW / 2
                for node in NAMES:
                    born = generation(node, boot if node == N1 else 1)
                    seq = int(self.clock.monotonic())
                    report = AgentReport(
                        born.node, born.instance, born.boot, seq, self.clock.at, T0,
                        gauges=HOT if node in hot else USUAL,
                    )  # fmt: skip
                    self.book.accept(report)
                    self.grey.hear(report.generation, report.gauges)
            self.observer.look(EngineState(), build_fault_rules())
            self.grey.compare()

    def look(self, in_force):
        self.cloud.read()
        return self.observer.look(EngineState(), in_force)

    def condition(self, in_force: FaultRules | None = None) -> NodeCondition:
        judged = self.look(in_force or build_fault_rules()).assessments.get(N1)
        return judged.condition if judged else NodeCondition.HEALTHY


@pytest.fixture
def head(tmp_path) -> Head:
    return Head(tmp_path)


def test_a_slow_node_is_suspect_within_three_minutes_and_the_loop_is_woken(head: Head) -> None:
    head.windows(4)
    before = head.pokes
    head.windows(5, hot=[N1])
    assert head.condition() is NodeCondition.HEALTHY
    head.windows(1, hot=[N1])
    assert head.condition() is NodeCondition.SUSPECT
    assert head.pokes == before + 1
    assert head.clock.at - at(80) <= timedelta(minutes=3)


def test_a_single_slow_signal_opens_nothing_unless_the_site_says_so(head: Head) -> None:
    head.windows(6, hot=[N1])
    view = head.look(build_fault_rules())
    assert plan(view, OWN, build_fault_rules(), {n: [] for n in NAMES}, head.clock.at).opens == ()
    theirs = build_fault_rules(
        {"peer-throttle": FaultClassOverride(Urgency.AFTER_JOBS, (Remedy.RESET_GPU, Remedy.REBOOT))}
    )
    view = head.look(theirs)
    assert view.assessments[N1].condition is NodeCondition.FAULTY
    assert plan(view, OWN, theirs, {n: [] for n in NAMES}, head.clock.at).opens


def test_what_is_stored_lets_explain_tell_onset_and_evidence(head: Head) -> None:
    head.windows(6, hot=[N1])
    head.book.flush()
    stored = head.rows[N1]
    world = World(
        now=head.clock.at, policy=OWN, state=EngineState(), health=head.rows,
        assessments={N1: assess_health(stored, build_fault_rules(), head.clock.at)},
    )  # fmt: skip
    reported = build_explain_view(world, build_fault_rules(), N1)
    assert "suspect" in reported.headline
    (evidence,) = reported.evidence
    assert (evidence.check, evidence.first) == ("peer.throttle", T0)
    assert "gpu.throttle_share 0.5" in evidence.evidence
    assert "lower quartile 0" in evidence.evidence


def test_it_is_over_in_the_store_too_when_the_node_is_well_again(head: Head) -> None:
    head.windows(6, hot=[N1])
    head.book.flush()
    head.windows(6)
    assert head.condition() is NodeCondition.HEALTHY
    head.book.flush()
    assert head.rows[N1].findings == ()


def test_another_boot_starts_without_suspicion(head: Head) -> None:
    head.windows(6, hot=[N1])
    head.windows(1, hot=[N1], boot=2)
    assert head.condition() is NodeCondition.HEALTHY


def test_an_old_view_of_slurm_compares_no_node(head: Head) -> None:
    head.slurm.frozen = True
    head.clock.at += timedelta(minutes=5)
    head.windows(10, hot=[N1])
    assert head.condition() is NodeCondition.HEALTHY


def test_what_breaks_again_is_shown_with_its_findings_and_stays_in_service(head: Head) -> None:
    head.windows(1)
    log: list[Event] = []
    for n in range(4):
        log.append(opened(f"n-{n}", N1, n - 1000.0 * (4 - n)))
        log.append(SignalSeen(at(n - 1000.0 * (4 - n)), f"n-{n}", "operator_cancelled", ""))
    head.grey.update_forecasts(replay_events(log))
    assert head.condition() is NodeCondition.HEALTHY
    head.book.flush()
    (reported,) = head.rows[N1].findings
    assert reported.check == "history.forecast"
    assert "broke 4 times" in reported.evidence
    head.grey.update_forecasts(EngineState())
    head.book.flush()
    assert head.rows[N1].findings == ()
