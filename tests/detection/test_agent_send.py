"""What the sender says when, and what the spool still knows after the agent was killed."""

import json
from datetime import datetime, timedelta
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hpctl.detection import send
from hpctl.detection.send import REPEATS_EVERY, HeadNodeReply, ReportDeliveryResult, ReportSender
from hpctl.detection.send_pace import SendRateLimiter
from hpctl.detection.settings import AgentSettings
from hpctl.detection.spool import FindingsSpool, RestoredFindings
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import AgentReport, ClearCondition, DeviceVerdict, Finding
from hpctl.wire import reports as wire
from hpctl.wire.heads import HeadNodeAddress

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)

XID = Finding("kernel.xid", DeviceVerdict.FAIL, NOON, NOON, "0000:c1:00.0", "79", evidence="line")
AGAIN = replace(XID, last=NOON + timedelta(minutes=10), count=2)
OTHER = replace(XID, code="48")
GENERATION = NodeGeneration("n1", "i-1", "b-1")


class Line:
    """A head node as the sender sees it: a book of digests, and a time."""

    def __init__(self) -> None:
        self.sent: list[AgentReport | wire.Heartbeat] = []
        self.held = ""
        self.away = False
        self.now = 1000.0

    def post(self, answer: AgentReport | wire.Heartbeat) -> HeadNodeReply:
        self.sent.append(answer)
        if self.away:
            return HeadNodeReply(ReportDeliveryResult.RETRY, "away")
        if isinstance(answer, AgentReport):
            self.held = wire.compute_findings_digest(answer.findings)
        elif answer.digest != self.held:
            return HeadNodeReply(ReportDeliveryResult.NEED_FULL)
        return HeadNodeReply(ReportDeliveryResult.ACKED)

    def said(self) -> list[str]:
        kinds = ["full" if isinstance(s, AgentReport) else "brief" for s in self.sent]
        self.sent.clear()
        return kinds


class Saved(FindingsSpool):
    """A spool that counts its writes."""

    writes = 0

    def save(self, report: AgentReport, *, acked: bool) -> None:
        self.writes += 1
        super().save(report, acked=acked)


class Bench:
    """A sender without its thread."""

    def __init__(self, directory, monkeypatch, agent_start=NOON):
        self.line = Line()
        self.directory = directory
        self.findings: tuple[Finding, ...] = ()
        self.version = 1
        monkeypatch.setattr(send, "HeadNodeClient", lambda *_: self.line)
        monkeypatch.setattr(send.time, "monotonic", lambda: self.line.now)
        self.spool = Saved(directory)
        settings = AgentSettings(
            (HeadNodeAddress("h", 1),),
            GENERATION.node,
            GENERATION.instance,
            GENERATION.boot,
            spool=directory,
        )
        self.beat_s = settings.heartbeat_s
        self.sender = ReportSender(settings, self.spool, agent_start, self, Mock())

    def snapshot(self) -> tuple[int, tuple[Finding, ...]]:
        return self.version, self.findings

    def gauges(self) -> dict[str, float]:
        return {"gpu.clock_mhz": 1980.0}

    def see(self, *findings: Finding) -> None:
        self.version += 1
        self.findings = findings

    def deliver(self, times: int = 1) -> list[str]:
        for _ in range(times):
            self.sender.deliver()
            self.line.now += self.beat_s
        return self.line.said()


@pytest.fixture
def bench(tmp_path, monkeypatch) -> Bench:
    return Bench(tmp_path / "spool", monkeypatch)


def test_what_is_unchanged_is_sent_in_brief(bench):
    bench.see(XID)
    assert bench.deliver(5) == ["full", "brief", "brief", "brief", "brief"]
    assert bench.spool.writes == 1


def test_every_attempt_has_its_own_number_and_the_gauges_of_now(bench):
    bench.deliver(2)
    bench.line.held = "forgotten"
    seen: list[AgentReport | wire.Heartbeat] = []
    post = bench.line.post
    bench.line.post = lambda text: seen.append(text) or post(text)
    bench.deliver(2)
    assert [s.seq for s in seen] == [3, 4, 5]
    assert all(s.gauges == {"gpu.clock_mhz": 1980.0} for s in seen)


@pytest.mark.parametrize(
    "change",
    [(XID, OTHER), (), (replace(XID, verdict=DeviceVerdict.WARN),), (replace(XID, job="7"),)],
)
def test_what_is_new_ends_or_says_something_else_is_sent_in_full(bench, change):
    bench.see(XID)
    bench.deliver(2)
    bench.see(*change)
    assert bench.deliver(2) == ["full", "brief"]


def test_a_start_by_a_clock_that_was_ahead_is_corrected_where_it_is_refused(tmp_path, monkeypatch):
    ahead = datetime.now(UTC) + timedelta(days=1)
    bench = Bench(tmp_path / "spool", monkeypatch, agent_start=ahead)
    answers = [
        send.parse_head_node_reply(403, json.dumps({"error": error, "message": "..."}).encode())
        for error in ("stale_start", "future_start", "stale_start")
    ]
    starts: list[datetime] = []

    def post(report: AgentReport | wire.Heartbeat) -> HeadNodeReply:
        starts.append(report.agent_start)
        return answers.pop(0)

    bench.line.post = post
    bench.deliver(3)
    assert starts[:2] == [ahead, ahead], "only a start in the future is corrected"
    assert starts[2] <= datetime.now(UTC)


def test_a_repeat_after_some_peace_is_sent_in_full(bench):
    bench.see(XID)
    bench.deliver(REPEATS_EVERY + 1)
    bench.findings = (AGAIN,)
    assert bench.deliver(2) == ["full", "brief"]


def test_a_storm_of_repeats_is_a_report_now_and_then(bench):
    bench.see(XID)
    bench.deliver()
    kinds = []
    for n in range(30):
        bench.findings = (replace(AGAIN, count=2 + n),)
        kinds += bench.deliver()
    assert (kinds.count("full"), bench.spool.writes) == (30 // REPEATS_EVERY, 1)


def test_a_head_node_that_forgot_is_reported_at_once(bench):
    bench.see(XID)
    bench.deliver(2)
    bench.line.held = ""
    assert bench.deliver(2) == ["brief", "full", "brief"]


def test_an_hour_without_a_head_node_loses_nothing_that_matters(bench):
    bench.see(XID)
    bench.deliver(2)
    bench.line.away = True
    bench.deliver(3)
    writes = bench.spool.writes
    for n in range(720):
        if n == 100:
            bench.see(XID, OTHER)
        bench.findings = (replace(bench.findings[0], count=2 + n), *bench.findings[1:])
        bench.deliver()
    assert bench.spool.writes <= writes + 2, "an hour of attempts wears no disk"
    # Killed meanwhile: the next run of the agent knows what nobody heard.
    recalled = FindingsSpool(bench.directory).recall(GENERATION)
    assert {f.code for f in recalled.findings} == {"79", "48"}
    bench.line.away = False
    bench.line.held = ""  # and the head node was another one by then
    assert (bench.deliver(2), bench.line.held) == (
        ["full", "brief"],
        wire.compute_findings_digest((XID, OTHER)),
    )


# When the sender is woken: at once, then seldom, and nothing is forgotten.
def test_what_is_new_goes_out_at_once_and_only_once():
    pace = SendRateLimiter()
    assert not pace.due(100.0)
    pace.news()
    pace.news()
    assert pace.due(100.0)
    assert not pace.due(100.0)
    assert pace.wait_s(100.0) is None


@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=300))
def test_no_flood_wakes_more_often_than_the_bucket_allows(steps):
    pace, now, woken = SendRateLimiter(), 1000.0, 0
    for step in steps:
        now += step
        pace.news()
        woken += pace.due(now)
    assert woken <= 10 + (now - 1000) / 0.5
    assert pace.wait_s(now) is None or pace.due(now + 0.51)


FINDING = Finding(
    "kernel.xid", DeviceVerdict.FAIL, NOON, NOON, "0000:c1:00.0", "79", evidence="line"
)

REPORT = AgentReport("n1", "i-1", "b-1", 4, NOON, NOON, (FINDING,))


NEXT_BOOT = replace(REPORT, boot="b-2")


OPERATOR = replace(FINDING, code="edac", clears=ClearCondition.OPERATOR)
BOTH = (FINDING, OPERATOR)


@pytest.mark.parametrize(
    ("acked", "told", "now", "known", "logged"),
    [
        (True, (FINDING,), REPORT, (FINDING,), 0),
        (False, (FINDING,), REPORT, (FINDING,), 0),
        (False, (FINDING,), NEXT_BOOT, (), 1),
        (True, (FINDING,), NEXT_BOOT, (), 0),
        (False, BOTH, NEXT_BOOT, (OPERATOR,), 1),
        (True, (OPERATOR,), NEXT_BOOT, (), 0),
        (False, BOTH, replace(NEXT_BOOT, instance="i-2"), (), 2),
    ],
)
def test_what_is_known_again(tmp_path, caplog, acked, told, now, known, logged):
    """Of this boot all; of an earlier one what no boot clears and nobody heard."""
    FindingsSpool(tmp_path / "spool").save(replace(REPORT, findings=told), acked=acked)
    assert FindingsSpool(tmp_path / "spool").recall(now.generation) == RestoredFindings(known, NOON)
    assert caplog.text.count("not heard before this boot") == logged
    assert ("kernel.xid line" in caplog.text) is bool(logged)


@pytest.mark.parametrize(
    "damage",
    [b"", b"\0" * 50, b'{"acked":true,"body":"{}"}', b"[]", b'{"acked":true,"body":"\xff"}'],
)
def test_a_damaged_state_is_renamed(tmp_path, damage, caplog):
    (tmp_path / "state.json").write_bytes(damage)
    spool = FindingsSpool(tmp_path)
    assert spool.recall(REPORT.generation) == RestoredFindings()
    assert (tmp_path / "state.bad").read_bytes() == damage
    assert "renamed to" in caplog.text
    spool.save(REPORT, acked=False)
    assert FindingsSpool(tmp_path).recall(REPORT.generation).findings == (FINDING,)


def test_a_disk_that_cannot_be_written_is_reported_once(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    spool = FindingsSpool(tmp_path / "file" / "spool")
    spool.save(REPORT, acked=False)
    spool.save(REPORT, acked=False)
    assert caplog.text.count("cannot be written") == 1
