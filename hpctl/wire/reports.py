"""The bytes between agent and head node: JSON, versioned, bounded, strict.

A body holds one `report` (all findings) or one `heartbeat` (their digest alone, where nothing has
changed since a report that was acknowledged). The shapes below repeat vocabulary.model's Report and
Finding with their limits, so that msgspec names the place of whatever is wrong
(`$.report.findings[3].evidence`). A field that we do not know is an error: within one version the
two ends say the same things.

Who sent a body stands in the Authorization header: `MUNGE <credential>` over the body's digest,
or `HPCTL <session>:<HMAC-SHA256 of the body>` with the key of a session that a body with
`open_session` and a MUNGE credential has opened (docs/adr/0015).

Who answers stands in the HPCTL-Proof header, made like the Authorization that it answers: a MUNGE
credential for the asker's uid alone, or the HMAC with the session's key (docs/adr/0042).
"""

import hashlib
import hmac
import math
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from hpctl.faults.health import MOST_FINDINGS, make_finding_identity_key
from hpctl.toolkit.bounds import clamp_time_fields, convert_to_utc
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, NodeName
from hpctl.vocabulary.model import AgentReport, ClearCondition, DeviceVerdict, Finding
from hpctl.wire.stack_request import RankStackTraceRequest

_T = TypeVar("_T")
VERSION = 1
PATH = "/v1/reports"
REQUESTS_PATH = "/v1/requests"
COPY_PATH = "/v1/copy"
AUTH_SCHEME = "MUNGE"
SESSION_SCHEME = "HPCTL"
PROOF_HEADER = "HPCTL-Proof"
KEY_BYTES = 32
MAX_BODY = 256 * 1024
"""Bytes of one report's body."""
MAX_REQUEST = 32768
"""Bytes of one operator's request."""
MAX_FINDINGS = MOST_FINDINGS
MAX_EVIDENCE = 2048
"""Characters of one finding's evidence."""
MAX_GAUGES = 64
"""Numbers for the comparison with peers, in one report."""

# \Z, not $: that one also matches before a closing newline.
_Node = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
_Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,63}\Z")]
_Check = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_.]{0,63}\Z")]
_Gauge = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_.]{0,63}\Z")]
_Job = Annotated[str, Meta(pattern=r"^[0-9_+]{0,32}\Z")]
_Word = Annotated[str, Meta(max_length=256)]
_Time = Annotated[datetime, Meta(tz=True)]
_Natural = Annotated[int, Meta(ge=1, le=2**53)]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class MalformedReportError(HpctlError):
    """The bytes are not a report. The message names the place."""

    code = "malformed"


class InvalidReportError(MalformedReportError):
    """JSON, but not within the limits or the shape of this version."""

    code = "invalid_report"


class UnsupportedVersionError(MalformedReportError):
    """A report of a format that this head node does not speak."""

    code = "unsupported_version"


class ReportTooLargeError(MalformedReportError):
    """More than MAX_BODY bytes."""

    code = "too_large"


class _WireFinding(Struct, frozen=True, forbid_unknown_fields=True):
    check: _Check
    verdict: DeviceVerdict
    first: _Time
    last: _Time
    device: _Word = ""
    code: _Word = ""
    detail: _Word = ""
    evidence: Annotated[str, Meta(max_length=MAX_EVIDENCE)] = ""
    count: _Natural = 1
    clears: ClearCondition = ClearCondition.BOOT
    job: _Job = ""


class _WireAgentReport(Struct, frozen=True, forbid_unknown_fields=True):
    node: _Node
    instance: _Id
    boot: _Id
    seq: _Natural
    sent_at: _Time
    agent_start: _Time
    findings: Annotated[tuple[_WireFinding, ...], Meta(max_length=MAX_FINDINGS)] = ()
    gauges: Annotated[dict[_Gauge, float], Meta(max_length=MAX_GAUGES)] = {}


class Heartbeat(Struct, frozen=True, forbid_unknown_fields=True):
    """The agent lives, its findings are still those that have this digest; its gauges of now.

    Reading a heartbeat is the busiest thing that a head node does, so this is what was read
    itself, and no copy. `seq` and `agent_start` are as in a Report.
    """

    node: _Node
    instance: _Id
    boot: _Id
    seq: _Natural
    sent_at: _Time
    agent_start: _Time
    digest: _Digest
    gauges: Annotated[dict[_Gauge, float], Meta(max_length=MAX_GAUGES)] = {}

    def __post_init__(self) -> None:
        clamp_time_fields(self, "sent_at", "agent_start")

    @property
    def generation(self) -> NodeGeneration:
        """Return the generation that the heartbeat speaks of."""
        return NodeGeneration(NodeName(self.node), InstanceId(self.instance), BootId(self.boot))


class OperatorRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """An operator's request: `hpctl approve` and its siblings. `by`: the person behind sudo, whom
    root alone may name. `detail`: what else the verb says, as JSON."""

    v: int
    verb: Literal[
        "pause", "unpause", "resume", "approve", "cancel", "replace", "replace-now", "reboot",
        "reboot-now", "return", "failover", "accept-quick", "accept-full", "maintenance-add",
        "maintenance-end",
    ]  # fmt: skip
    target: Annotated[str, Meta(max_length=255)] = ""
    by: Annotated[str, Meta(max_length=64)] = ""
    detail: Annotated[str, Meta(max_length=30000)] = ""


class _AgentMessageEnvelope(Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    report: _WireAgentReport | None = None
    heartbeat: Heartbeat | None = None
    open_session: bool = False


class _FormatVersionField(Struct, frozen=True):
    v: int


class AgentMessage(Struct, frozen=True):
    """What a body says, and whether its sender asks for a session."""

    content: AgentReport | Heartbeat
    open_session: bool = False


class SessionGrant(Struct, frozen=True, forbid_unknown_fields=True):
    """A session as the head node grants it.

    `key` is a MUNGE credential whose payload is the key; only the uid that asked can decode it.
    """

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    key: Annotated[str, Meta(max_length=4096)]
    lasts_s: Annotated[float, Meta(gt=0)]


class ReportAck(Struct, frozen=True, omit_defaults=True):
    """The head node's answer to what it took."""

    ack: int
    session: SessionGrant | None = None
    stacks: RankStackTraceRequest | None = None
    order: Annotated[str, Meta(max_length=8192)] = ""
    """A credential of the daemon's, for this node's agent (hpctl.wire.munge)."""


_version = msgspec.json.Decoder(_FormatVersionField)
_envelope = msgspec.json.Decoder(_AgentMessageEnvelope)
_ack = msgspec.json.Decoder(ReportAck)
_asked = msgspec.json.Decoder(OperatorRequest)
_encoder = msgspec.json.Encoder()


def make_request_credential_payload(body: bytes) -> bytes:
    """Return what the credential of a request must carry: `hpctl1:` and the body's SHA-256 in
    hex."""
    return b"hpctl1:" + hashlib.sha256(body).hexdigest().encode()


def make_session_authorization(session: str, secret: bytes, body: bytes) -> str:
    """Return the Authorization header of a body that is sent within a session."""
    return f"{SESSION_SCHEME} {session}:{sign_message_body(secret, body)}"


def sign_message_body(secret: bytes, body: bytes) -> str:
    """Return the proof that the sender of a body knows its session's key: HMAC-SHA256 in hex."""
    return hmac.digest(secret, body, "sha256").hex()


def make_answer_proof_payload(authorization: str, status: int, answer: bytes) -> bytes:
    """Return what the proof of an answer vouches for: that it is the answer to this very request.

    An Authorization header is never the same twice: credentials are used up, and what a session's
    key signs has a growing number in it.
    """
    whole = b"%s\n%d\n" % (authorization.encode("latin-1", "replace"), status) + answer
    return b"hpctl1-answer:" + hashlib.sha256(whole).hexdigest().encode()


def compute_findings_digest(findings: Iterable[Finding]) -> str:
    """Return what names a list of findings, whatever its order: SHA-256 in hex.

    Over what a finding is, what it says and how it clears; not over counts, times and evidence,
    which grow with every repeat and of which no rule needs each value (see agent/send.py).
    """
    content = sorted(
        (*make_finding_identity_key(f), f.verdict.value, f.clears.value) for f in findings
    )
    return hashlib.sha256(_encoder.encode(content)).hexdigest()


def encode_agent_report(report: AgentReport, *, open_session: bool = False) -> bytes:
    """Return the body of one report. Cuts evidence short where the whole would exceed MAX_BODY, and
    then leaves out the last findings: an agent that says less is better than one that says nothing.

    Of gauges the finite ones go, the first MAX_GAUGES of them in order of name.
    """
    report = replace(report, gauges=_drop_nonfinite_gauge_values(report.gauges))
    for limit in (MAX_EVIDENCE, 512, 160, 40, 0):
        body = _encode_agent_message_envelope(
            "report", _truncate_finding_evidence(report, limit), open_session
        )
        if len(body) <= MAX_BODY:
            return body
    report = _truncate_finding_evidence(report, 0)
    while len(body) > MAX_BODY:
        report = replace(report, findings=report.findings[: len(report.findings) * 7 // 8])
        body = _encode_agent_message_envelope("report", report, open_session)
    return body


def _drop_nonfinite_gauge_values(gauges: Mapping[str, float]) -> dict[str, float]:
    """JSON has no infinity, and a report must not be refused for one number."""
    return dict(sorted((n, v) for n, v in gauges.items() if math.isfinite(v))[:MAX_GAUGES])


def encode_heartbeat(heartbeat: Heartbeat, *, open_session: bool = False) -> bytes:
    """Return the body of one heartbeat. Of gauges those that a report would carry."""
    heartbeat = msgspec.structs.replace(
        heartbeat, gauges=_drop_nonfinite_gauge_values(heartbeat.gauges)
    )
    return _encode_agent_message_envelope("heartbeat", heartbeat, open_session)


def _encode_agent_message_envelope(
    kind: str, content: AgentReport | Heartbeat, open_session: bool
) -> bytes:
    envelope: dict[str, Any] = {"v": VERSION, kind: content}
    if open_session:
        envelope["open_session"] = True
    return _encoder.encode(envelope)


def _truncate_finding_evidence(report: AgentReport, limit: int) -> AgentReport:
    if all(len(finding.evidence) <= limit for finding in report.findings):
        return report
    cut = tuple(replace(f, evidence=f.evidence[:limit]) for f in report.findings)
    return replace(report, findings=cut)


def decode_agent_report(body: bytes) -> AgentReport:
    """Return the report that a body holds. Raises MalformedReportError or one of its kinds."""
    content = decode_agent_message(body).content
    if not isinstance(content, AgentReport):
        raise InvalidReportError(
            "the head node expects an agent's report, but received a heartbeat"
        )
    return content


def decode_agent_message(body: bytes) -> AgentMessage:
    """Return what a body holds. Raises MalformedReportError or one of its kinds."""
    check_message_body_size(body, MAX_BODY)
    try:
        try:
            envelope = _envelope.decode(body)
        except msgspec.ValidationError:
            # Of another version nothing else can be expected to fit: that is what to say then.
            check_format_version(_version.decode(body).v)
            raise
        check_format_version(envelope.v)
    except UNREADABLE as error:
        raise make_message_decode_error(error, "report") from error
    if envelope.report is not None and envelope.heartbeat is None:
        return AgentMessage(_convert_wire_to_agent_report(envelope.report), envelope.open_session)
    if envelope.heartbeat is not None and envelope.report is None:
        return AgentMessage(envelope.heartbeat, envelope.open_session)
    raise InvalidReportError(
        "the agent's message is not valid: it must have either `report` or `heartbeat`"
    )


def encode_operator_request(verb: str, target: str, by: str, detail: str = "") -> bytes:
    """Return the body of an operator's request."""
    asked = {"v": VERSION, "verb": verb, "target": target, "by": by}
    # A daemon of an earlier version refuses a field that it does not know.
    return _encoder.encode({**asked, "detail": detail} if detail else asked)


def decode_operator_request(body: bytes) -> OperatorRequest:
    """Return the request that a body holds. Raises MalformedReportError or one of its kinds."""
    try:
        asked = _asked.decode(body)
    except UNREADABLE as error:
        raise make_message_decode_error(error, "request") from error
    check_format_version(asked.v)
    if not (asked.target + asked.by + asked.detail).isprintable():
        raise InvalidReportError(
            "the request to the daemon is not valid: a name in it has control characters"
        )
    return asked


def make_public_journal_copy_path(journal: Path) -> Path:
    """Return where the copy of a SQLite journal lies that every user of the machine may read."""
    return journal.parent / "public" / journal.name


def check_format_version(version: int) -> None:
    """Raises UnsupportedVersionError for any format but ours."""
    if version != VERSION:
        raise UnsupportedVersionError(
            f"the agent's report has format version {version}, but this head node reads version "
            f"{VERSION}",
            "Install the same hpctl release on the node and on the head node.",
        )


def check_message_body_size(body: bytes, most: int) -> None:
    """Raises ReportTooLargeError."""
    if len(body) > most:
        raise ReportTooLargeError(
            f"the agent's message is too long: it has {len(body)} bytes, but the head node reads "
            f"at most {most}"
        )


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder raises."""


def make_message_decode_error(error: Exception, what: str) -> MalformedReportError:
    """Return what it means that a body cannot be decoded."""
    if isinstance(error, msgspec.ValidationError):
        return InvalidReportError(f"the {what} is not in hpctl's format: {error}")
    return MalformedReportError(f"the {what} is not valid JSON: {error}")


def decode_head_node_answer(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    """Return what the head node answered with 200. Raises MalformedReportError."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise MalformedReportError(
            f"the agent does not understand the head node's answer: {error}"
        ) from error


def encode_report_ack(ack: ReportAck) -> bytes:
    """Return the body of an answer."""
    return _encoder.encode(ack)


def decode_report_ack(body: bytes) -> ReportAck:
    """Return what the head node answered with 200. Raises MalformedReportError."""
    return decode_head_node_answer(_ack, body)


def _convert_wire_to_agent_report(wire: _WireAgentReport) -> AgentReport:
    fields: dict[str, Any] = msgspec.structs.asdict(wire)
    fields["findings"] = tuple(_convert_wire_finding(n, f) for n, f in enumerate(wire.findings))
    for name in ("sent_at", "agent_start"):
        fields[name] = convert_to_utc(fields[name])
    for name, kind in (("node", NodeName), ("instance", InstanceId), ("boot", BootId)):
        fields[name] = kind(fields[name])
    return AgentReport(**fields)


def _convert_wire_finding(index: int, wire: _WireFinding) -> Finding:
    if wire.last < wire.first:
        raise InvalidReportError(
            "the agent's report is not valid: `last` is before `first` - at "
            f"`$.report.findings[{index}]`"
        )
    fields: dict[str, Any] = msgspec.structs.asdict(wire)
    fields["first"], fields["last"] = convert_to_utc(wire.first), convert_to_utc(wire.last)
    return Finding(**fields)
