"""`hpctl agent report` and `verdict`: how scripts on a node report to its agent and read its
verdict.

Both are called from prologs and epilogs, where a failure drains the node: where no agent answers
they print that and exit 0, except with the strict option. The module imports as little as possible.
"""

import re
from collections.abc import Mapping
from typing import Any

import click

from hpctl.detection.outside.ask import SOCKET, SOCKET_VARIABLE, ask_agent
from hpctl.toolkit import output
from hpctl.toolkit.arguments import DurationType, ParsedArgument
from hpctl.toolkit.errors import HpctlError

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,55}")
_EVIDENCE_CHARS = 2048
_WORD_CHARS = 256


class _Name(ParsedArgument):
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
@click.option("--check", required=True, type=_Name(), help="The check's name: nhc, scratch-space.")
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
@_socket
@_strict
def report(for_s: float | None, socket: str, strict: bool, **found: str) -> None:
    """Tell this node's agent what a script has found.

    For NHC, prologs, epilogs and scripts of the site's own, as root. The head node shows what was
    reported, and acts on it only by a rule that the site has written for it (docs/plugins.md):
    report-NAME-CODE, or report-NAME for every code.

    Exits 0 also where no agent runs, so that a prolog never fails because of it.
    """
    if for_s is not None and found["clears"] != "gone":
        raise click.UsageError(f"--for goes with --clears gone, not with {found['clears']}")
    most = {"evidence": _EVIDENCE_CHARS}
    texts = {name: text[: most.get(name, _WORD_CHARS)] for name, text in found.items()}
    request = {"op": "report", **texts, **({} if for_s is None else {"for_s": for_s})}
    answer = _ask_agent(socket, request, strict)
    if answer and answer.get("stays"):
        stays = f"{answer['stays']} finding(s) stay: only `hpctl undrain` on the head node"
        output.echo(f"hpctl: {stays} clears them", err=True)


@click.command(short_help="Print the agent's verdict on this node; probe nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (docs/cli-json.md).")
@_socket
@_strict
def verdict(as_json: bool, socket: str, strict: bool) -> None:
    """Print the agent's verdict on this node; probe nothing.

    For prologs and epilogs: nothing is probed. Exits 1 where the node is faulty, that is, about to
    be drained; 0 where it is not, where the agent cannot tell, and where no agent answers.
    """
    answer = _ask_agent(socket, {"op": "verdict"}, strict)
    if answer is None:
        return
    judged = answer["verdict"]
    if as_json:
        import json

        output.echo(json.dumps({"schema": "hpctl.verdict/1", **judged}, indent=2))
    else:
        why = f": {judged['why']}" if judged["why"] else ""
        output.echo(f"{judged['node']} is {judged['condition']}{why}")
    if judged["condition"] == "faulty":
        raise SystemExit(1)
    if judged["condition"] == "unknown" and strict:
        raise SystemExit(3)


def _ask_agent(socket: str, request: Mapping[str, object], strict: bool) -> dict[str, Any] | None:
    """Return the agent's answer, or None after a warning; strict raises HpctlError instead."""

    try:
        return ask_agent(socket, request)
    except HpctlError as error:
        if strict:
            raise
        hint = f" ({error.hint})" if error.hint else ""
        output.echo(f"hpctl: warning: {error}{hint}", err=True)
        return None
