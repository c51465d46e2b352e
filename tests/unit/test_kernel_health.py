"""What the head node remembers of jobs that had an error: as many as the agent tells apart."""

from datetime import datetime, timedelta

from msgspec.structs import replace

from hpctl.agent.findings import MAX_JOBS, Findings
from hpctl.core.compat import UTC
from hpctl.core.health import fold_report
from hpctl.core.model import BootId, Finding, InstanceId, NodeName, Report, Verdict

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
    for told in ((), (hit("13"),), (hit("", device="0000:2a:00.0"),)):
        later, _ = fold_report(health, report(*told), T0)
        assert "12" in {f.job for f in later.findings}
    later, _ = fold_report(health, report(replace(hit(""), code="44")), T0)
    assert "12" in {f.job for f in later.findings}
    later, _ = fold_report(health, report(hit("")), T0)
    assert [f.job for f in later.findings] == [""]
