"""When an error is a repetition, and of how many jobs the head node knows that they had it."""

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from hpctl.agent.findings import MAX_JOBS, Findings
from hpctl.core.assess import incidents_of, repeated
from hpctl.core.compat import UTC
from hpctl.core.health import fold_report
from hpctl.core.model import BootId, Finding, InstanceId, NodeName, Report, Verdict

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)

DAY_S, APART = 86400.0, timedelta(minutes=5)


def seen(code: str, minute: float, job: str = "", until: float | None = None, where: str = ""):
    first = NOON + timedelta(minutes=minute)
    last = first if until is None else NOON + timedelta(minutes=until)
    return Finding(
        "kernel.xid", Verdict.FAIL, first, last, "0000:c1:00.0", code, evidence=where, job=job
    )


def again(*findings: Finding) -> bool:
    (incident,) = incidents_of(findings)
    return repeated(incident, DAY_S, APART)


@pytest.mark.parametrize("code", ["13", "31"])
def test_of_an_applications_error_two_jobs_must_have_had_it(code: str) -> None:
    assert again(seen(code, 0, "12"), seen(code, 1, "13"))
    assert again(seen(code, 0, "12"), seen(code, 600, "13"))
    # One job, over and over, for hours: its own bug.
    assert not again(seen(code, 0, "12", until=600))
    # A job that had it a day before.
    assert not again(seen(code, 0, "12"), seen(code, 2000, "13"))
    # Between the two, a job that ran all the time.
    assert again(seen(code, 0, "12", until=1990), seen(code, 2000, "13"))


@pytest.mark.parametrize("code", ["13", "31"])
def test_where_no_job_is_named_time_stands_in_for_it(code: str) -> None:
    assert again(seen(code, 0, until=10))
    assert not again(seen(code, 0, until=1))
    assert not again(seen(code, 0), seen(code, 10, "12"))


def test_an_xid_13_must_hit_the_same_part() -> None:
    one, other = "ESR on (GPC 3, TPC 1, SM 0)", "ESR on (GPC 4, TPC 1, SM 0)"
    assert again(seen("13", 0, "12", where=one), seen("13", 9, "13", where=one))
    assert not again(seen("13", 0, "12", where=one), seen("13", 9, "13", where=other))


@pytest.mark.parametrize("code", ["38", "74", "109"])
def test_of_other_errors_time_tells_bursts_apart_whoever_was_hit(code: str) -> None:
    assert again(seen(code, 0, "12", until=10))
    assert again(seen(code, 0, "12"), seen(code, 10, "12"))
    assert again(seen(code, 0, "12"), seen(code, 10))
    assert not again(seen(code, 0, "12"), seen(code, 1, "13"))


T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)


def hit(job: str, minute: int = 0, device: str = "0000:c1:00.0") -> Finding:
    at = T0 + timedelta(minutes=minute)
    return Finding("kernel.xid", Verdict.FAIL, at, at, device, "43", job=job)


def report(*findings: Finding) -> Report:
    return Report(NodeName("n1"), InstanceId("i-1"), BootId("b-1"), 1, T0, T0, findings)


def test_thousands_of_jobs_are_not_remembered_one_by_one() -> None:
    later = T0 + timedelta(days=30)
    health, _ = fold_report(None, report(), later)
    agent = Findings()
    for n in range(500):
        agent.add(hit(str(n + 1), n))
        health, _ = fold_report(health, report(*agent.all()), later)
    assert len(health.findings) == MAX_JOBS + 1
    assert sum(f.count for f in health.findings) == 500


def test_a_job_is_remembered_while_nothing_stands_for_it() -> None:
    health, _ = fold_report(None, report(hit("12")), T0)
    # An agent that lost its memory, a report that was cut, another device.
    for reported in ((), (hit("13"),), (hit("", device="0000:2a:00.0"),)):
        later, _ = fold_report(health, report(*reported), T0)
        assert "12" in {f.job for f in later.findings}
    later, _ = fold_report(health, report(replace(hit(""), code="44")), T0)
    assert "12" in {f.job for f in later.findings}
    later, _ = fold_report(health, report(hit("")), T0)
    assert [f.job for f in later.findings] == [""]
