"""Folding: bursts become one finding, storms stay bounded, nothing known is forgotten."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from hpctl.agent.findings import MAX_DETAILED, MAX_KEPT, Findings
from hpctl.core.compat import UTC
from hpctl.core.model import Finding, Verdict
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
