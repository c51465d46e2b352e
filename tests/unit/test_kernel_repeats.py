"""When an error is a repetition: by jobs for an application's, by time for the others."""

from datetime import datetime, timedelta

import pytest

from hpctl.core.assess import incidents_of, repeated
from hpctl.core.compat import UTC
from hpctl.core.model import Finding, Verdict

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
