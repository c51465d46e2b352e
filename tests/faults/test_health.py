"""Folding reports: what is new wakes the loop, what is known is counted, a boot clears."""

from msgspec.structs import replace

from hpctl.detection.findings import MAX_JOBS, FindingStore
from hpctl.faults.health import (
    MOST_FINDINGS,
    drop_findings_dismissed_by_operator,
    merge_agent_report,
)
from hpctl.vocabulary.model import AgentReport, ClearCondition, DeviceVerdict, Finding, NodeHealth
from tests.fakes.values import T0, at

LATER = at(10)


def finding(seconds: float = 0, *, code: str = "79", count: int = 1) -> Finding:
    return Finding(
        "kernel.xid", DeviceVerdict.FAIL, T0, at(seconds), "0000:3b:00", code, count=count
    )


def report(*findings: Finding, boot: str = "b1") -> AgentReport:
    return AgentReport("n1", "i-1", boot, 1, T0, T0, findings)


def test_a_new_code_is_news_and_its_repeats_are_counted_quietly() -> None:
    health, _ = merge_agent_report(None, report(), T0)
    health, new = merge_agent_report(health, report(finding()), T0)
    assert new
    health, new = merge_agent_report(health, report(finding(5, count=7)), LATER)
    assert not new
    assert (health.findings[0].count, health.findings[0].last) == (7, at(5))


def test_a_finding_stays_within_its_boot_and_goes_with_it() -> None:
    health, _ = merge_agent_report(None, report(finding()), T0)
    health, _ = merge_agent_report(health, report(), LATER)
    assert [f.code for f in health.findings] == ["79"]
    health, new = merge_agent_report(health, report(boot="b2"), LATER)
    assert new
    assert health.findings == ()


def test_a_node_s_fast_clock_dates_nothing_in_the_future() -> None:
    health, _ = merge_agent_report(None, report(finding(3600)), T0)
    assert health.findings[0].last == T0


def gone(finding: Finding) -> Finding:
    return replace(finding, clears=ClearCondition.GONE)


def operators(finding: Finding) -> Finding:
    return replace(finding, clears=ClearCondition.OPERATOR)


def test_what_clears_by_being_gone_is_gone_when_it_is_not_reported_and_that_is_news() -> None:
    health, _ = merge_agent_report(None, report(gone(finding()), finding(code="48")), T0)
    health, new = merge_agent_report(health, report(finding(code="48")), LATER)
    assert ([f.code for f in health.findings], new) == (["48"], True)
    health, new = merge_agent_report(health, report(), LATER)
    assert ([f.code for f in health.findings], new) == (["48"], False)


def test_what_came_back_after_it_was_gone_begins_again() -> None:
    health, _ = merge_agent_report(None, report(gone(finding(count=9))), T0)
    health, _ = merge_agent_report(health, report(), LATER)
    again = gone(replace(finding(20), first=at(20)))
    health, new = merge_agent_report(health, report(again), at(30))
    assert (health.findings, new) == ((again,), True)


def test_what_only_an_operator_clears_survives_boots_of_the_same_instance() -> None:
    health, _ = merge_agent_report(None, report(operators(finding()), finding(code="48")), T0)
    health, _ = merge_agent_report(health, report(boot="b2"), LATER)
    assert [f.code for f in health.findings] == ["79"]
    health, _ = merge_agent_report(health, report(boot="b2"), LATER)
    assert [f.code for f in health.findings] == ["79"]
    health, _ = merge_agent_report(health, replace(report(boot="b3"), instance="i-2"), LATER)
    assert health.findings == ()


def test_an_operators_return_dismisses_what_only_he_clears_however_often_it_is_seen() -> None:
    health, _ = merge_agent_report(None, report(operators(finding()), finding(code="48")), T0)
    assert drop_findings_dismissed_by_operator(health, None) == health
    assert [f.code for f in drop_findings_dismissed_by_operator(health, LATER).findings] == ["48"]
    health, _ = merge_agent_report(
        health, report(replace(operators(finding(3600)), count=60)), at(3600)
    )
    assert [f.code for f in drop_findings_dismissed_by_operator(health, LATER).findings] == ["48"]


def test_what_began_after_the_return_counts() -> None:
    anew = replace(operators(finding(30)), first=at(30))
    health, _ = merge_agent_report(None, report(anew), at(30))
    assert drop_findings_dismissed_by_operator(health, LATER).findings == (anew,)


def hit(job: str, minute: int = 0, device: str = "0000:c1:00.0") -> Finding:
    when = at(60 * minute)
    return Finding("kernel.xid", DeviceVerdict.FAIL, when, when, device, "43", job=job)


def test_thousands_of_jobs_are_not_remembered_one_by_one() -> None:
    later = at(30 * 86400)
    health, _ = merge_agent_report(None, report(), later)
    agent = FindingStore()
    for n in range(500):
        agent.add(hit(str(n + 1), n))
        health, _ = merge_agent_report(health, report(*agent.all()), later)
    assert (len(health.findings), sum(f.count for f in health.findings)) == (MAX_JOBS + 1, 500)


def test_a_job_is_remembered_while_nothing_stands_for_it() -> None:
    health, _ = merge_agent_report(None, report(hit("12")), T0)
    # An agent that lost its memory, a report that was cut, another device.
    for text in ((), (hit("13"),), (hit("", device="0000:2a:00.0"),)):
        later, _ = merge_agent_report(health, report(*text), T0)
        assert "12" in {f.job for f in later.findings}
    later, _ = merge_agent_report(health, report(replace(hit(""), code="44")), T0)
    assert "12" in {f.job for f in later.findings}
    later, _ = merge_agent_report(health, report(hit("")), T0)
    assert [f.job for f in later.findings] == [""]


def flood(number: int, verdict: DeviceVerdict = DeviceVerdict.WARN) -> AgentReport:
    """A report full of what was never told before."""
    new = (finding(number, code=f"{number}-{n}") for n in range(MOST_FINDINGS))
    return report(*(replace(f, verdict=verdict) for f in new))


def list_reported(health: NodeHealth) -> list[Finding]:
    return [f for f in health.findings if f.check != "agent.dropped"]


def test_a_flood_is_bounded_and_says_how_many_were_dropped() -> None:
    health, _ = merge_agent_report(None, flood(0), T0)
    assert len(health.findings) == MOST_FINDINGS
    for number in (1, 2):
        health, _ = merge_agent_report(health, flood(number), at(number))
    (note,) = set(health.findings) - set(list_reported(health))
    assert (len(list_reported(health)), {f.last for f in list_reported(health)}) == (
        MOST_FINDINGS,
        {at(2)},
    )
    dropped = (DeviceVerdict.WARN, at(1), at(2), MOST_FINDINGS)
    assert (note.verdict, note.first, note.last, note.count) == dropped
    crowd = tuple(replace(f, verdict=DeviceVerdict.FAIL) for f in flood(3).findings)
    full, _ = merge_agent_report(None, report(*crowd), T0)
    for _ in range(2):  # what is left out each time is no news
        full, new = merge_agent_report(full, flood(2), at(2))
        assert not [f for f in list_reported(full) if f.verdict is DeviceVerdict.WARN]
    assert (new, full.findings[-1].count) == (False, MOST_FINDINGS)
    health, _ = merge_agent_report(health, report(boot="b2"), at(3))
    assert health.findings == ()


def test_a_flood_hides_no_fault_and_the_same_is_kept_in_any_order() -> None:
    old = replace(finding(), last=T0)
    health, _ = merge_agent_report(None, report(old), T0)
    for number in (1, 2):
        health, _ = merge_agent_report(health, flood(number), at(number))
    assert old in health.findings
    # Where all of it fails, what the agent still tells stays, then what an operator must clear.
    lasting = operators(finding(code="48"))
    health, _ = merge_agent_report(health, report(lasting), at(3))
    for number in (4, 5):
        full = flood(number, DeviceVerdict.FAIL)
        some = replace(full, findings=(old, *full.findings[: MOST_FINDINGS // 2]))
        health, _ = merge_agent_report(health, some, at(number))
        assert {old, lasting} <= set(health.findings)
        turned, _ = merge_agent_report(
            replace(health, findings=health.findings[::-1]), flood(6, DeviceVerdict.FAIL), at(6)
        )
        again, _ = merge_agent_report(health, flood(6, DeviceVerdict.FAIL), at(6))
        assert set(turned.findings) == set(again.findings)


def test_the_head_nodes_own_note_is_no_way_around_the_bound() -> None:
    notes = [replace(finding(code=str(n)), check="agent.dropped") for n in range(MOST_FINDINGS)]
    health, _ = merge_agent_report(None, report(*notes), T0)
    health, _ = merge_agent_report(health, flood(1), at(1))
    assert len(health.findings) == MOST_FINDINGS + 1
