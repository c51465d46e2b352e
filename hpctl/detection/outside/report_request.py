"""The requests that a script on the node sends to its agent."""

import re
from datetime import timedelta
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from hpctl.detection.outside.clean_text import sanitize_finding_code, sanitize_text_line
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict
from hpctl.wire import reports as wire

#
# Requests of scripts to the agent over its socket: one line of JSON, one line back.
#
#     {"op": "report", "check": "report.nhc", "code": "check_fs", "verdict": "fail", ...}
#     {"op": "verdict"}
#     {"op": "line"}                  answered with a line that is no JSON (node_verdict.py)
#
# What a script computes at run time (code, device, detail, evidence, job) is shortened and cleaned,
# and never refused: a report with an invalid character is better than none. What its author wrote
# (names and enums) is checked strictly.

MAX_REQUEST = 16 * 1024
"""Bytes of one request's line."""


MAX_WORD = 256


DEFAULT_FOR_S = 600.0


MAX_FOR_S = 7 * 86400.0


_NO_JOB = re.compile(r"[^0-9_+]+")


class MalformedAgentRequestError(HpctlError):
    """The error of a line that is not a request. The message names the place."""


class FindingReportRequest(
    Struct, frozen=True, forbid_unknown_fields=True, tag="report", tag_field="op"
):
    """One report. `for_s` counts from now, with only clears `gone`; None is DEFAULT_FOR_S.

    With verdict OK it clears: an empty `code`, `device` or `job` then means all.
    """

    check: Annotated[str, Meta(pattern=r"^report\.[a-z][a-z0-9_.]{0,55}\Z")]
    verdict: DeviceVerdict
    code: str = ""
    device: str = ""
    detail: str = ""
    evidence: str = ""
    job: str = ""
    clears: ClearCondition = ClearCondition.GONE
    for_s: Annotated[float, Meta(ge=1, le=MAX_FOR_S)] | None = None

    @property
    def lasts(self) -> timedelta | None:
        """Return how long it counts unless it is reported again; None until it is cleared."""
        if self.clears is not ClearCondition.GONE:
            return None
        return timedelta(seconds=DEFAULT_FOR_S if self.for_s is None else self.for_s)


class VerdictRequest(
    Struct, frozen=True, forbid_unknown_fields=True, tag="verdict", tag_field="op"
):
    """A request for the agent's verdict on this node."""


class VerdictLineRequest(
    Struct, frozen=True, forbid_unknown_fields=True, tag="line", tag_field="op"
):
    """What does the agent think of this node, in one line for a program that reads no JSON?"""


Request = FindingReportRequest | VerdictRequest | VerdictLineRequest


_decoder = msgspec.json.Decoder(Request)


def decode_agent_request(line: bytes) -> Request:
    """Return the request in a line. Raises MalformedAgentRequestError."""
    try:
        request: Request = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAgentRequestError(
            f"the agent does not understand the health check's report: {error}"
        ) from error
    if isinstance(request, VerdictRequest | VerdictLineRequest):
        return request
    if request.verdict in (DeviceVerdict.UNKNOWN, DeviceVerdict.NOTE):
        raise MalformedAgentRequestError(
            "the report has no valid verdict: write ok, warn or fail; a check that found out "
            "nothing sends no report"
        )
    if request.for_s is not None and request.clears is not ClearCondition.GONE:
        raise MalformedAgentRequestError(
            f"the report has for_s and clears: {request.clears.value}: for_s is valid only with "
            "clears: gone; leave for_s out, or report clears: gone"
        )
    return msgspec.structs.replace(
        request,
        code=sanitize_finding_code(request.code),
        device=sanitize_text_line(request.device, MAX_WORD),
        detail=sanitize_text_line(request.detail, MAX_WORD),
        evidence=sanitize_text_line(request.evidence, wire.MAX_EVIDENCE),
        job=_NO_JOB.sub("", request.job)[:32],
    )
