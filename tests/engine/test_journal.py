"""What the journal amounts to, and what is corruption."""

import json
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from benchmarks import world
from benchmarks.past import Past
from hpctl.engine.gates import build_recovery_gate_counts, count_consecutive_launch_failures
from hpctl.engine.journal.events import (
    LIFTS_PAUSE,
    DaemonStarted,
    Event,
    GateBlocked,
    HoldLifted,
    JobRecoveryOpened,
    JobReported,
    RequestTaken,
    SignalSeen,
    StepResolved,
    StepStarted,
)
from hpctl.engine.journal.rows import decode_event, encode_event
from hpctl.engine.journal.state import EngineState, InconsistentEventError, replay_events
from hpctl.engine.remedies import RemedyBudgetUse, explain_remedy_block_by_repeated_recoveries
from hpctl.engine.retire import RECENT_S, compute_journal_lookback_s
from hpctl.faults.catalogue import build_fault_rules
from hpctl.vocabulary.change import ChangeKind, ChangeOpened, ClusterChangeSignal
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.model import NodeHealth
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.pause import find_active_pauses
from hpctl.vocabulary.policy import ConcurrentRecoveryBudgets, FaultClassOverride, RecoveryPolicy
from hpctl.vocabulary.recovery import StepKind
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmNode
from tests.cli.worlds import hung
from tests.fakes.engine import plan, retire
from tests.fakes.values import OWN, T0, at, attempt, faulty, generation, node_name, opened, view_of

N, J = "n-1", "j-1"
CANCEL = SignalSeen(at(5), N, "operator_cancelled", "eve")
STARTED = StepStarted(at(1), N, StepKind.DRAIN, 1, "n1")
DONE = StepResolved(at(2), N, StepKind.DRAIN, 1, Outcome.accepted())
JOB = JobRecoveryOpened(at(1), J, attempt(), N, ("n1",), "its node")
HOLD = GateBlocked(at(0), "n2", "budget", "full", "xid-79", True)


def request(verb: str, target: str = "", *, ok: bool = True) -> RequestTaken:
    return RequestTaken(at(3), 1, verb, target, "eve", "done", ok)


CORRUPT: dict[str, list[Event]] = {
    "opened twice": [opened(), opened()],
    "two recoveries of one node": [opened(), opened("n-2")],
    "an id used again": [opened(), CANCEL, opened()],
    "job opened twice": [opened(), JOB, JOB],
    "signal of nobody": [CANCEL],
    "no such signal": [opened(), SignalSeen(at(1), N, "levitated", "")],
    "a signal that the phase does not know": [opened(), SignalSeen(at(1), N, "rejoined", "")],
    "a job's signal for a node": [opened(), SignalSeen(at(1), N, "proved", "")],
    "signal after the end": [opened(), CANCEL, CANCEL],
    "step of nobody": [STARTED],
    "step started after the end": [opened(), CANCEL, STARTED],
    "resolved but never started": [opened(), DONE],
    "resolved twice": [opened(), STARTED, DONE, DONE],
    "another attempt resolved": [
        opened(), STARTED, StepResolved(at(2), N, StepKind.DRAIN, 2, Outcome.accepted()),
    ],
}  # fmt: skip


@pytest.mark.parametrize("events", CORRUPT.values(), ids=CORRUPT)
def test_impossible_event_raises_journal_corrupt(events: list[Event]) -> None:
    replay_events(events[:-1])
    with pytest.raises(InconsistentEventError):
        replay_events(events)


def test_an_answer_after_the_end_is_legal() -> None:
    """A slow cloud answers after an operator has cancelled."""
    state = replay_events([opened(), STARTED, CANCEL, DONE])
    assert state.nodes[N].phase is NodeRecoveryPhase.CANCELLED
    assert (state.nodes[N].steps[0].outcome, state.open_nodes) == (Outcome.accepted(), {})


def test_attempts_start_again_for_a_new_target() -> None:
    first = StepStarted(at(1), N, StepKind.REBOOT, 1, "i-1")
    again = StepStarted(at(9), N, StepKind.REBOOT, 1, "i-2")
    answer = StepResolved(at(10), N, StepKind.REBOOT, 1, Outcome.accepted())
    steps = replay_events([opened(), first, again, answer]).nodes[N].steps
    assert [s.outcome for s in steps] == [None, Outcome.accepted()]


@pytest.mark.parametrize("verb", LIFTS_PAUSE)
def test_holds_pauses_and_approvals(verb: str) -> None:
    state = replay_events([HOLD, request("pause"), request("approve", "n2")])
    assert (state.holds["n2"], state.pauses[""].by, state.approvals) == (HOLD, "eve", {"n2": at(3)})
    state.fold(request(verb))
    state.fold(HoldLifted(at(4), "n2"))
    assert (state.holds, find_active_pauses(state.pauses, at(4))) == ({}, [])


OLD_RECOVERY = {
    "at": "2026-03-01T12:00:00Z", "recovery": "j-1",
    "attempt": {"job": 7, "submit": "2026-03-01T11:00:00Z", "restarts": 0}, "cause": "n-1",
    "bad_nodes": ["n1"], "why": "its node n1: GPU fell off the bus", "name": "train", "user": "ada",
    "partition": "all", "save_signal": "", "over_budget": "",
}  # fmt: skip


def test_a_job_recovery_of_old_has_no_trouble() -> None:
    event = decode_event(1, "JobRecoveryOpened", json.dumps(OLD_RECOVERY))
    assert (event.trouble, event.action, event.exclude) == (None, RunAction.NONE, ())
    assert (event.start_at, event.supervised, event.ran_on) == (None, False, ())


def test_new_events_survive_a_round_trip_to_disk() -> None:
    text, opened, *_ = hung()
    assert isinstance(text, JobReported)
    assert isinstance(opened, JobRecoveryOpened)
    for event in (text, opened):
        assert decode_event(1, *encode_event(event)) == event


DAY = 86400.0
OLD, CUT = -200 * DAY, at(-100 * DAY)
RULES = build_fault_rules()


def kept(log: Sequence[Event], living: Collection[int] = (), cut: datetime = CUT) -> list[Event]:
    """What stays of a journal, which must still be one."""
    chosen = retire(replay_events(log), cut, list(living))
    left = [event for event in log if chosen.over(event) is None]
    replay_events(left)
    return left


def treated(rid: str, number: int, seconds: float, end: str = "operator_cancelled") -> list[Event]:
    """A node's recovery, over in a minute."""
    ended = SignalSeen(at(seconds + 60), rid, end, "")
    return [opened(rid, node_name(number), seconds), ended]


def moved(rid: str, cause: str, job: int, seconds: float) -> list[Event]:
    """A job's recovery, over in a minute."""
    hit = replace(attempt(job), submit=at(seconds - 60))
    opening = JobRecoveryOpened(at(seconds), rid, hit, cause, (), "")
    return [opening, SignalSeen(at(seconds + 60), rid, "gone", "")]


def step(rid: str, seconds: float) -> list[Event]:
    started = StepStarted(at(seconds), rid, StepKind.DRAIN, 1, "n1")
    return [started, StepResolved(at(seconds), rid, StepKind.DRAIN, 1, Outcome.accepted())]


def ids(log: Sequence[Event]) -> set[str]:
    return {getattr(event, "recovery", "") for event in log}


LATER = treated("n-last", 1, OLD + DAY)
HEARD = JobReported(at(-DAY), JobReport(7, 0))


def test_a_recovery_that_is_past_leaves_with_its_steps_and_its_jobs() -> None:
    opening, end = treated("n-1", 1, OLD)
    assert kept([opening, *step("n-1", OLD), *moved("j-1", "n-1", 7, OLD), end, *LATER]) == LATER


@pytest.mark.parametrize(
    ("log", "living"),
    [
        ([opened("n-1", node_name(1), OLD)], ()),
        (treated("n-1", 1, OLD), ()),
        (treated("n-1", 1, -99 * DAY) + treated("n-2", 1, 0), ()),
        ([*treated("n-1", 1, OLD), *moved("j-1", "n-1", 7, OLD), *LATER], (7,)),
        ([*treated("n-1", 1, OLD), *moved("j-1", "n-1", 7, -DAY), *LATER], ()),
        ([*treated("n-1", 1, OLD), *moved("j-1", "n-1", 7, OLD)[:1], *LATER], ()),
        ([*treated("n-1", 1, OLD), *moved("j-1", "n-1", 7, OLD), *LATER, HEARD], ()),
    ],
    ids=[
        "open", "the last of its node", "recent", "its job lives", "its job's is recent",
        "its job's is open", "its job was heard of lately",
    ],
)  # fmt: skip
def test_retirement_keeps_needed_events_of_any_age(
    log: list[Event], living: tuple[int, ...]
) -> None:
    assert kept(log, living) == log


def test_retirement_keeps_only_other_events_in_force() -> None:
    def request(verb: str, seconds: float, target: str = "") -> RequestTaken:
        return RequestTaken(at(seconds), 1, verb, target, "eve", "", True)

    def hold(target: str, seconds: float) -> GateBlocked:
        return GateBlocked(at(seconds), target, "budget", "full", "xid-79")

    gone = [
        DaemonStarted(at(OLD), "0", "own", "h", 1), hold("n1", OLD), HoldLifted(at(OLD + 1), "n1"),
        hold("n2", OLD), request("pause", OLD), request("unpause", OLD),
        request("return", OLD, "n3"), request("approve", OLD, "n1"),
        JobReported(at(OLD), JobReport(5, 0)),
    ]  # fmt: skip
    stays: list[Event] = [
        hold("n2", OLD + 2), request("return", OLD + 1, "n3"),
        JobReported(at(OLD), JobReport(6, 0)), hold("n1", -DAY), HoldLifted(at(0), "n1"),
    ]  # fmt: skip
    assert kept([*gone, *stays], living=[6]) == stays
    paused: list[Event] = [request("pause", OLD + 3), *stays]
    assert replay_events(kept([*gone, *paused], living=[6])).pauses[""].by == "eve"


def add(rid: str, count: int, seconds: float) -> list[Event]:
    opening = ChangeOpened(at(seconds), rid, ChangeKind.ADD, "w", "", count=count)
    order = StepStarted(at(seconds), rid, StepKind.ADD, 1, "w")
    came = StepResolved(at(seconds), rid, StepKind.ADD, 1, Outcome.accepted())
    signals = (ClusterChangeSignal.ORDER_TAKEN, ClusterChangeSignal.ARRIVED)
    return [opening, order, came, *(SignalSeen(at(seconds), rid, s, "") for s in signals)]


def remove(rid: str, seconds: float, node: str) -> list[Event]:
    about = ChangeOpened(at(seconds), rid, ChangeKind.REMOVE, "w", "", node=node)
    signals = ("closed_seen", ClusterChangeSignal.ORDER_TAKEN, ClusterChangeSignal.GONE)
    return [about, *(SignalSeen(at(seconds), rid, s, "") for s in signals)]


def test_the_window_is_as_long_as_the_configuration_looks_back() -> None:
    assert compute_journal_lookback_s(RecoveryPolicy(), RULES) == RECENT_S
    longer = RecoveryPolicy(budgets=ConcurrentRecoveryBudgets(offender_window_s=200 * DAY))
    assert compute_journal_lookback_s(longer, RULES) == 200 * DAY
    assert (
        compute_journal_lookback_s(
            longer, build_fault_rules({"xid-79": FaultClassOverride(escalate_window_s=300 * DAY)})
        )
        == 300 * DAY
    )


NAMES = [world.node_name(n) for n in range(7)]


def with_and_without_the_past(monkeypatch) -> tuple[EngineState, EngineState]:
    """A third of a year of a busy cluster, of which most of a month is past."""
    for what, count in {"REPORTS": 4, "CRASHES": 4, "CHANGES": 4, "NODE_RECOVERIES": 8}.items():
        monkeypatch.setattr(f"benchmarks.past.{what}", count)
    made = Past(40)
    log = [e for d in range(120, 0, -1) for e in made.day(T0 - timedelta(days=d))]
    now, whole = at(0), replay_events(log)
    chosen = retire(whole, now - timedelta(seconds=compute_journal_lookback_s(OWN, RULES)), ())
    left = replay_events(event for event in log if chosen.over(event) is None)
    assert len(left.nodes) < len(whole.nodes) * 0.8
    assert len(left.jobs) < len(whole.jobs) * 0.8
    assert len(left.changes) < len(whole.changes) * 0.8
    assert left.last_of_node == whole.last_of_node
    return whole, left


def test_decisions_are_the_same_with_and_without_the_past(monkeypatch) -> None:
    whole, left = with_and_without_the_past(monkeypatch)
    now, names = at(0), NAMES

    def decided(state: EngineState) -> list[object]:
        view = view_of(
            state=state,
            scheduler=SchedulerView(now, {n: SlurmNode(n, "IDLE") for n in names}),
            assessments={n: faulty(n, seconds=-900 * i) for i, n in enumerate(names)},
            health={n: NodeHealth(generation(n), now) for n in names},
            instances={},
        )
        found = plan(view, OWN, RULES, {}, now)
        opens = [replace(one, recovery="") for one in found.opens]
        failures = count_consecutive_launch_failures(state, now, DAY)
        new = [replay_events([opened("n-new", name)]).nodes["n-new"] for name in names]
        again = [
            explain_remedy_block_by_repeated_recoveries(rec, view, RemedyBudgetUse(), OWN, now)
            for rec in new
        ]
        return [opens, found.holds, build_recovery_gate_counts(view, (), OWN, now), failures, again]

    assert "a repeat offender" in str(decided(whole))
    assert decided(left) == decided(whole)
