"""What becomes of observations: N of M, grace, the ways to end; bursts fold into one finding."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpctl.detection.check import CheckObservation
from hpctl.detection.conditions import MAX_THINGS, CheckFindingTracker
from hpctl.detection.findings import (
    MAX_DETAILED,
    MAX_DETAILED_NOTES,
    MAX_JOBS,
    MAX_KEPT,
    MAX_NOTES,
    FindingStore,
)
from hpctl.faults.table import HealthCheckSpec
from hpctl.vocabulary.model import AgentReport, ClearCondition, DeviceVerdict, Finding
from hpctl.wire import reports as wire
from tests.fakes.values import T0, at

SPEC = HealthCheckSpec("host.disk", "", "", every_s=10, seen=(2, 3), gone_s=60)

FULL = CheckObservation("full", "/", evidence="96 %")


def run(conditions: CheckFindingTracker, *runs: bool, start: float = 0) -> list[int]:
    """Feed runs 10 s apart; how many findings there were after each."""
    counts = []
    for number, seen in enumerate(runs):
        conditions.saw([FULL] if seen else [], at(start + 10 * number))
        counts.append(len(conditions.findings()))
    return counts


@pytest.mark.parametrize(
    ("runs", "reported"),
    [
        ((True,), [0]), ((True, True), [0, 1]), ((True, False, True), [0, 0, 1]),
        ((True, False, False, True), [0, 0, 0, 0]), ((False, False, False), [0, 0, 0]),
    ],
)  # fmt: skip
def test_n_of_m(runs, reported):
    assert run(CheckFindingTracker(SPEC), *runs) == reported


def test_a_finding_begins_when_it_was_first_so_and_counts():
    conditions = CheckFindingTracker(SPEC)
    run(conditions, True, True, True)
    (finding,) = conditions.findings()
    assert (finding.first, finding.last, finding.count) == (at(0), at(20), 3)
    assert (finding.check, finding.code, finding.evidence) == ("host.disk", "full", "96 %")


def test_it_ends_when_it_has_not_been_so_for_its_time():
    conditions = CheckFindingTracker(SPEC)
    assert run(conditions, True, True, *[False] * 5) == [0, 1, 1, 1, 1, 1, 1]
    assert run(conditions, False, start=70) == [0]
    assert run(conditions, True, start=80) == [0], "and begins anew"


@pytest.mark.parametrize("clears", [ClearCondition.BOOT, ClearCondition.OPERATOR])
def test_others_do_not_end_by_being_gone(clears):
    conditions = CheckFindingTracker(replace(SPEC, clears=clears))
    run(conditions, True, True)
    assert run(conditions, *[False] * 100, start=1000)[-1] == 1
    assert conditions.findings()[0].clears is clears


def test_nothing_is_believed_before_its_time():
    conditions = CheckFindingTracker(SPEC)
    conditions.saw([FULL], at(0), early=True)
    (early,) = conditions.findings()
    assert (early.verdict, early.clears) == (DeviceVerdict.UNKNOWN, ClearCondition.GONE)
    assert "too early" in early.detail
    conditions.saw([], at(10), early=True)
    assert (conditions.findings(), run(conditions, True, True, start=30)) == ([], [0, 1])


def test_not_being_able_to_tell_neither_adds_nor_ends():
    conditions = CheckFindingTracker(SPEC)
    run(conditions, True, True)
    assert conditions.record_unknown_check_run("no answer", at(500))
    assert not conditions.record_unknown_check_run("no answer", at(510)), "told once"
    known, unknown = conditions.findings()
    assert known.code == "full"
    assert (unknown.verdict, unknown.detail, unknown.count) == (
        DeviceVerdict.UNKNOWN,
        "no answer",
        2,
    )
    conditions.saw([FULL], at(520))
    assert [f.code for f in conditions.findings()] == ["full"]


def test_what_a_former_run_of_the_agent_knew_ends_like_the_rest():
    earlier = Finding(
        "host.disk", DeviceVerdict.FAIL, at(-90), at(-5), "/", "full", clears=ClearCondition.GONE
    )
    conditions = CheckFindingTracker(SPEC, [earlier, replace(earlier, check="host.clock")])
    assert conditions.findings() == [earlier]
    assert (run(conditions, False, start=50), run(conditions, False, start=60)) == ([1], [0])


HOUR = 3600


@pytest.mark.parametrize("clears", list(ClearCondition))
def test_a_clock_that_is_set_back_costs_no_report(clears):
    conditions = CheckFindingTracker(replace(SPEC, clears=clears))
    run(conditions, True, True)
    conditions.saw([FULL], at(30 - HOUR))
    conditions.record_unknown_check_run("no answer", at(40 - HOUR))
    conditions.record_unknown_check_run("no answer", at(50 - 2 * HOUR))
    found = tuple(conditions.findings())
    assert len(found) == 2
    assert all(f.first <= f.last <= at(50 - 2 * HOUR) for f in found)
    report = AgentReport("n1", "i-1", "b-1", 1, at(50 - 2 * HOUR), at(0), found)
    assert wire.decode_agent_report(wire.encode_agent_report(report)) == report


def test_a_name_that_is_not_utf_8_costs_no_report():
    name = os.fsdecode(b"caf\xe9.sh")
    odd = CheckObservation("refused", name, DeviceVerdict.WARN, name, name)
    conditions = CheckFindingTracker(replace(SPEC, seen=(1, 1)))
    conditions.saw([odd], at(0))
    conditions.saw([replace(odd, verdict=DeviceVerdict.FAIL)], at(10))
    conditions.record_unknown_check_run(name, at(20))
    found = tuple(conditions.findings())
    report = AgentReport("n1", "i-1", "b-1", 1, at(30), at(0), found)
    assert [
        f.detail for f in wire.decode_agent_report(wire.encode_agent_report(report)).findings
    ] == ["caf?.sh"] * 2


def test_a_clock_that_is_set_back_keeps_nothing_alive():
    conditions = CheckFindingTracker(SPEC)
    assert (run(conditions, True, True), run(conditions, False, start=30 - HOUR)) == ([0, 1], [1])
    assert run(conditions, False, start=90 - HOUR) == [0]


def test_a_worse_verdict_is_news():
    conditions = CheckFindingTracker(replace(SPEC, seen=(1, 1)))
    warn = replace(FULL, verdict=DeviceVerdict.WARN)
    assert conditions.saw([warn], at(0))
    assert not conditions.saw([warn], at(10))
    assert conditions.saw([replace(FULL, evidence="99 %")], at(20))
    (finding,) = conditions.findings()
    assert (finding.verdict, finding.evidence, finding.first) == (DeviceVerdict.FAIL, "99 %", at(0))


def test_a_check_gone_mad_is_bounded():
    conditions = CheckFindingTracker(replace(SPEC, seen=(1, 1)))
    conditions.saw([CheckObservation(f"c{i}") for i in range(10_000)], at(0))
    assert len(conditions.findings()) == MAX_THINGS


# One thing that a check sees may end otherwise than its HealthCheckSpec says.


def output(conditions: CheckFindingTracker) -> set[str]:
    return {finding.code for finding in conditions.findings()}


def test_its_own_time_and_its_own_way_to_clear():
    conditions = CheckFindingTracker(
        HealthCheckSpec("plugin.x", "x", "x", every_s=60.0, gone_s=60.0)
    )
    conditions.saw(
        [
            CheckObservation("plain"),
            CheckObservation("long", gone_s=3600.0),
            CheckObservation("boot", clears=ClearCondition.BOOT),
        ],
        T0,
    )
    assert output(conditions) == {"plain", "long", "boot"}
    conditions.saw([], at(60))
    assert output(conditions) == {"long", "boot"}
    conditions.saw([], at(3600))
    assert output(conditions) == {"boot"}
    assert conditions.findings()[0].clears is ClearCondition.BOOT


def finding(code: str = "79", second: int = 0, detail: str = "", count: int = 1) -> Finding:
    t = at(second)
    return Finding(
        "kernel.xid", DeviceVerdict.FAIL, t, t, "0000:c1:00.0", code, detail, "line", count
    )


def test_a_burst_is_one_finding_with_its_span():
    findings = FindingStore()
    assert findings.add(finding(second=5))
    assert not findings.add(finding(second=1, count=4))
    assert not findings.add(finding(second=9))
    (only,) = findings.all()
    assert (only.count, only.first, only.last) == (6, at(1), at(9))


def test_beyond_the_limit_details_are_folded_before_faults_are_left_out():
    findings = FindingStore()
    for n in range(2000):
        findings.add(finding("149", n, detail=f"regs={n}"))
    findings.add(finding("79", 3000))
    found = findings.all()
    assert len(found) == MAX_DETAILED + 2
    assert any(f.code == "79" for f in found)
    assert sum(f.count for f in found) == 2001


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 99)), max_size=3000))
def test_no_storm_outgrows_a_report_and_each_sighting_is_counted(storm):
    findings = FindingStore()
    for code, second in storm:
        findings.add(finding(str(code), second))
    found = findings.all()
    assert len(found) <= wire.MAX_FINDINGS
    assert sum(f.count for f in found) == len(storm)
    distinct = {str(code) for code, _ in storm}
    if len(distinct) <= MAX_KEPT:
        assert {f.code for f in found} == distinct
    else:
        assert any(f.check == "agent.findings" for f in found)


# Jobs in the fold, and what the log itself says is over.
def hit(job: str, second: int = 0, code: str = "31") -> Finding:
    when = at(second)
    return Finding("kernel.xid", DeviceVerdict.FAIL, when, when, "0000:c1:00.0", code, job=job)


def shown(findings: FindingStore) -> dict[str, int]:
    return {f.job: f.count for f in findings.all()}


def test_a_line_whose_process_is_gone_joins_the_job_of_its_burst():
    findings = FindingStore()
    findings.add(hit("12"))
    assert not findings.add(hit("", 3))
    assert findings.add(hit("", 60))
    assert shown(findings) == {"12": 2, "": 1}


@pytest.mark.parametrize("job", ["", "12"])
def test_seeing_the_ring_again_after_a_restart_counts_nothing_twice(job):
    """And lines whose processes are long gone find their jobs again."""
    before = FindingStore()
    for second in range(5):
        before.add(hit(job, second))
    after = FindingStore(before.all())
    assert after.all() == before.all()
    assert sum(after.add(hit("", second)) for second in range(5)) == 0
    assert after.all() == before.all()
    assert after.add(hit(job, code="48"))


def test_the_oldest_jobs_are_reported_together():
    findings = FindingStore()
    jobs = MAX_JOBS + 5
    for n in range(jobs):
        assert findings.add(hit(str(100 + n), 60 * n))
    by_job = shown(findings)
    assert (len(by_job), by_job[""]) == (MAX_JOBS + 1, 5)
    assert {str(100 + n) for n in range(5, jobs)} <= by_job.keys()
    nameless = next(f for f in findings.all() if not f.job)
    assert (nameless.first, nameless.last) == (T0, at(240))


def test_a_job_that_is_hit_again_is_not_the_oldest():
    findings = FindingStore()
    for n in range(MAX_JOBS):
        findings.add(hit(str(n), 60 * n))
    findings.add(hit("0", 3600))
    findings.add(hit("99", 3700))
    assert "0" in shown(findings)
    assert "1" not in shown(findings)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(0, 9999))))
def test_no_churn_of_jobs_outgrows_a_report_or_loses_a_sighting(churn):
    findings = FindingStore()
    for code, job, second in sorted(churn, key=lambda c: c[2]):
        findings.add(hit(str(job) if job else "", second, str(code)))
    found = findings.all()
    assert len(found) <= min(wire.MAX_FINDINGS, 6 * (MAX_JOBS + 1))
    assert sum(f.count for f in found) == len(churn)
    assert {f.code for f in found} == {str(code) for code, _, _ in churn}


def server(verdict: DeviceVerdict, second: int) -> Finding:
    t = at(second)
    return Finding(
        "kernel.nfs", verdict, t, t, "10.0.0.5", "not-responding", clears=ClearCondition.GONE
    )


def test_what_is_over_is_no_longer_reported():
    findings = FindingStore()
    assert not findings.add(server(DeviceVerdict.OK, 0))
    assert findings.all() == ()
    assert findings.add(server(DeviceVerdict.WARN, 1))
    assert findings.add(server(DeviceVerdict.OK, 2))
    assert findings.all() == ()
    assert findings.add(server(DeviceVerdict.WARN, 3))
    assert len(findings.all()) == 1


def test_an_old_end_does_not_end_what_began_later():
    findings = FindingStore()
    findings.add(server(DeviceVerdict.WARN, 10))
    assert not findings.add(server(DeviceVerdict.OK, 5))
    assert len(findings.all()) == 1


def test_what_ended_while_the_agent_was_away_is_over_too():
    after = FindingStore((server(DeviceVerdict.WARN, 1),))
    assert after.add(server(DeviceVerdict.OK, 2))
    assert after.all() == ()


def test_an_ok_that_does_not_clear_by_being_gone_is_a_finding_like_any_other():
    findings = FindingStore()
    assert findings.add(replace(server(DeviceVerdict.OK, 1), clears=ClearCondition.BOOT))
    assert len(findings.all()) == 1


def note(device: str, code: str = "13", job: str = "") -> Finding:
    return Finding("kernel.xid", DeviceVerdict.NOTE, T0, T0, device, code, job=job)


def test_notes_leave_room_for_what_speaks_against_the_node():
    findings = FindingStore()
    for number in range(5 * MAX_KEPT):
        findings.add(note(f"gpu{number}"))
    told = findings.all()
    assert len(told) == MAX_NOTES + 1
    assert sum(finding.count for finding in told) == 5 * MAX_KEPT
    assert findings.add(Finding("kernel.xid", DeviceVerdict.FAIL, T0, T0, "gpu0", "79"))
    assert "agent.findings" not in {finding.check for finding in findings.all()}


def test_many_details_of_a_note_leave_its_device():
    findings = FindingStore()
    for number in range(5 * MAX_KEPT):
        findings.add(replace(note("gpu0", "145"), detail=str(number)))
    told = findings.all()
    assert {finding.device for finding in told} == {"gpu0"}
    assert len(told) == MAX_DETAILED_NOTES + 1
    assert sum(finding.count for finding in told) == 5 * MAX_KEPT


def test_jobs_that_come_and_go_use_up_no_notes():
    findings = FindingStore()
    for number in range(3 * MAX_NOTES):
        findings.add(note("gpu0", job=str(number)))
    assert findings.add(note("gpu1", job="1"))
    assert "gpu1" in {finding.device for finding in findings.all()}


def test_a_later_run_of_the_agent_says_what_a_finding_means():
    earlier = replace(note("gpu0"), verdict=DeviceVerdict.FAIL, count=9)
    findings = FindingStore([earlier])
    findings.add(note("gpu0"))
    assert [(f.verdict, f.count) for f in findings.all()] == [(DeviceVerdict.NOTE, 9)]
