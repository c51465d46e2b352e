"""The output of a plugin: its findings, and its description, as JSON."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from hpctl.detection.check import CheckObservation, CheckResultUnknownError
from hpctl.detection.outside.verdict_formats import FormatName
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict
from hpctl.wire import reports as wire

#
# The JSON that a plugin prints: its description with `--describe`, its findings without.

MAX_FINDINGS = 64


MAX_DETAIL = 256


WEEK_S = 7 * 86400.0


_FIX = 'print {"findings": []} or findings as docs/plugins.md says'


_Seconds = Annotated[float, Meta(ge=1, le=WEEK_S)]


_Word = Annotated[str, Meta(max_length=256)]


class _PluginFinding(Struct, frozen=True, forbid_unknown_fields=True):
    code: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:+-]{0,64}\Z")] = ""
    verdict: DeviceVerdict = DeviceVerdict.FAIL
    device: _Word = ""
    detail: _Word = ""
    evidence: Annotated[str, Meta(max_length=wire.MAX_EVIDENCE)] = ""
    job: Annotated[str, Meta(pattern=r"^[0-9_+]{0,32}\Z")] = ""
    clears: ClearCondition | None = None
    gone_s: _Seconds | None = None


class _PluginFindingsDocument(Struct, frozen=True, forbid_unknown_fields=True):
    findings: Annotated[tuple[_PluginFinding, ...], Meta(max_length=MAX_FINDINGS)]


class PluginDescription(Struct, frozen=True, forbid_unknown_fields=True):
    """A plugin's description; each part may be left out. Times in seconds.

    `seen` is N of M: reported when N of the last M runs saw it. `timeout_s` is its deadline.
    `format` names the form of another tool that it prints in, hpctl's own where it is left out.
    """

    what: _Word = ""
    every_s: Annotated[float, Meta(ge=5, le=WEEK_S)] = 60.0
    timeout_s: Annotated[float, Meta(ge=0.1, le=20)] = 10.0
    seen: tuple[Annotated[int, Meta(ge=1, le=20)], Annotated[int, Meta(ge=1, le=20)]] = (1, 1)
    clears: ClearCondition = ClearCondition.GONE
    gone_s: _Seconds | None = None
    grace_s: Annotated[float, Meta(ge=0, le=WEEK_S)] = 0.0
    format: FormatName | None = None


_findings = msgspec.json.Decoder(_PluginFindingsDocument)


_description = msgspec.json.Decoder(PluginDescription)


def parse_plugin_findings(output: bytes) -> tuple[CheckObservation, ...]:
    """Parse the output of a run. Raises CheckResultUnknownError with the place and a hint."""
    try:
        found = _findings.decode(output)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CheckResultUnknownError(
            f"{_format_plugin_decode_error(output, error)}; {_FIX}"
        ) from error
    return tuple(
        CheckObservation(
            f.code, f.device, f.verdict, f.detail, f.evidence, f.job, f.clears, f.gone_s
        )
        for f in found.findings
    )


def parse_plugin_description(output: bytes) -> PluginDescription:
    """Parse the output of `--describe`. Raises CheckResultUnknownError.

    A plugin that prints nothing, or its findings as usual, does not support `--describe`: the
    defaults apply.
    """
    if not output.strip():
        return PluginDescription()
    try:
        description = _description.decode(output)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        try:
            _findings.decode(output)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise CheckResultUnknownError(
                f"--describe: {_format_plugin_decode_error(output, error)}"
            ) from error
        return PluginDescription()
    if description.seen[0] > description.seen[1]:
        raise CheckResultUnknownError("--describe: seen is N of M with N up to M - at `$.seen`")
    return description


def _format_plugin_decode_error(output: bytes, error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        return f"its JSON is not as it must be: {error}"
    start = output[:40].decode(errors="replace").strip()
    return f"prints no JSON but {start!r}" if start else "prints nothing"
