"""What becomes of a check's observations: N of M, grace, the ways to end, UNKNOWN."""

import os
from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from hpctl.agent.check import Observation
from hpctl.agent.findings import MAX_THINGS, Conditions
from hpctl.core.compat import UTC
from hpctl.core.faults.row import CheckSpec
from hpctl.core.model import BootId, Clears, Finding, InstanceId, NodeName, Report, Verdict
from hpctl.protocol import reports as wire

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
SPEC = CheckSpec("host.disk", "", "", every_s=10, seen=(2, 3), gone_s=60)
FULL = Observation("full", "/", evidence="96 %")


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def run(conditions: Conditions, *runs: bool, start: float = 0) -> list[int]:
    """Feed runs 10 s apart; how many findings there were after each."""
    counts = []
    for number, seen in enumerate(runs):
        conditions.saw([FULL] if seen else [], at(start + 10 * number))
        counts.append(len(conditions.findings()))
    return counts


@pytest.mark.parametrize(
    ("runs", "reported"),
    [
        ((True,), [0]),
        ((True, True), [0, 1]),
        ((True, False, True), [0, 0, 1]),
        ((True, False, False, True), [0, 0, 0, 0]),
        ((False, False, False), [0, 0, 0]),
    ],
)
def test_n_of_m(runs: tuple[bool, ...], reported: list[int]) -> None:
    assert run(Conditions(SPEC), *runs) == reported


def test_a_finding_begins_when_it_was_first_so_and_counts() -> None:
    conditions = Conditions(SPEC)
    run(conditions, True, True, True)
    (finding,) = conditions.findings()
    assert (finding.first, finding.last, finding.count) == (at(0), at(20), 3)
    assert (finding.check, finding.code, finding.evidence) == ("host.disk", "full", "96 %")


def test_it_ends_when_it_has_not_been_so_for_its_time() -> None:
    conditions = Conditions(SPEC)
    assert run(conditions, True, True, *[False] * 5) == [0, 1, 1, 1, 1, 1, 1]
    assert run(conditions, False, start=70) == [0]
    assert run(conditions, True, start=80) == [0], "and begins anew"


@pytest.mark.parametrize("clears", [Clears.BOOT, Clears.OPERATOR])
def test_others_do_not_end_by_being_gone(clears: Clears) -> None:
    conditions = Conditions(replace(SPEC, clears=clears))
    run(conditions, True, True)
    assert run(conditions, *[False] * 100, start=1000)[-1] == 1
    assert conditions.findings()[0].clears is clears


def test_nothing_is_believed_before_its_time() -> None:
    conditions = Conditions(SPEC)
    conditions.saw([FULL], at(0), early=True)
    (early,) = conditions.findings()
    assert (early.verdict, early.clears) == (Verdict.UNKNOWN, Clears.GONE)
    assert "too early" in early.detail
    conditions.saw([], at(10), early=True)
    assert conditions.findings() == []
    assert run(conditions, True, True, start=30) == [0, 1]


def test_not_being_able_to_tell_neither_adds_nor_ends() -> None:
    conditions = Conditions(SPEC)
    run(conditions, True, True)
    assert conditions.could_not_tell("no answer", at(500))
    assert not conditions.could_not_tell("no answer", at(510)), "told once"
    known, unknown = conditions.findings()
    assert known.code == "full"
    assert (unknown.verdict, unknown.detail, unknown.count) == (Verdict.UNKNOWN, "no answer", 2)
    conditions.saw([FULL], at(520))
    assert [f.code for f in conditions.findings()] == ["full"]


def test_what_a_former_run_of_the_agent_knew_ends_like_the_rest() -> None:
    earlier = Finding("host.disk", Verdict.FAIL, at(-90), at(-5), "/", "full", clears=Clears.GONE)
    other = replace(earlier, check="host.clock")
    conditions = Conditions(SPEC, [earlier, other])
    assert conditions.findings() == [earlier]
    assert run(conditions, False, start=50) == [1]
    assert run(conditions, False, start=60) == [0]


HOUR = 3600


@pytest.mark.parametrize("clears", list(Clears))
def test_a_clock_that_is_set_back_costs_no_report(clears: Clears) -> None:
    conditions = Conditions(replace(SPEC, clears=clears))
    run(conditions, True, True)
    conditions.saw([FULL], at(30 - HOUR))
    conditions.could_not_tell("no answer", at(40 - HOUR))
    conditions.could_not_tell("no answer", at(50 - 2 * HOUR))
    found = tuple(conditions.findings())
    assert len(found) == 2
    assert all(f.first <= f.last <= at(50 - 2 * HOUR) for f in found)
    report = Report(
        NodeName("n1"), InstanceId("i-1"), BootId("b-1"), 1, at(50 - 2 * HOUR), at(0), found
    )
    assert wire.decode(wire.encode(report)) == report


def test_a_name_that_is_not_utf_8_costs_no_report() -> None:
    name = os.fsdecode(b"caf\xe9.sh")
    odd = Observation("refused", name, Verdict.WARN, name, name)
    conditions = Conditions(replace(SPEC, seen=(1, 1)))
    conditions.saw([odd], at(0))
    conditions.saw([replace(odd, verdict=Verdict.FAIL)], at(10))
    conditions.could_not_tell(name, at(20))
    found = tuple(conditions.findings())
    report = Report(NodeName("n1"), InstanceId("i-1"), BootId("b-1"), 1, at(30), at(0), found)
    assert [f.detail for f in wire.decode(wire.encode(report)).findings] == ["caf?.sh"] * 2


def test_a_clock_that_is_set_back_keeps_nothing_alive() -> None:
    conditions = Conditions(SPEC)
    assert run(conditions, True, True) == [0, 1]
    assert run(conditions, False, start=30 - HOUR) == [1]
    assert run(conditions, False, start=90 - HOUR) == [0]


def test_a_clock_that_is_set_back_between_two_sightings() -> None:
    conditions = Conditions(SPEC)
    run(conditions, True)
    run(conditions, True, start=10 - HOUR)
    (finding,) = conditions.findings()
    assert finding.first <= finding.last == at(10 - HOUR)


def test_a_worse_verdict_is_news() -> None:
    conditions = Conditions(replace(SPEC, seen=(1, 1)))
    warn = replace(FULL, verdict=Verdict.WARN)
    assert conditions.saw([warn], at(0))
    assert not conditions.saw([warn], at(10))
    assert conditions.saw([replace(FULL, evidence="99 %")], at(20))
    (finding,) = conditions.findings()
    assert (finding.verdict, finding.evidence, finding.first) == (Verdict.FAIL, "99 %", at(0))


def test_a_check_gone_mad_is_bounded() -> None:
    conditions = Conditions(replace(SPEC, seen=(1, 1)))
    conditions.saw([Observation(f"c{i}") for i in range(10_000)], at(0))
    assert len(conditions.findings()) == MAX_THINGS


# --- One thing that a check sees may end otherwise than its CheckSpec says.


NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
PLUGIN = CheckSpec("plugin.x", "x", "x", every_s=60.0, gone_s=60.0)


def said(conditions: Conditions) -> set[str]:
    return {finding.code for finding in conditions.findings()}


def test_its_own_time_and_its_own_way_to_clear() -> None:
    conditions = Conditions(PLUGIN)
    conditions.saw(
        [
            Observation("plain"),
            Observation("long", gone_s=3600.0),
            Observation("boot", clears=Clears.BOOT),
        ],
        NOON,
    )
    assert said(conditions) == {"plain", "long", "boot"}
    conditions.saw([], NOON + timedelta(seconds=60))
    assert said(conditions) == {"long", "boot"}
    conditions.saw([], NOON + timedelta(hours=1))
    assert said(conditions) == {"boot"}
    assert conditions.findings()[0].clears is Clears.BOOT
