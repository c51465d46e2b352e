"""HyperPod's health agent: every shape of record that its releases write, and what is none."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from hpctl.detection.outside.hma_log import UNIT, HealthAgentJournal
from hpctl.detection.outside.hma_records import (
    HealthAgentDetection,
    MalformedHealthAgentDetectionError,
)
from hpctl.detection.outside.hma_records import parse_health_agent_detection as read
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.model import ClearCondition

HEARD = datetime(2026, 7, 20, 23, tzinfo=UTC)
MARKED = {"HealthMonitoringAgentDetectionEvent": "HealthEvent"}


def record(**fields) -> str:
    return json.dumps({"level": "info", "ts": "2026-07-20T22:53:17Z", **fields, **MARKED})


def npd(key: str = "details", **details: str) -> str:
    return record(
        msg="NPD caught event: %v",
        **{key: {"severity": "warn", "timestamp": "2026-07-20T22:53:10Z", **details}},
    )


def found(line: str) -> HealthAgentDetection:
    detection = read(line)
    assert detection is not None
    return detection


def dcgm(condition, data, colon=""):
    more = {f"condition{colon}": condition, f"data{colon}": data}
    return record(msg="DCGM Policy Violation found ", **more)


def condition(kind: str, status: str = "True") -> str:
    details = {"type": kind, "status": status, "message": "GPU count mismatch"}
    return record(msg="NPD caught positive condition", **{"condition details": details})


ROWS = Path(__file__).with_name("hma_lines.txt").read_text().splitlines()
CASES = [row.split(" | ", 5) for row in ROWS if not row.startswith("#")]


@pytest.mark.parametrize(("check", "code", "device", "detail", "verdict", "line"), CASES)
def test_every_shape(check, code, device, detail, verdict, line):
    finding = found(line).finding(HEARD)
    output = (finding.check, finding.code, finding.device or "-", finding.detail or "-")
    assert (*output, finding.verdict) == (check, code, device, detail, verdict)
    assert (finding.clears, finding.evidence) == (ClearCondition.BOOT, line[:512])


def test_its_time_is_the_event_s_then_the_record_s_then_ours():
    assert found(npd(reason="R", message="")).at == datetime(2026, 7, 20, 22, 53, 10, tzinfo=UTC)
    mine = record(condition="XID Error", data={"ErrNum": 79})
    assert found(mine).finding(HEARD).first == datetime(2026, 7, 20, 22, 53, 17, tzinfo=UTC)
    none = json.dumps({"condition": "XID Error", "data": {"ErrNum": 79}, **MARKED})
    assert found(none).finding(HEARD).first == HEARD
    zap = json.dumps({"ts": 1784588000.5, "condition": "PCIe Error", "data": {}, **MARKED})
    assert found(zap).at == datetime.fromtimestamp(1784588000.5, UTC)
    ahead = record(condition="XID Error", data={"ErrNum": 79}).replace("2026", "2036")
    assert found(ahead).finding(HEARD).first == HEARD
    odd = record(condition="XID Error", data={"ErrNum": 79}).replace("2026-07-20T22:53:17Z", "soon")
    assert found(odd).at is None


@pytest.mark.parametrize(
    "when",
    [
        "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59-05:00", 1e300, -1e17, True,
    ],
)  # fmt: skip
def test_a_time_that_no_clock_shows_is_none(when):
    """Go's zero time among them: the record counts, from when it was heard."""
    line = json.dumps({"ts": when, "condition": "XID Error", "data": {"ErrNum": 79}, **MARKED})
    assert found(line).at is None
    assert found(line).finding(HEARD).first == HEARD


def test_a_journal_s_stamp_that_no_clock_shows_ends_nothing():
    journal = HealthAgentJournal()
    for stamp in ("9" * 30, "9" * 18, "9" * 6000, "", "-1"):
        entry = {"MESSAGE": "x", "_UID": "0", "_SYSTEMD_UNIT": UNIT, "__REALTIME_TIMESTAMP": stamp}
        assert journal.parse_entry(json.dumps(entry).encode()).text == "x"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "Started SageMaker HyperPod health monitoring agent.",
        '{"level":"info","ts":"2026-07-20T22:53:17Z","msg":"DCGM Policy registered"}',
        '{"level":"error","msg":"panic: runtime error: index out of range"}',
        json.dumps({"msg": "x", "HealthMonitoringAgentDetectionEvent": "Heartbeat"}),
        condition("NvidiaErrorReboot", "False"),
        '{"msg":"NPD caught event: %v","details":{"reason":"XidHardwareFailure"}}',
    ],
)
def test_its_other_lines_say_nothing_of_the_node(line):
    assert read(line) is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (dcgm("XID Error", {"ErrNum": 79})[:-20], "not JSON"),
        (dcgm("XID Error", {"ErrNum": True}), "ErrNum is no number"),
        (dcgm("XID Error", {"ErrNum": 79.5}), "ErrNum is no number"),
        (dcgm("XID Error", {}), "ErrNum is no number"),
        (record(msg="something new", **{"verdict: ": {"a": 1}}), "unknown shape: Health"),
        (npd(message="no reason"), "without 'reason'"),
        (record(**{"Event detail": {"Reason": 7}}), "without 'Reason'"),
        (record(details="text"), "unknown shape"),
        ('{"HealthMonitoringAgentDetectionEvent": ' + "[" * 5000, "not JSON"),
    ],
)
def test_a_detection_that_cannot_be_understood_says_why(line, says):
    with pytest.raises(MalformedHealthAgentDetectionError, match=says):
        read(line)
