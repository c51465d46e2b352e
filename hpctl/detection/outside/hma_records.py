"""One record of HyperPod's health monitoring agent, read as a detection."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from hpctl.detection.kernel.xid import normalize_pci_address
from hpctl.toolkit.bounds import EARLIEST, LATEST
from hpctl.toolkit.compat import UTC, parse_iso_time
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding

# The lines of HyperPod's health monitoring agent, in the shapes that its releases write.
#
# All are JSON objects with the key `HealthMonitoringAgentDetectionEvent`; its other lines are
# ignored. Keys end in `: ` in some releases and not in others. The shapes, by what they hold:
#
#     xid        "condition": "XID Error", "data": {"ErrNum": 79}        from DCGM; no action named
#     dcgm       "condition": anything else, "data": {...}                a DCGM policy violation
#     npd        "details": {"reason": ..., "message": "Node condition NvidiaErrorReboot is ..."}
#     event      "Event detail": {"Action": "replace", "Type": ..., "Reason": ...}
#     condition  "condition details": {"type": ..., "status": ..., "message": ...}
#
# The detail contains HyperPod's intended action, where the record names it: `replace`, `reboot` or
# `none`. hpctl shows it, and its gate detects that the provider acts.

MARK = "HealthMonitoringAgentDetectionEvent"


EVIDENCE_CHARS = 512


_SIGNS = (MARK, "DCGM Policy Violation found", "NPD caught")
"""A truncated line may have lost its mark."""


_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
    r"[^)]*\): (?P<code>\d{1,5})"
)


_CONDITION = re.compile(r"[Nn]ode condition (\w+)")


_NO_CODE = re.compile(r"[^A-Za-z0-9_.:+-]+")


_NO_ACTION = frozenset({"XidUserAppError", "KernelDeadlock", "NvidiaGpuXidRestartApp"})


class MalformedHealthAgentDetectionError(ValueError):
    """The error of a detection that cannot be parsed: truncated, or of an unknown release."""


class HealthAgentDetection(Struct, frozen=True):
    """One detection. `at` is None where the record names no time that can be read."""

    what: str
    code: str
    line: str
    at: datetime | None
    device: str = ""
    action: str = ""
    message: str = ""

    def finding(self, heard: datetime) -> Finding:
        """Return the finding: WARN where HyperPod itself intends no action."""
        at = heard if self.at is None else min(self.at, heard)
        return Finding(
            f"hma.{self.what}",
            DeviceVerdict.WARN if self.action == "none" else DeviceVerdict.FAIL,
            at,
            at,
            device=self.device,
            code=self.code,
            detail=": ".join(part for part in (self.action, self.message) if part)[:256],
            evidence=self.line[:EVIDENCE_CHARS],
            clears=ClearCondition.BOOT,
        )


def parse_health_agent_detection(line: str) -> HealthAgentDetection | None:
    """Return the detection in a line of the log; None for its other lines. Raises
    MalformedHealthAgentDetectionError."""
    if not any(sign in line for sign in _SIGNS):
        return None
    try:
        # syslog writes its own prefix before it.
        begin = 0 if line.lstrip().startswith(("{", "[")) else max(0, line.find("{"))
        record = msgspec.json.decode(line[begin:])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise MalformedHealthAgentDetectionError(
            f"a detection that is not JSON: {error}"
        ) from error
    if not isinstance(record, dict):
        raise MalformedHealthAgentDetectionError("a detection that is no JSON object")
    fields = _normalize_record_keys(record)
    if fields.get(MARK) != "HealthEvent":
        return None
    for name, reader in _SHAPES.items():
        inner = fields.get(name)
        if isinstance(inner, dict):
            return reader(_normalize_record_keys(inner), fields, line)
    if isinstance(fields.get("condition"), str):
        return _parse_dcgm_policy_violation(fields, line)
    raise MalformedHealthAgentDetectionError(
        f"a detection of an unknown shape: {', '.join(sorted(fields))[:120]}"
    )


def _parse_node_problem_detector_event(
    details: Mapping[str, Any], fields: Mapping[str, Any], line: str
) -> HealthAgentDetection | None:
    """Return an event of the node problem detector: its reason, and the condition that it leads
    to."""
    message, reason = (
        _get_record_text_field(details, "message"),
        _get_detection_code_field(details, "reason"),
    )
    condition = _CONDITION.search(message)
    at = _parse_detection_time(details.get("timestamp")) or _parse_detection_time(fields.get("ts"))
    action = _find_hyperpod_intended_action(reason, condition[1] if condition else message)
    xid = _XID.search(message)
    if xid is None:
        return HealthAgentDetection("npd", reason, line, at, action=action, message=message)
    return HealthAgentDetection(
        "npd", reason, line, at, normalize_pci_address(xid["pci"]), action, f"Xid {xid['code']}"
    )


def _parse_eks_health_event(
    details: Mapping[str, Any], fields: Mapping[str, Any], line: str
) -> HealthAgentDetection | None:
    """Return an event with its action, as clusters on EKS have it."""
    reason, kind = (
        _get_detection_code_field(details, "Reason"),
        _get_record_text_field(details, "Type"),
    )
    asked = _get_record_text_field(details, "Action").lower()
    action = (
        asked
        if asked in ("replace", "reboot", "none")
        else _find_hyperpod_intended_action(reason, kind) or asked
    )
    xid = _XID.search(_get_record_text_field(details, "Message"))
    device = normalize_pci_address(xid["pci"]) if xid else ""
    return HealthAgentDetection(
        "event", reason, line, _parse_detection_time(fields.get("ts")), device, action, kind
    )


def _parse_node_condition(
    details: Mapping[str, Any], fields: Mapping[str, Any], line: str
) -> HealthAgentDetection | None:
    """Return a condition of the node; None for one whose status is not True."""
    if str(details.get("status", "True")).lower() != "true":
        return None
    kind = _get_detection_code_field(details, "type")
    at = _parse_detection_time(fields.get("ts"))
    message = _get_record_text_field(details, "message")
    return HealthAgentDetection(
        "condition",
        kind,
        line,
        at,
        action=_find_hyperpod_intended_action(kind, kind),
        message=message,
    )


_SHAPES = {
    "Event detail": _parse_eks_health_event,
    "condition details": _parse_node_condition,
    "details": _parse_node_problem_detector_event,
}


def _parse_dcgm_policy_violation(fields: Mapping[str, Any], line: str) -> HealthAgentDetection:
    """Return a DCGM policy violation. It names no action, and none is inferred."""
    at, condition = (
        _parse_detection_time(fields.get("ts")),
        _get_record_text_field(fields, "condition"),
    )
    data = fields.get("data")
    values = _normalize_record_keys(data) if isinstance(data, dict) else {}
    if condition.lower().startswith("xid"):
        return HealthAgentDetection("xid", _parse_xid_code(values.get("ErrNum")), line, at)
    message = msgspec.json.encode(data).decode() if data else ""
    return HealthAgentDetection(
        "dcgm", _make_finding_code_slug(condition), line, at, message=message
    )


def _parse_xid_code(value: object) -> str:
    """Return an Xid as JSON may spell it: 79, 79.0 or "79". Raises
    MalformedHealthAgentDetectionError for all else."""
    text = str(value).removesuffix(".0")
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,5}", text):
        raise MalformedHealthAgentDetectionError(f"an Xid whose ErrNum is no number: {value!r:.80}")
    return str(int(text))


def _normalize_record_keys(record: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key).rstrip(": "): value for key, value in record.items()}


def _get_record_text_field(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key, "")
    return " ".join(value.split()) if isinstance(value, str) else ""


def _get_detection_code_field(fields: Mapping[str, Any], key: str) -> str:
    """Return the word that names the detection. Raises MalformedHealthAgentDetectionError where
    there is none."""
    slug = _make_finding_code_slug(_get_record_text_field(fields, key))
    if not slug:
        raise MalformedHealthAgentDetectionError(f"a detection without {key!r}")
    return slug


def _make_finding_code_slug(text: str) -> str:
    return _NO_CODE.sub("_", text.strip())[:64]


def _find_hyperpod_intended_action(reason: str, condition: str) -> str:
    """Return HyperPod's intended action from its own text; empty where that names none."""
    if reason in _NO_ACTION:
        return "none"
    for phrases, action in (
        (("Terminate", "Replace", "PendingReplacement"), "replace"),
        (("Reboot",), "reboot"),
    ):
        if any(word in condition or word in reason for word in phrases):
            return action
    return ""


def _parse_detection_time(value: object) -> datetime | None:
    """Parse ISO 8601 or seconds since 1970, as zap writes either; None for Go's zero time (year 1)
    and for impossible times."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            at = datetime.fromtimestamp(value, UTC)
        else:
            at = parse_iso_time(str(value))
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return at if EARLIEST < at < LATEST else None
