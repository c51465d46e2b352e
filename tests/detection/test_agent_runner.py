"""The thread that runs checks: order, absence, trouble, and what it sheds over its budget."""

import threading
import time
from datetime import datetime, timedelta
from itertools import pairwise
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from hpctl.detection import runner as detection_runner
from hpctl.detection.budget import (
    CALM_WINDOWS,
    OVER_WINDOWS,
    WINDOW_S,
    CheckLoadShedder,
    ProcessResourceUsage,
)
from hpctl.detection.changes import FindingChangeListener
from hpctl.detection.check import (
    CheckedMachine,
    CheckObservation,
    CheckResultUnknownError,
    DeviceAbsentError,
)
from hpctl.detection.check_once import run_node_checks_once
from hpctl.detection.runner import CheckRunner, LoadedCheck
from hpctl.faults.table import HealthCheckSpec
from hpctl.vocabulary.model import DeviceVerdict, Finding
from tests.waiting import PATIENCE_S, until

BAD = CheckObservation("bad", "dev0")
LEAST = 0.8
"""A pause is never shorter than this part of what is asked for, by its jitter."""


def check(name, gather=lambda machine: None, judge=lambda seen, before, limits: [BAD], **spec):
    row = HealthCheckSpec(name, "", "", **{"every_s": 0.05, "gone_s": 0.0, **spec})
    return LoadedCheck(row, gather, judge, {})


@pytest.fixture
def started():
    made: list[CheckRunner] = []

    def start(*checks, changed=lambda: None, **more):
        budget = more.pop("budget", CheckLoadShedder([]))
        listener = Mock(spec_set=FindingChangeListener, handle_finding_change=changed)
        runner = CheckRunner(
            checks, CheckedMachine(), listener, budget, **{"boot_age_s": 1e6, **more}
        )
        runner.start()
        made.append(runner)
        return runner

    yield start
    for runner in made:
        runner.stop()


def named(runner: CheckRunner) -> dict[str, Finding]:
    return {f"{f.check}:{f.code}": f for f in runner.findings()}


def test_a_judge_is_given_what_was_seen_before(started):
    pairs: list[tuple[int, int | None]] = []
    numbers = iter(range(1000))

    def judge(seen: int, before: int | None, limits) -> list[CheckObservation]:
        pairs.append((seen, before))
        return []

    started(check("a.a", lambda machine: next(numbers), judge))
    until(lambda: len(pairs) > 2)
    assert pairs[:3] == [(0, None), (1, 0), (2, 1)]


def test_one_that_breaks_is_unknown_and_the_others_go_on(started):
    def broken(machine: CheckedMachine) -> None:
        raise ValueError("oops")

    def blind(machine: CheckedMachine) -> None:
        raise CheckResultUnknownError("no answer")

    runner = started(check("a.a", broken), check("b.b", blind), check("c.c"))
    until(lambda: len(named(runner)) == 3)
    found = named(runner)
    assert found["a.a:cannot_tell"].verdict is DeviceVerdict.UNKNOWN
    assert "ValueError: oops" in found["a.a:cannot_tell"].detail
    assert found["b.b:cannot_tell"].detail == "no answer"
    assert found["c.c:bad"].verdict is DeviceVerdict.FAIL


def test_what_could_not_tell_is_asked_again_soon(started, monkeypatch):
    monkeypatch.setattr(detection_runner, "RETRY_S", 0.05)
    answers = iter([False, False, True])
    looked: list[float] = []

    def blind_at_first(machine: CheckedMachine) -> None:
        looked.append(time.monotonic())
        if not next(answers):
            raise CheckResultUnknownError("the first sweep is under way")

    runner = started(check("a.a", blind_at_first, every_s=60))
    until(lambda: "a.a:bad" in named(runner))
    assert len(looked) == 3
    first_s, second_s = (after - before for before, after in pairwise(looked))
    assert first_s >= LEAST * 0.05
    assert second_s >= LEAST * 0.1, "the second time it waits longer"
    assert "a.a:cannot_tell" not in named(runner)


def test_what_is_not_here_says_nothing_and_is_looked_for_less_often(started):
    looked: list[float] = []

    def absent(machine: CheckedMachine) -> None:
        looked.append(time.monotonic())
        raise DeviceAbsentError("no such device")

    begun = time.monotonic()
    runner = started(check("a.a", absent), check("b.b"))
    until(lambda: named(runner).get("b.b:bad") and named(runner)["b.b:bad"].count > 6)
    # Ten times as seldom as the other; the first look is at the start.
    apart_s = LEAST * 0.05 * detection_runner.ABSENT_FACTOR
    assert len(looked) <= 1 + (time.monotonic() - begun) / apart_s
    assert "a.a" not in {f.check for f in runner.findings()}


def test_a_check_that_hangs_is_reported_from_outside(started, monkeypatch):
    monkeypatch.setattr(detection_runner, "STUCK_S", 0.2)
    release = threading.Event()
    runner = started(check("a.a", lambda machine: release.wait(PATIENCE_S)))
    until(lambda: "agent.checks:stuck" in named(runner))
    assert named(runner)["agent.checks:stuck"].device == "a.a"
    release.set()
    until(lambda: "agent.checks:stuck" not in named(runner))


def test_a_grace_after_boot_and_after_an_upgrade(started):
    young = started(check("a.a", grace_s=3600), boot_age_s=10.0)
    old = started(check("a.a", grace_s=3600), boot_age_s=4000.0)
    upgraded = started(check("a.a", grace_s=3600), boot_age_s=4000.0, upgraded=True)
    until(lambda: "a.a:bad" in named(old))
    until(lambda: "a.a:cannot_tell" in named(young))
    until(lambda: "a.a:cannot_tell" in named(upgraded))
    assert "a.a:bad" not in named(young) | named(upgraded)


def test_a_clock_that_is_set_forward_does_not_end_the_grace(started, monkeypatch):
    class Ahead(datetime):
        @classmethod
        def now(cls, tz=None) -> datetime:
            return datetime.now(tz) + timedelta(hours=9)

    runner = started(check("a.a", grace_s=3600), boot_age_s=10.0)
    until(lambda: "a.a:cannot_tell" in named(runner))
    monkeypatch.setattr(detection_runner, "datetime", Ahead)
    count = named(runner)["a.a:cannot_tell"].count
    until(lambda: named(runner)["a.a:cannot_tell"].count > count + 2)
    assert "a.a:bad" not in named(runner)


def test_numbers_that_are_old_are_not_reported_as_those_of_now(started, monkeypatch):
    monkeypatch.setattr(detection_runner, "STUCK_S", 0.2)
    trouble = []
    release = threading.Event()

    def gather(machine: CheckedMachine) -> None:
        if trouble:
            trouble[0]()

    def blind() -> None:
        raise CheckResultUnknownError("the driver hangs")

    runner = started(replace(check("a.a", gather), gauges=lambda seen, before: {"a.a": 1.0}))
    for one in (blind, lambda: release.wait(PATIENCE_S)):
        until(lambda: runner.gauges() == {"a.a": 1.0})
        trouble.append(one)
        until(lambda: runner.gauges() == {})
        trouble.clear()
    release.set()


def test_over_the_budget_the_optional_check_is_left_out_and_reported(started, monkeypatch):
    monkeypatch.setattr("hpctl.detection.budget.WINDOW_S", 0.05)
    greedy = CheckLoadShedder([0, 2], measure=lambda: ProcessResourceUsage(time.monotonic(), 10.0))
    runner = started(check("a.a"), check("b.b", shed=2), budget=greedy)
    until(lambda: "agent.checks:shed" in named(runner))
    assert named(runner)["agent.checks:shed"].detail.endswith("b.b")
    left_out, kept = (named(runner)[f"{name}:bad"].count for name in ("b.b", "a.a"))
    until(lambda: named(runner)["a.a:bad"].count > kept + 3)
    assert named(runner)["b.b:bad"].count <= left_out + 1


def test_a_look_tells_what_is_not_here_from_what_is_well():
    def absent(machine: CheckedMachine) -> None:
        raise DeviceAbsentError("no GPU")

    def blind(machine: CheckedMachine) -> None:
        raise CheckResultUnknownError("no answer")

    well = check("a.a", judge=lambda *_: [])
    rows = run_node_checks_once(
        [well, check("b.b"), check("c.c", absent), check("d.d", blind)], CheckedMachine()
    )
    assert [row.state for row in rows] == ["ok", "fail", "absent", "unknown"]
    assert [[f.code for f in row.findings] for row in rows] == [[], ["bad"], [], ["cannot_tell"]]
    assert rows[2].why == "no GPU"


class Meter:
    """A process that uses what it is told to."""

    def __init__(self) -> None:
        self.cpu_s, self.memory_mb, self.now = 0.0, 20.0, 0.0

    def __call__(self) -> ProcessResourceUsage:
        return ProcessResourceUsage(self.cpu_s, self.memory_mb)

    def windows(self, budget: CheckLoadShedder, count: int, cpu_percent: float) -> None:
        for _ in range(count):
            self.now += WINDOW_S
            self.cpu_s += WINDOW_S * cpu_percent / 100
            budget.look(self.now)


def budget_of(meter: Meter) -> CheckLoadShedder:
    budget = CheckLoadShedder([0, 1, 2, 2], measure=meter)
    budget.look(0.0)
    return budget


def test_the_highest_level_goes_first_and_level_0_never():
    meter = Meter()
    budget = budget_of(meter)
    meter.windows(budget, OVER_WINDOWS - 1, 3)
    assert not budget.is_check_level_shed(2)
    meter.windows(budget, 1, 3)
    assert (
        budget.is_check_level_shed(2),
        budget.is_check_level_shed(1),
        budget.is_check_level_shed(0),
    ) == (True, False, False)
    meter.windows(budget, 10 * OVER_WINDOWS, 3)
    assert (
        budget.is_check_level_shed(2),
        budget.is_check_level_shed(1),
        budget.is_check_level_shed(0),
    ) == (True, True, False)
    (reported,) = budget.observations(["host.zombies", "gpu.clocks"])
    assert reported.detail == "not run to save resources: gpu.clocks, host.zombies"
    assert "3.00 % of a core" in reported.evidence


def test_memory_counts_too():
    meter = Meter()
    budget = budget_of(meter)
    meter.memory_mb = 41
    meter.windows(budget, OVER_WINDOWS, 0.1)
    assert budget.is_check_level_shed(2)


def test_they_come_back_after_a_long_calm():
    meter = Meter()
    budget = budget_of(meter)
    meter.windows(budget, OVER_WINDOWS, 3)
    meter.windows(budget, CALM_WINDOWS - 1, 0.1)
    assert budget.is_check_level_shed(2)
    meter.windows(budget, 1, 0.1)
    assert not budget.is_check_level_shed(2)
