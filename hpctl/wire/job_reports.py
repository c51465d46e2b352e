"""The bytes between a job's supervisor and the head node: JSON, versioned, bounded, strict.

`POST /v1/jobs` with one report, and `Authorization: MUNGE <credential>` over the body's digest as
for the agents' reports (`hpctl.wire.reports`). The shapes repeat core's JobReport and Trouble
with their limits; what is too long is cut by the sender, what is wrong is refused by the receiver.
"""

from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from hpctl.toolkit.bounds import convert_to_utc
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.job_recovery import JobReport, RequestedAction
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.trouble import EVIDENCE_CHARS, HangPlace, Trouble, TroubleKind
from hpctl.wire import reports as wire

PATH = "/v1/jobs"
MAX_BODY = 32 * 1024
"""Bytes of one report's body: the evidence, six bytes a character at worst, and the rest."""
MAX_WHY = 500
MAX_WORD = 200
MAX_EXCLUDE = 64
"""Nodes that one report may ask to leave."""
MAX_AFTER_S = 86400.0

_Node = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
_Why = Annotated[str, Meta(max_length=MAX_WHY)]
_Word = Annotated[str, Meta(max_length=MAX_WORD)]
_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Exit = Annotated[int, Meta(ge=-255, le=255)]
_S = TypeVar("_S", bound=Struct)


class _WireJobTrouble(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    kind: TroubleKind
    at: Annotated[datetime, Meta(tz=True)]
    why: _Why
    signature: _Word = ""
    node: _Node | None = None
    rank: _Count | None = None
    device: _Word = ""
    exit_code: _Exit | None = None
    evidence: Annotated[str, Meta(max_length=EVIDENCE_CHARS)] = ""
    step: _Count | None = None
    progress: _Count | None = None
    hang_place: HangPlace = HangPlace.UNKNOWN


class _WireJobReport(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    job: Annotated[int, Meta(ge=1, le=2**32)]
    restarts: Annotated[int, Meta(ge=0, le=2**32)]
    trouble: _WireJobTrouble | None = None
    action: RunAction = RunAction.NONE
    why: _Why = ""
    wish: RequestedAction = RequestedAction.NONE
    exclude: Annotated[tuple[_Node, ...], Meta(max_length=MAX_EXCLUDE)] = ()
    after_s: Annotated[float, Meta(ge=0, le=MAX_AFTER_S)] = 0.0
    progress: _Count | None = None


class _JobReportEnvelope(Struct, frozen=True, forbid_unknown_fields=True):
    v: int
    job_report: _WireJobReport


_decoder = msgspec.json.Decoder(_JobReportEnvelope)


class JobReportAck(Struct, frozen=True):
    """The head node's answer: written down, and whether it may act on the job at all.

    `acts` is false where the daemon only observes, is paused, or keeps out of the partition: a
    wish is then not granted, and a supervisor that wants a requeue must see to it itself.
    `run_policy`: the recovery policies of the cluster and of the job's partition, in that order,
    each with the keys that it sets; the job's own goes over them. `former`: why the run before the
    one that reports ended, empty for a first run and where that is not known.
    """

    job: int
    acts: bool
    why: str = ""
    run_policy: tuple[dict[str, Any], ...] = ()
    former: str = ""


_taken = msgspec.json.Decoder(JobReportAck)


def encode_job_report(report: JobReport) -> bytes:
    """Return the body of one report; texts that are too long are cut."""
    cut = replace(
        report,
        why=report.why[:MAX_WHY],
        exclude=tuple(report.exclude[:MAX_EXCLUDE]),
        after_s=min(max(report.after_s, 0.0), MAX_AFTER_S),
    )
    shaped = _convert_to_wire_struct(
        _WireJobReport, cut, trouble=_encode_job_trouble(report.trouble)
    )
    return msgspec.json.encode(_JobReportEnvelope(wire.VERSION, shaped))


def _convert_to_wire_struct(shape: type[_S], value: object, **changes: object) -> _S:
    """Return the shape with the fields of a value of core's, less these changes."""
    return shape(**{name: getattr(value, name) for name in shape.__struct_fields__} | changes)


def _encode_job_trouble(trouble: Trouble | None) -> _WireJobTrouble | None:
    if trouble is None:
        return None
    return _convert_to_wire_struct(
        _WireJobTrouble,
        trouble,
        why=trouble.why[:MAX_WHY],
        signature=trouble.signature[:MAX_WORD],
        device=trouble.device[:MAX_WORD],
        evidence=trouble.evidence[-EVIDENCE_CHARS:],
    )


def decode_job_report(body: bytes) -> JobReport:
    """Return the report that a body holds. Raises wire.MalformedReportError or one of its kinds."""
    wire.check_message_body_size(body, MAX_BODY)
    try:
        envelope = _decoder.decode(body)
    except wire.UNREADABLE as error:
        raise wire.make_message_decode_error(error, "job report") from error
    wire.check_format_version(envelope.v)
    report = envelope.job_report
    fields = msgspec.structs.asdict(report)
    fields["job"] = JobId(report.job)
    fields["exclude"] = tuple(NodeName(name) for name in report.exclude)
    fields["trouble"] = None if report.trouble is None else _decode_job_trouble(report.trouble)
    return JobReport(**fields)


def _decode_job_trouble(trouble: _WireJobTrouble) -> Trouble:
    fields = msgspec.structs.asdict(trouble)
    fields["at"] = convert_to_utc(trouble.at)
    fields["node"] = NodeName(trouble.node) if trouble.node else None
    return Trouble(**fields)


def encode_job_report_ack(taken: JobReportAck) -> bytes:
    """Return the body of the answer."""
    return msgspec.json.encode(taken)


def decode_job_report_ack(body: bytes) -> JobReportAck:
    """Return what the head node answered with 200. Raises wire.MalformedReportError."""
    return wire.decode_head_node_answer(_taken, body)
