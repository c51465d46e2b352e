"""The functions that find the verdicts in other tools' output, one for each form. Pure.

The output is hostile: a tool may be replaced, print what a device or a user wrote, or break off. An
output that is not in its form raises CheckResultUnknownError, which costs this one reading.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import Struct

from hpctl.detection.check import CheckObservation, CheckResultUnknownError
from hpctl.detection.outside.clean_text import sanitize_finding_code, sanitize_text_line
from hpctl.vocabulary.model import DeviceVerdict

Levels = Mapping[str, DeviceVerdict]
"""The verdict of each of a tool's words. Any other word is `unknown`."""


_DETAIL_CHARS = 256
_EVIDENCE_CHARS = 2048
_RANKS: Final = (
    DeviceVerdict.OK,
    DeviceVerdict.NOTE,
    DeviceVerdict.WARN,
    DeviceVerdict.UNKNOWN,
    DeviceVerdict.FAIL,
)


class HealthToolOutput(Struct, frozen=True):
    """What a tool printed, and how it ended.

    `status` is its exit status, negative for a signal, and None where the caller does not know it.
    `host` is the short host name of this node.
    """

    text: str
    status: int | None = None
    host: str = ""


def rank_verdict_severity(verdict: DeviceVerdict) -> int:
    """Return how much a verdict says against a node: OK least, FAIL most."""
    return _RANKS.index(verdict)


def parse_health_validation_verdict(
    output: HealthToolOutput, levels: Levels
) -> list[CheckObservation]:
    """Read NVIDIA Health Validation's verdict: `overall_severity`, and the affected components.

    NVIDIA documents the fields of a component and not under which key they are, so every list of
    objects that have a `max_severity` counts. Exit status 2 is a run without a verdict.
    """
    if output.status not in (None, 0, 1):
        raise CheckResultUnknownError(
            f"reached no verdict: it ended with exit code {output.status}"
        )
    answer = _parse_json_object(output.text)
    severity = answer.get("overall_severity")
    if not isinstance(severity, str):
        raise CheckResultUnknownError("prints JSON without an overall_severity")
    overall = levels.get(severity, DeviceVerdict.UNKNOWN)
    if output.status == 1 and rank_verdict_severity(overall) < rank_verdict_severity(
        DeviceVerdict.UNKNOWN
    ):
        raise CheckResultUnknownError(f"contradicts itself: {severity} with exit code 1")
    found = [
        _make_validation_component_observation(one, levels)
        for one in _list_affected_validation_components(answer)
    ]
    return _add_overall_verdict_observation(found, overall, f"overall_severity is {severity}")


def parse_dcgm_health_output(output: HealthToolOutput, levels: Levels) -> list[CheckObservation]:
    """Read `dcgmi health -c -j`: the overall health, and each system of each GPU that has errors.

    Where the host engine does not answer, or no watch is set, dcgmi prints a line that is no JSON.
    """
    if output.status not in (None, 0):
        raise CheckResultUnknownError(
            f"dcgmi ended with exit code {output.status}: {_shorten_text(output.text)}"
        )
    body = _get_nested_json_object(_parse_json_object(output.text), "body")
    overall = _get_nested_json_object(body, "Overall Health").get("value")
    if not isinstance(overall, str):
        raise CheckResultUnknownError("prints JSON without an Overall Health")
    found = []
    for group, entities in body.items():
        for entity, parts in _list_dcgm_output_children(entities):
            for system, health in _list_dcgm_output_children(
                _get_dcgm_output_child(parts, "Errors")
            ):
                found.append(
                    _make_dcgm_health_observation(f"{group} {entity}", system, health, levels)
                )
    verdict = levels.get(overall, DeviceVerdict.UNKNOWN)
    return _add_overall_verdict_observation(found, verdict, f"Overall Health is {overall}")


_GCM_LINE = re.compile(r"^(OK|WARNING|CRITICAL|UNKNOWN) - ([^.|\n]{1,200})(?:\.[ \t]+(.*))?$", re.M)
_GCM_CRASHED = "check did not exit normally"
_NAGIOS: Final = ("OK", "WARNING", "CRITICAL", "UNKNOWN")


def parse_gcm_check_results(output: HealthToolOutput, levels: Levels) -> list[CheckObservation]:
    """Read the lines of one or more of gcm's checks, and the exit status, which is Nagios'.

    As a prolog or an epilog a check prints nothing, and only the exit status tells. A check that
    crashed prints WARNING, and is `unknown` here.
    """
    found = []
    for word, name, text in _GCM_LINE.findall(output.text):
        verdict = DeviceVerdict.UNKNOWN if name == _GCM_CRASHED else levels[word]
        found.append(_make_tool_observation(sanitize_finding_code(name), "", verdict, name, text))
    if output.status is None:
        if not found:
            raise CheckResultUnknownError(
                f"prints no line of a check but {_shorten_text(output.text)!r}"
            )
        return found
    if output.status >= len(_NAGIOS):
        raise CheckResultUnknownError(
            f"ended with exit code {output.status}, which no check of gcm has"
        )
    word = _NAGIOS[output.status]
    return _add_overall_verdict_observation(
        found, levels[word], f"exit code {output.status} is {word}"
    )


_NHC_LINE = re.compile(r"^ERROR:?[ \t]+(?:[\w.-]+:[ \t]+)?Health check failed:[ \t]+(.+)$", re.M)
_NHC_NAME = re.compile(r"(\w+):[ \t]+(.+)")
_NHC_CUT_OFF = ("Script timed out", "Terminated by signal", "Watchdog timer unable")
_NHC_NOT_RUN: Final = frozenset({8, 9, 10, 129, 130, 142, 143})
"""Exit codes of wrong options, and of a run that a signal or the watchdog ended."""


def parse_nhc_failures(output: HealthToolOutput, levels: Levels) -> list[CheckObservation]:
    """Read NHC's lines `Health check failed`, and its exit status, which is 0 where all passed.

    A run that NHC's watchdog ended is `unknown`: which check hung is known, and not what it found.
    """
    found = []
    for text in _NHC_LINE.findall(output.text):
        named = _NHC_NAME.fullmatch(text)
        if text.startswith(_NHC_CUT_OFF):
            verdict, code = levels["timed out"], "timed_out"
        else:
            verdict, code = levels["failed"], sanitize_finding_code(named[1]) if named else ""
        found.append(_make_tool_observation(code, "", verdict, f"NHC's check {code}".strip(), text))
    if found or output.status == 0:
        return found
    if output.status is None and output.text.strip():
        raise CheckResultUnknownError(f"prints no line of NHC's but {_shorten_text(output.text)!r}")
    if output.status in _NHC_NOT_RUN:
        raise CheckResultUnknownError(
            f"did not run its checks: it ended with exit code {output.status}"
        )
    if output.status is None:
        return []
    return [_make_tool_observation("", "", levels["failed"], f"exit code {output.status}")]


def parse_nvrx_health_result(output: HealthToolOutput, levels: Levels) -> list[CheckObservation]:
    """Read the result of a node health service of NVRx: `fail_count` and `failed_checks`.

    The whole answer of the service is read as well: `success`, `output`, `error`. NVRx calls a node
    unhealthy where the output cannot be read; here that is a reading that failed.
    """
    answer = _parse_json_object(output.text)
    passed = output.status in (None, 0)
    if "fail_count" not in answer and isinstance(answer.get("output"), str):
        if answer.get("error"):
            raise CheckResultUnknownError(
                f"could not run: {sanitize_text_line(str(answer['error']), 120)}"
            )
        passed = answer.get("success") is True
        answer = _parse_json_object(answer["output"])
    count = answer.get("fail_count")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise CheckResultUnknownError("prints JSON without a fail_count")
    if count == 0:
        if not passed:
            raise CheckResultUnknownError(
                "contradicts itself: fail_count is 0, and it did not succeed"
            )
        return []
    names = answer.get("failed_checks")
    named = [one for one in names if isinstance(one, str)] if isinstance(names, list) else []
    verdict, evidence = levels["failed_checks"], f"fail_count is {count}"
    codes = [sanitize_finding_code(name) for name in named or [""]]
    return [
        _make_tool_observation(code, "", verdict, "its check failed", evidence) for code in codes
    ]


_RESULT = re.compile(r"^HEALTH_CHECK_RESULT:([^:\n]+):([^:\n]*):([^:\n]*)(?::(.*))?$", re.M)
_REMEDIES: Final = frozenset({"none", "reboot", "replace"})


def parse_hyperpod_health_result(
    output: HealthToolOutput, levels: Levels
) -> list[CheckObservation]:
    """Read the line `HEALTH_CHECK_RESULT:<host>:<status>:<remedy>:<reason>` of this host.

    A line about another host is passed over: no node's script accuses another node.
    """
    found = []
    for host, status, remedy, reason in _RESULT.findall(output.text):
        if host.strip().partition(".")[0].lower() != output.host.partition(".")[0].lower():
            continue
        remedy = remedy.strip()
        known = status in levels and remedy in _REMEDIES
        if not known or (status == "Passed" and remedy != "none"):
            said = _shorten_text(f"{status}:{remedy}")
            raise CheckResultUnknownError(
                f"prints a HEALTH_CHECK_RESULT of no known form: {said!r}"
            )
        code = status.lower() if remedy == "none" else remedy
        found.append(
            _make_tool_observation(code, "", levels[status], f"{status}, {remedy}", reason)
        )
    if not found:
        raise CheckResultUnknownError(f"prints no HEALTH_CHECK_RESULT of the host {output.host}")
    return found


def _parse_json_object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text.encode(errors="replace"), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        start = _shorten_text(text)
        raise CheckResultUnknownError(
            f"prints no JSON object but {start!r}" if start else "prints nothing"
        ) from error


def _get_nested_json_object(holder: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = holder.get(key)
    if not isinstance(value, dict):
        raise CheckResultUnknownError(f"prints JSON without a {key}")
    return value


def _get_dcgm_output_child(parts: object, name: str) -> object:
    return dict(_list_dcgm_output_children(parts)).get(name)


def _list_dcgm_output_children(parts: object) -> Iterable[tuple[str, Any]]:
    """Return the children of a part of dcgmi's output, by name; none of what has no children."""
    children = parts.get("children") if isinstance(parts, dict) else None
    return children.items() if isinstance(children, dict) else ()


def _make_dcgm_health_observation(
    device: str, system: str, health: object, levels: Levels
) -> CheckObservation:
    value = health.get("value") if isinstance(health, dict) else None
    lines = health.get("overflow") if isinstance(health, dict) else None
    texts = [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else []
    verdict = (
        levels.get(value, DeviceVerdict.UNKNOWN)
        if isinstance(value, str)
        else DeviceVerdict.UNKNOWN
    )
    code = sanitize_finding_code(system.removesuffix(" system").lower())
    return _make_tool_observation(code, device, verdict, f"{system}: {value}", " ".join(texts))


def _list_affected_validation_components(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    lists = [value for value in answer.values() if isinstance(value, list)]
    items = chain.from_iterable(lists)
    return [item for item in items if isinstance(item, dict) and "max_severity" in item]


def _make_validation_component_observation(
    component: Mapping[str, Any], levels: Levels
) -> CheckObservation:
    severity, category = component.get("max_severity"), component.get("category")
    verdict = levels.get(severity, DeviceVerdict.UNKNOWN) if isinstance(severity, str) else None
    code = sanitize_finding_code(category) if isinstance(category, str) else ""
    checks = _join_list_items(component.get("check_ids"))
    entities = _join_list_items(component.get("entities"))
    return _make_tool_observation(
        code or "component", "", verdict or DeviceVerdict.UNKNOWN, checks, entities
    )


def _join_list_items(words: object) -> str:
    return ", ".join(map(str, words)) if isinstance(words, list) else ""


def _add_overall_verdict_observation(
    found: Sequence[CheckObservation], overall: DeviceVerdict, detail: str
) -> list[CheckObservation]:
    """Return the findings, and one more where the tool's verdict is worse than all of them."""
    worst = max((rank_verdict_severity(one.verdict) for one in found), default=0)
    if rank_verdict_severity(overall) <= worst:
        return list(found)
    return [*found, _make_tool_observation("overall", "", overall, detail)]


def _make_tool_observation(
    code: str, device: str, verdict: DeviceVerdict, detail: str, evidence: str = ""
) -> CheckObservation:
    return CheckObservation(
        code=code or "failed",
        device=sanitize_text_line(device, _DETAIL_CHARS),
        verdict=verdict,
        detail=sanitize_text_line(detail, _DETAIL_CHARS),
        evidence=sanitize_text_line(evidence, _EVIDENCE_CHARS),
    )


def _shorten_text(text: str) -> str:
    """Return how a text begins, for a message."""
    return sanitize_text_line(text[:200], 60)
