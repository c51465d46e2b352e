"""Folding: bursts become one finding, storms stay bounded, nothing known is forgotten."""

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpctl.agent.findings import MAX_DETAILED, MAX_JOBS, MAX_KEPT, Findings
from hpctl.core.compat import UTC
from hpctl.core.model import Clears, Finding, Verdict
from hpctl.protocol import reports as wire

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def finding(code: str = "79", second: int = 0, detail: str = "", count: int = 1) -> Finding:
    at = NOON + timedelta(seconds=second)
    return Finding("kernel.xid", Verdict.FAIL, at, at, "0000:c1:00.0", code, detail, "line", count)


def test_a_burst_is_one_finding_with_its_span() -> None:
    findings = Findings()
    assert findings.add(finding(second=5))
    assert not findings.add(finding(second=1, count=4))
    assert not findings.add(finding(second=9))
    (only,) = findings.all()
    assert (only.count, only.first, only.last) == (
        6, NOON + timedelta(seconds=1), NOON + timedelta(seconds=9),
    )  # fmt: skip


def test_another_device_code_or_detail_is_another_finding() -> None:
    findings = Findings()
    for new in (finding("79"), finding("48"), finding("154", detail="None"),
                finding("154", detail="GPU Reset Required")):  # fmt: skip
        assert findings.add(new)
    assert len(findings.all()) == 4


def test_seeing_the_ring_again_after_a_restart_counts_nothing_twice() -> None:
    before = Findings()
    for second in range(5):
        before.add(finding(second=second))
    after = Findings(before.all())
    assert after.all() == before.all()
    for second in range(5):
        assert not after.add(finding(second=second))
    assert after.all() == before.all()
    assert after.add(finding("48"))


def test_what_the_ring_no_longer_holds_is_still_known() -> None:
    after = Findings((finding("48", count=3),))
    after.add(finding("79", 60))
    assert [(f.code, f.count) for f in after.all()] == [("48", 3), ("79", 1)]


def test_beyond_the_limit_details_are_folded_before_faults_are_left_out() -> None:
    findings = Findings()
    for n in range(2000):
        findings.add(finding("149", n, detail=f"regs={n}"))
    findings.add(finding("79", 3000))
    found = findings.all()
    assert len(found) == MAX_DETAILED + 2
    assert any(f.code == "79" for f in found)
    assert sum(f.count for f in found) == 2001


def test_a_storm_leaves_room_in_the_report_for_what_the_checks_find() -> None:
    findings = Findings()
    for n in range(2000):
        findings.add(finding(str(n), n))
    assert len(findings.all()) + 64 <= wire.MAX_FINDINGS


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 99)), max_size=3000))
def test_no_storm_outgrows_a_report_and_each_sighting_is_counted(
    storm: list[tuple[int, int]],
) -> None:
    findings = Findings()
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


# --- Jobs in the fold, and what the log itself says is over.


def hit(job: str, second: int = 0, code: str = "31") -> Finding:
    at = NOON + timedelta(seconds=second)
    return Finding("kernel.xid", Verdict.FAIL, at, at, "0000:c1:00.0", code, job=job)


def told(findings: Findings) -> dict[str, int]:
    return {f.job: f.count for f in findings.all()}


def test_each_job_is_told_apart() -> None:
    findings = Findings()
    assert findings.add(hit("12"))
    assert findings.add(hit("13", 1))
    assert not findings.add(hit("12", 2))
    assert told(findings) == {"12": 2, "13": 1}


def test_a_line_whose_process_is_gone_joins_the_job_of_its_burst() -> None:
    findings = Findings()
    findings.add(hit("12"))
    assert not findings.add(hit("", 3))
    assert findings.add(hit("", 60))
    assert told(findings) == {"12": 2, "": 1}


def test_after_a_restart_old_lines_find_their_jobs_again() -> None:
    before = Findings()
    for second in (0, 1, 2):
        before.add(hit("12", second))
    after = Findings(before.all())
    for second in (0, 1, 2):
        # The processes are long gone.
        assert not after.add(hit("", second))
    assert told(after) == {"12": 3}


def test_the_oldest_jobs_are_told_together() -> None:
    findings = Findings()
    jobs = MAX_JOBS + 5
    for n in range(jobs):
        assert findings.add(hit(str(100 + n), 60 * n))
    by_job = told(findings)
    assert len(by_job) == MAX_JOBS + 1
    assert by_job[""] == 5
    assert {str(100 + n) for n in range(5, jobs)} <= by_job.keys()
    nameless = next(f for f in findings.all() if not f.job)
    assert (nameless.first, nameless.last) == (NOON, NOON + timedelta(seconds=240))


def test_a_job_that_is_hit_again_is_not_the_oldest() -> None:
    findings = Findings()
    for n in range(MAX_JOBS):
        findings.add(hit(str(n), 60 * n))
    findings.add(hit("0", 3600))
    findings.add(hit("99", 3700))
    assert "0" in told(findings)
    assert "1" not in told(findings)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(0, 9999))))
def test_no_churn_of_jobs_outgrows_a_report_or_loses_a_sighting(
    churn: list[tuple[int, int, int]],
) -> None:
    findings = Findings()
    for code, job, second in sorted(churn, key=lambda c: c[2]):
        findings.add(hit(str(job) if job else "", second, str(code)))
    found = findings.all()
    assert len(found) <= min(wire.MAX_FINDINGS, 6 * (MAX_JOBS + 1))
    assert sum(f.count for f in found) == len(churn)
    assert {f.code for f in found} == {str(code) for code, _, _ in churn}


def server(verdict: Verdict, second: int) -> Finding:
    at = NOON + timedelta(seconds=second)
    return Finding("kernel.nfs", verdict, at, at, "10.0.0.5", "not-responding", clears=Clears.GONE)


def test_what_is_over_is_no_longer_told() -> None:
    findings = Findings()
    assert not findings.add(server(Verdict.OK, 0))
    assert findings.all() == ()
    assert findings.add(server(Verdict.WARN, 1))
    assert findings.add(server(Verdict.OK, 2))
    assert findings.all() == ()
    assert findings.add(server(Verdict.WARN, 3))
    assert len(findings.all()) == 1


def test_an_old_end_does_not_end_what_began_later() -> None:
    findings = Findings()
    findings.add(server(Verdict.WARN, 10))
    assert not findings.add(server(Verdict.OK, 5))
    assert len(findings.all()) == 1


def test_what_ended_while_the_agent_was_away_is_over_too() -> None:
    after = Findings((server(Verdict.WARN, 1),))
    assert after.add(server(Verdict.OK, 2))
    assert after.all() == ()


def test_an_ok_that_does_not_clear_by_being_gone_is_a_finding_like_any_other() -> None:
    findings = Findings()
    assert findings.add(replace(server(Verdict.OK, 1), clears=Clears.BOOT))
    assert len(findings.all()) == 1
