"""What scripts report: kept, renewed, cleared, forgotten, bounded, remembered over a restart."""

import json
from datetime import timedelta

import pytest

from hpctl.detection.outside.report_request import (
    FindingReportRequest,
    MalformedAgentRequestError,
    decode_agent_request,
)
from hpctl.detection.outside.reported import MAX_REPORTED, ReportedFindingTable, TooManyReportsError
from hpctl.faults.health import merge_agent_report
from hpctl.vocabulary.model import AgentReport as ToHead
from hpctl.vocabulary.model import DeviceVerdict
from tests.fakes.values import T0 as NOON
from tests.fakes.values import Clock

BOOT = "b-1"


@pytest.fixture
def watch():
    return Clock()


@pytest.fixture
def table(watch) -> ReportedFindingTable:
    return ReportedFindingTable(BOOT, None, None, watch.now)


def output(verdict: str = "fail", check: str = "report.nhc", **more) -> FindingReportRequest:
    found = decode_agent_request(
        json.dumps({"op": "report", "check": check, "verdict": verdict} | more).encode()
    )
    assert isinstance(found, FindingReportRequest)
    return found


def shown(table: ReportedFindingTable) -> list[tuple[str, str, str]]:
    return [(f.code, f.device, f.verdict.value) for f in table.findings()]


@pytest.mark.parametrize("again", ["fail", "ok"])
def test_a_clock_that_is_set_back_costs_no_report(table, watch, again):
    """The head node refuses a report with a finding that was last seen before it began."""
    table.take(output(clears="boot"))
    watch.at += timedelta(hours=-1)
    table.take(output(again, clears="boot"))
    (finding,) = table.findings()
    assert finding.first <= finding.last == watch.at


def test_reported_again_it_is_renewed_under_its_first_detail(table, watch):
    table.take(output(detail="91 %", evidence="old"))
    watch.at += timedelta(minutes=9)
    table.take(output(detail="92 %", evidence="new"))
    watch.at += timedelta(minutes=9)
    (found,) = table.findings()
    assert (found.count, found.detail, found.evidence) == (2, "91 %", "new")
    assert (found.first, found.last) == (NOON, NOON + timedelta(minutes=9))
    watch.at += timedelta(minutes=1)
    assert table.findings() == ()


def test_its_time_is_its_own(table, watch):
    table.take(output(code="long", for_s=7200))
    table.take(output(code="boot", clears="boot"))
    table.take(output(code="short", for_s=5))
    watch.at += timedelta(seconds=5)
    assert [code for code, _, _ in shown(table)] == ["boot", "long"]
    watch.at += timedelta(days=30)
    assert [code for code, _, _ in shown(table)] == ["boot"]


def test_ok_clears_what_it_names(table):
    for code, device in (("fs", "/a"), ("fs", "/b"), ("mem", "")):
        table.take(output(code=code, device=device))
    table.take(output(check="report.other", code="fs"))
    assert table.take(output("ok", code="fs", device="/a")).cleared == 1
    assert table.take(output("ok", code="fs", device="/a")).cleared == 0
    assert table.take(output("ok", check="report.nhc")).cleared == 2
    assert [f.check for f in table.findings()] == ["report.other"]


def test_ok_reaches_a_head_node_that_remembers_until_the_boot(table):
    def to_head(seq: int) -> ToHead:
        node, instance = "n1", "i-1"
        return ToHead(node, instance, BOOT, seq, NOON, NOON, table.findings())

    table.take(output(clears="boot", detail="91 %"))
    known, _ = merge_agent_report(None, to_head(1), NOON)
    assert table.take(output("ok")).cleared == 1
    known, new = merge_agent_report(known, to_head(2), NOON)
    assert [f.verdict for f in known.findings] == [DeviceVerdict.OK]
    assert new
    table.take(output(clears="boot", detail="95 %"))
    known, _ = merge_agent_report(known, to_head(3), NOON)
    assert [(f.verdict, f.detail) for f in known.findings] == [(DeviceVerdict.FAIL, "91 %")]


def test_what_only_an_operator_clears_no_script_does(table):
    table.take(output(clears="operator"))
    taken = table.take(output("ok"))
    assert (taken.cleared, taken.stays, shown(table)) == (0, 1, [("", "", "fail")])


def test_a_full_table_keeps_failures_before_warnings(table, watch):
    table.take(output("warn", code="warning"))
    for number in range(MAX_REPORTED - 1):
        table.take(output(code=str(number)))
    watch.at += timedelta(seconds=1)
    assert table.take(output(code="one-more")).kept
    assert "warning" not in [code for code, _, _ in shown(table)]
    with pytest.raises(TooManyReportsError):
        table.take(output(code="too-much"))
    assert table.take(output(code="7")).kept, "what is known is renewed all the same"
    assert len(table.findings()) == MAX_REPORTED


def test_it_outlives_a_restart_and_not_a_boot(tmp_path, watch):
    state = tmp_path / "spool" / "reported.json"
    before = ReportedFindingTable(BOOT, state, now=watch.now)
    before.take(output(code="hour", for_s=3600))
    before.take(output(code="boot", clears="boot"))
    watch.at += timedelta(minutes=30)
    assert ReportedFindingTable(BOOT, state, now=watch.now).findings() == before.findings()
    watch.at += timedelta(minutes=31)
    assert [c for c, _, _ in shown(ReportedFindingTable(BOOT, state, now=watch.now))] == ["boot"]
    assert ReportedFindingTable("b-2", state, now=watch.now).findings() == ()


def test_a_damaged_file_or_none_to_be_written_costs_only_the_memory(tmp_path):
    state = tmp_path / "reported.json"
    state.write_text('{"boot": 3')
    assert ReportedFindingTable(BOOT, state).findings() == ()
    (tmp_path / "file").write_text("")
    blocked = ReportedFindingTable(BOOT, tmp_path / "file" / "below.json")
    assert blocked.take(output()).kept
    assert len(blocked.findings()) == 1


def test_what_a_script_computes_is_made_to_fit():
    found = output(
        code=" check fs/é\n", device="a\x1b[31mb", detail="x" * 999, evidence="y" * 9999,
        job="12_3;rm",
    )  # fmt: skip
    assert (found.code, found.device) == ("check_fs_", "a [31mb")
    assert (len(found.detail), len(found.evidence), found.job) == (256, 2048, "12_3")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "does not understand the health check's report"),
        (b"\xff\n", "does not understand the health check's report"),
        (b"[" * 9999, "does not understand the health check's report"),
        (b'{"op": "reboot"}', "op"),
        (b'{"op": "verdict", "x": 1}', "x"),
        (b'{"op": "report", "check": "gpu.xid", "verdict": "fail"}', "$.check"),
        (b'{"op": "report", "check": "report.", "verdict": "fail"}', "$.check"),
        (b'{"op": "report", "check": "report.a", "verdict": "unknown"}', "ok, warn or fail"),
        (b'{"op": "report", "check": "report.a", "verdict": "fail", "for_s": 0}', "$.for_s"),
        (
            b'{"op": "report", "check": "report.a", "verdict": "fail", "clears": "boot",'
            b' "for_s": 9}',
            "only with clears: gone",
        ),
    ],
)
def test_what_is_no_request_is_reported_its_place(line, says):
    with pytest.raises(MalformedAgentRequestError) as caught:
        decode_agent_request(line)
    assert says in str(caught.value)
