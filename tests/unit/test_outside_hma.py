"""HyperPod's health agent: every shape of record that its releases write, and what is none."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from hpctl.agent.outside.hma import UNIT, HealthAgentJournal, HealthAgentWatch, Line
from hpctl.agent.outside.hma_records import Detection, Malformed, read
from hpctl.core.compat import UTC
from hpctl.core.model import Clears

HEARD = datetime(2026, 7, 20, 23, tzinfo=UTC)
MARKED = {"HealthMonitoringAgentDetectionEvent": "HealthEvent"}
NVRM = "NVRM: Xid (PCI:0000:b9:00): 71, pid=<unknown>, name=<unknown>, NVLink: fatal error"


DEADLOCK = "task python:123 blocked for more than 300 seconds."


def record(**fields: Any) -> str:
    return json.dumps({"level": "info", "ts": "2026-07-20T22:53:17Z", **fields, **MARKED})


def npd(key: str = "details", **details: str) -> str:
    return record(
        msg="NPD caught event: %v",
        **{key: {"severity": "warn", "timestamp": "2026-07-20T22:53:10Z", **details}},
    )


def found(line: str) -> Detection:
    detection = read(line)
    assert detection is not None
    return detection


def dcgm(condition: str, data: dict[str, Any], colon: str = "") -> str:
    more = {f"condition{colon}": condition, f"data{colon}": data}
    return record(msg="DCGM Policy Violation found ", **more)


def event(key: str = "Event detail", **detail: Any) -> str:
    return record(**{key: {"Type": "NvidiaGPUUnhealthy", **detail}})


def condition(kind: str, status: str = "True") -> str:
    details = {"type": kind, "status": status, "message": "GPU count mismatch"}
    return record(msg="NPD caught positive condition", **{"condition details": details})


def now_true(kind: str) -> str:
    return f'Node condition {kind} is now: True, reason: XidHardwareFailure, message: "{NVRM}"'


REPLACE, REBOOT = "NvidiaGpuXidErrorPendingReplacement", "NvidiaGpuCountMismatchPendingReboot"
GPU = "0000:b9:00.0"


# (the line), (check, code, device, detail, verdict)
CASES = {
    "slurm, with colons": (
        dcgm("XID Error", {"ErrNum": 79}, ": "),
        ("hma.xid", "79", "", "", "fail"),
    ),
    "slurm, without": (dcgm("XID Error", {"ErrNum": 13}), ("hma.xid", "13", "", "", "fail")),
    "another policy": (
        dcgm("PCIe Error", {"Replays": 9}, ": "),
        ("hma.dcgm", "PCIe_Error", "", '{"Replays":9}', "fail"),
    ),
    "a number as text": (dcgm("XID Error", {"ErrNum": "79"}), ("hma.xid", "79", "", "", "fail")),
    "a whole float": (dcgm("XID Error", {"ErrNum": 79.0}), ("hma.xid", "79", "", "", "fail")),
    "behind syslog's words": (
        "Jul 20 22:53:17 ip-10-1-0-5 hma[812]: " + dcgm("XID Error", {"ErrNum": 79}),
        ("hma.xid", "79", "", "", "fail"),
    ),
    "npd, reboot": (
        npd(reason="XidHardwareFailure", message=now_true("NvidiaErrorReboot")),
        ("hma.npd", "XidHardwareFailure", GPU, "reboot: Xid 71", "fail"),
    ),
    "npd, terminate, with colons": (
        npd("details: ", reason="XidHardwareFailure", message=now_true("NvidiaErrorTerminate")),
        ("hma.npd", "XidHardwareFailure", GPU, "replace: Xid 71", "fail"),
    ),
    "npd without a condition": (
        npd(reason="XidHardwareFailure", message=NVRM),
        ("hma.npd", "XidHardwareFailure", GPU, "Xid 71", "fail"),
    ),
    "npd, the application's": (
        npd(reason="XidUserAppError", message=NVRM.replace("71", "31")),
        ("hma.npd", "XidUserAppError", GPU, "none: Xid 31", "warn"),
    ),
    "npd, deadlock": (
        npd(reason="KernelDeadlock", message=DEADLOCK),
        ("hma.npd", "KernelDeadlock", "", f"none: {DEADLOCK}", "warn"),
    ),
    "event, replace": (
        event(Action="replace", Reason=REPLACE, Message=NVRM),
        ("hma.event", REPLACE, GPU, "replace: NvidiaGPUUnhealthy", "fail"),
    ),
    "event, the application's": (
        event("Event detail: ", Action="", Reason="NvidiaGpuXidRestartApp"),
        ("hma.event", "NvidiaGpuXidRestartApp", "", "none: NvidiaGPUUnhealthy", "warn"),
    ),
    "event, reboot by its reason": (
        event(Reason=REBOOT),
        ("hma.event", REBOOT, "", "reboot: NvidiaGPUUnhealthy", "fail"),
    ),
    "condition": (
        condition("NvidiaErrorReboot"),
        ("hma.condition", "NvidiaErrorReboot", "", "reboot: GPU count mismatch", "fail"),
    ),
}


@pytest.mark.parametrize(("line", "expected"), CASES.values(), ids=list(CASES))
def test_every_shape(line: str, expected: tuple[object, ...]) -> None:
    finding = found(line).finding(HEARD)
    assert (
        finding.check, finding.code, finding.device, finding.detail, finding.verdict
    ) == expected  # fmt: skip
    assert finding.clears is Clears.BOOT
    assert finding.evidence == line[:512]


def test_its_time_is_the_event_s_then_the_record_s_then_ours() -> None:
    late = npd(reason="R", message="")
    assert found(late).at == datetime(2026, 7, 20, 22, 53, 10, tzinfo=UTC)
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
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+05:00",
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59-05:00",
        1e300,
        -1e17,
        True,
    ],
)
def test_a_time_that_no_clock_shows_is_none(when: object) -> None:
    """Go's zero time among them: the record counts, from when it was heard."""
    line = json.dumps({"ts": when, "condition": "XID Error", "data": {"ErrNum": 79}, **MARKED})
    assert found(line).at is None
    assert found(line).finding(HEARD).first == HEARD


@pytest.mark.parametrize("when", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59-05:00"])
def test_such_a_record_is_reported_and_so_is_one_that_is_refused(when: str) -> None:
    class Log:
        cut = 0

        def read(self, wait_s: float) -> list[Line]:
            record = {"ts": when, "condition": "XID Error", "data": {"ErrNum": 79}, **MARKED}
            wrong = {"ts": when, "condition": "XID Error", "data": {"ErrNum": True}, **MARKED}
            return [Line(json.dumps(record)), Line(json.dumps(wrong))]

        def close(self) -> None:
            pass

    watch = HealthAgentWatch(Log(), HEARD, lambda: None)
    assert watch.turn(0.0)
    assert [(f.check, f.code) for f in watch.findings()] == [
        ("hma.xid", "79"), ("hma.log", "malformed"),
    ]  # fmt: skip


def test_a_journal_s_stamp_that_no_clock_shows_ends_nothing() -> None:
    journal = HealthAgentJournal()
    for stamp in ("9" * 30, "9" * 18, "9" * 6000, "", "-1"):
        entry = {"MESSAGE": "x", "_UID": "0", "_SYSTEMD_UNIT": UNIT, "__REALTIME_TIMESTAMP": stamp}
        line = journal._line(json.dumps(entry).encode())
        assert line is not None
        assert line.text == "x"


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
def test_its_other_lines_say_nothing_of_the_node(line: str) -> None:
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
def test_a_detection_that_cannot_be_understood_says_why(line: str, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        read(line)
