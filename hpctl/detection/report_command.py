"""`hpctl agent report` and `verdict`: how scripts on a node report to its agent and read its
verdict.

Both are called from prologs and epilogs, where a failure drains the node: where no agent answers
they print that and exit 0, except with the strict option. The module imports as little as possible.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from hpctl.detection.outside import health_validation
from hpctl.detection.outside.ask import SOCKET, SOCKET_VARIABLE, send_agent_request
from hpctl.toolkit import output
from hpctl.toolkit.arguments import DurationType, ParsedArgumentType
from hpctl.toolkit.errors import HpctlError

if TYPE_CHECKING:
    from hpctl.detection.check import CheckObservation

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,55}")
_EVIDENCE_CHARS = 2048
_WORD_CHARS = 256
_READ_BYTES = 64 * 1024
FORMAT_NAMES = ("health-validation", "dcgm-health", "gcm", "nhc", "nvrx", "hyperpod")
"""`verdict_formats.FORMAT_NAMES`, which a start of every `hpctl agent report` does not import."""
_SAID_WITH_READ = ("code", "device", "detail", "evidence")


class _CheckNameParameter(ParsedArgumentType):
    """The name of a script's check: `nhc`, `scratch-space`."""

    name = "name"

    def read(self, value: Any) -> str:
        """Return the name on the wire, where dashes are dots as in every other check's."""
        text = str(value)
        if not _NAME.fullmatch(text):
            rule = "a check's name has small letters, digits, _ . and -, a letter first"
            raise ValueError(f"{text!r}: {rule}")
        return "report." + text.replace("-", ".")


_socket = click.option(
    "--socket",
    "socket",
    envvar=SOCKET_VARIABLE,
    default=SOCKET,
    show_default=True,
    help="The agent's socket.",
)
_strict = click.option(
    "--strict",
    is_flag=True,
    help="Exit 3 where no agent answers, and 1 where it takes no report. Not for prologs.",
)


@click.command(short_help="Tell this node's agent what a script has found.")
@click.option(
    "--check",
    required=True,
    type=_CheckNameParameter(),
    help="The check's name: nhc, scratch-space.",
)
@click.option("--code", default="", help="What is wrong, in one word or number: check_fs, 12.")
@click.option("--device", default="", help="Which part it is about: /scratch, 0000:c1:00.0.")
@click.option(
    "--verdict",
    type=click.Choice(["fail", "warn", "ok"]),
    default="fail",
    show_default=True,
    help="ok clears what was reported before: the code's and the device's, else all of the check.",
)
@click.option("--detail", default="", help="A few words for people.")
@click.option("--evidence", default="", help="The raw line or output that shows it.")
@click.option("--job", default="", help="The Slurm job that it hit.")
@click.option(
    "--clears",
    type=click.Choice(["gone", "boot", "operator"]),
    default="gone",
    show_default=True,
    help="What ends it, beside ok: its time (--for), a reboot, or only `hpctl undrain`.",
)
@click.option(
    "--for",
    "for_s",
    type=DurationType("1s", "7d"),
    help="With --clears gone: how long it counts unless it is reported again. Default: 10m.",
)
@click.option(
    "--read",
    "read",
    type=click.Choice(FORMAT_NAMES),
    help="Report what another tool's output on stdin says, in this format (docs/plugins.md).",
)
@click.option(
    "--exit-code",
    "exit_code",
    type=click.IntRange(0, 255),
    help="With --read: how that tool ended. 128 and more is a signal, as in a shell.",
)
@_socket
@_strict
def report(
    for_s: float | None,
    read: str | None,
    exit_code: int | None,
    socket: str,
    strict: bool,
    **found: str,
) -> None:
    """Tell this node's agent what a script has found.

    For NHC, prologs, epilogs and scripts of the site's own, as root. The head node shows what was
    reported, and acts on it only by a rule that the site has written for it (docs/plugins.md):
    report-NAME-CODE, or report-NAME for every code.

    With --read it takes another tool's output from stdin, and reports each finding in it; an output
    in which all is well clears what the check has reported. What cannot be read reports nothing.

    Exits 0 also where no agent runs, so that a prolog never fails because of it.
    """
    if for_s is not None and found["clears"] != "gone":
        raise click.UsageError(
            f"--for works only with --clears gone, not with --clears {found['clears']}"
        )
    if read is None:
        if exit_code is not None:
            raise click.UsageError("--exit-code works only with --read: add --read")
        _send_report_to_agent(found, for_s, socket, strict)
        return
    given = [name for name in _SAID_WITH_READ if found[name]]
    if given or found["verdict"] != "fail":
        raise click.UsageError(
            f"with --read, the {(*given, 'verdict')[0]} comes from stdin: remove it from the "
            "command line"
        )
    for one in _parse_stdin_observations(read, exit_code, strict):
        said = {"code": one.code, "device": one.device, "verdict": str(one.verdict)}
        text = {"detail": one.detail, "evidence": one.evidence}
        if not _send_report_to_agent({**found, **said, **text}, for_s, socket, strict):
            return


def _parse_stdin_observations(
    name: str, exit_code: int | None, strict: bool
) -> tuple[CheckObservation, ...]:
    """Return what to report of the output on stdin; one OK where all is well.

    `unknown` and counted findings are not reported: the agent takes none of them from scripts.
    """
    from hpctl.detection.check import CheckObservation, CheckResultUnknownError
    from hpctl.detection.outside.verdict_formats import parse_health_tool_verdict
    from hpctl.detection.outside.verdict_readers import HealthToolOutput
    from hpctl.vocabulary.model import DeviceVerdict

    raw = sys.stdin.buffer.read(_READ_BYTES + 1)
    # NHC's own exit codes for a run that a signal ended are above 128, too.
    ended_by_signal = exit_code is not None and exit_code > 128 and name != "nhc"
    status = 128 - exit_code if ended_by_signal and exit_code is not None else exit_code
    try:
        if len(raw) > _READ_BYTES:
            raise CheckResultUnknownError(f"prints more than {_READ_BYTES} bytes")
        text = raw.decode(errors="replace")
        found = parse_health_tool_verdict(name, HealthToolOutput(text, status, os.uname().nodename))
    except CheckResultUnknownError as error:
        if strict:
            raise HpctlError(
                f"the health check {name} was not reported to the agent: the tool {error}"
            ) from error
        warning = f"hpctl: warning: {name}: the tool {error}; nothing is reported"
        output.echo(warning, err=True)
        return ()
    reports = tuple(one for one in found if one.verdict in (DeviceVerdict.FAIL, DeviceVerdict.WARN))
    if reports or any(one.verdict is DeviceVerdict.UNKNOWN for one in found):
        return reports
    return (CheckObservation("", verdict=DeviceVerdict.OK),)


def _send_report_to_agent(
    found: Mapping[str, str], for_s: float | None, socket: str, strict: bool
) -> bool:
    """Send one report. Return whether the agent took it: where it did not, no other is sent."""
    most = {"evidence": _EVIDENCE_CHARS}
    texts = {name: text[: most.get(name, _WORD_CHARS)] for name, text in found.items()}
    request = {"op": "report", **texts, **({} if for_s is None else {"for_s": for_s})}
    answer = _request_agent_answer(socket, request, strict)
    if answer and answer.get("stays"):
        stays = f"{answer['stays']} finding(s) stay: only `hpctl undrain` on the head node"
        output.echo(f"hpctl: {stays} clears them", err=True)
    return answer is not None


@click.command(short_help="Print the agent's verdict on this node; probe nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (docs/cli-json.md).")
@click.option(
    "--format",
    "form",
    type=click.Choice(["health-validation"]),
    help="Print JSON in the form of NVIDIA Health Validation, and exit as it does.",
)
@click.option(
    "--exit-code",
    "counts",
    is_flag=True,
    help="Exit as NVIDIA Health Validation does: 0 PASS, INFO, WARNING; 1 CRITICAL, UNKNOWN;"
    " 2 no verdict.",
)
@_socket
@_strict
def verdict(as_json: bool, form: str | None, counts: bool, socket: str, strict: bool) -> None:
    """Print the agent's verdict on this node; probe nothing.

    For prologs and epilogs: nothing is probed. Exits 1 where the node is faulty, that is, about to
    be drained; 0 where it is not, where the agent cannot tell, and where no agent answers.
    """
    if strict and (form or counts):
        raise click.UsageError("--strict cannot be used with --format or --exit-code")
    if form and as_json:
        raise click.UsageError("--json and --format cannot be used together: give only one")
    answer = _request_agent_answer(socket, {"op": "verdict"}, strict)
    if answer is None:
        if form or counts:
            raise SystemExit(health_validation.NO_VERDICT)
        return
    judged = answer["verdict"]
    _print_node_verdict(judged, as_json, form)
    if form or counts:
        raise SystemExit(
            health_validation.get_validation_severity_exit_code(judged["overall_severity"])
        )
    if judged["condition"] == "faulty":
        raise SystemExit(1)
    if judged["condition"] == "unknown" and strict:
        raise SystemExit(3)


def _print_node_verdict(judged: Mapping[str, Any], as_json: bool, form: str | None) -> None:
    import json

    if form:
        output.echo(json.dumps(health_validation.make_health_validation_document(judged), indent=2))
    elif as_json:
        output.echo(json.dumps({"schema": "hpctl.verdict/1", **judged}, indent=2))
    else:
        why = f": {judged['why']}" if judged["why"] else ""
        output.echo(f"{judged['node']} is {judged['condition']}{why}")


def _request_agent_answer(
    socket: str, request: Mapping[str, object], strict: bool
) -> dict[str, Any] | None:
    """Return the agent's answer, or None after a warning; strict raises HpctlError instead."""

    try:
        return send_agent_request(socket, request)
    except HpctlError as error:
        if strict:
            raise
        hint = f" ({error.hint})" if error.hint else ""
        output.echo(f"hpctl: warning: {error}{hint}", err=True)
        return None
