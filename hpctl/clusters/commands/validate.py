"""`hpctl cluster validate`: everything that can be known of a file before it costs money."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain, groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from hpctl.engine.aws_account import make_aws_client_for_command
from hpctl.toolkit import output
from hpctl.toolkit.arguments import ExistingPathType, aws_options
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.output import ExitCode
from hpctl.toolkit.tables import (
    DIM,
    assemble_styled_text,
    color_state_word,
    indent_block,
    join_styled_texts,
    style_text,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from hpctl.clusters.spec import ClusterSpec, ClusterSpecError
    from hpctl.clusters.validate import FindingWithCheck
    from hpctl.vocabulary.ports import AwsClientFactory


DEFAULT_FILE = "cluster.yaml"
DEFAULT_SCRIPTS = "lifecycle_scripts"
FAMILIES = (
    "spec",
    "scripts",
    "cluster",
    "network",
    "security-groups",
    "capacity",
    "storage",
    "s3",
    "iam",
    "quotas",
)
_PROBLEM = re.compile(r"(?s)(\S+?)(?: \(line (\d+)\))?: (.*)")


class SpecFindingView(Struct, frozen=True):
    """What one check says of one place."""

    family: str
    check: str
    level: str
    place: str
    line: int | None
    what: str
    fix: str


class SpecValidationView(Struct, frozen=True):
    """What `hpctl cluster validate` shows. `partial`: parts of the file cannot be read, and what is
    in order is not listed.
    """

    file: str
    cluster: str
    offline: bool
    counts: dict[str, int]
    verdicts: tuple[SpecFindingView, ...]
    partial: bool = False


@click.command()
@click.argument(
    "file",
    metavar="[FILE]",
    default=DEFAULT_FILE,
    type=ExistingPathType(
        exists=True, dir_okay=False, hint="`hpctl cluster init` writes a first one"
    ),
)
@click.option("--offline", is_flag=True, help="Only what needs no credentials.")
@click.option(
    "--scripts",
    metavar="DIR",
    type=ExistingPathType(exists=True, file_okay=False),
    help="The lifecycle scripts on this machine; lifecycle_scripts/ where there is one.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="FAMILY",
    type=click.Choice(FAMILIES),
    help=f"Only these checks: {', '.join(FAMILIES)}. Repeatable.",
)
@click.option("--strict", is_flag=True, help="A warning is a problem too.")
@click.option("--verbose", "-v", is_flag=True, help="Show what is in order as well.")
@output.json_option
@aws_options
def validate(
    file: str,
    offline: bool,
    scripts: str | None,
    only: tuple[str, ...],
    strict: bool,
    verbose: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Check a cluster's file before it costs money: every problem at once, with its fix.

    FILE is cluster.yaml where it is not named. Nothing is changed. Exit code: 0 fine, 1 a check
    failed (with --strict: or warns), 2 usage, 3 a check cannot tell because a call failed.
    """
    from hpctl.clusters.spec import ClusterSpecError, read_cluster_spec

    try:
        spec = read_cluster_spec(file)
    except ClusterSpecError as error:
        view = _make_unreadable_spec_view(file, error, offline)
        if error.rest is not None:
            try:
                aws = None if offline else make_aws_client_for_command(**where)
                view = _merge_spec_problem_views(
                    view, _validate_spec_file(file, error.rest, aws, scripts, only), error
                )
            except HpctlError as why:
                # The file's own problems are known whatever AWS says.
                output.echo(f"hpctl: nothing else was checked: {why}", err=True)
    else:
        aws = None if offline else make_aws_client_for_command(**where)
        view = _validate_spec_file(file, spec, aws, scripts, only)
    # By hand: verdicts that follow one another share a reason and a fix.
    output.show_view(
        "cluster-validate", view, as_json, lambda out, v: draw_spec_findings(out, v, verbose)
    )
    output.exit_with_code(choose_spec_validation_exit_code(view, strict))


def validate_spec_or_exit(file: str, spec: ClusterSpec, aws: AwsClientFactory) -> None:
    """What `cluster create` and `update` do first: problems go to standard error; a FAIL ends it.

    Raises HpctlError where a check fails. Warnings and unknown results are only printed.
    """

    view = _validate_spec_file(file, spec, aws, None, ())
    if view.counts["OK"] < len(view.verdicts):
        output.draw_value_on_stderr(lambda out, v: draw_spec_findings(out, v, verbose=False), view)
    failed = view.counts["FAIL"]
    if failed:
        checks = "check" if failed == 1 else "checks"
        raise HpctlError(
            f"{failed} {checks} of the cluster file {file} failed, so nothing was created or "
            "changed",
            "fix the file, or use --no-validate to continue without the checks",
        )


def choose_spec_validation_exit_code(view: SpecValidationView, strict: bool) -> ExitCode:
    """Return the exit code: that of a failed check outweighs that of one that cannot tell."""
    if view.counts["FAIL"] or (strict and view.counts["WARN"]):
        return ExitCode.PROBLEM
    return ExitCode.CANNOT_TELL if view.counts["UNKNOWN"] else ExitCode.FINE


def make_spec_finding_views(
    verdicts: Sequence[FindingWithCheck], text: str
) -> tuple[SpecFindingView, ...]:
    """Verdicts with their places in the file whose text this is."""
    from hpctl.clusters.validate.wanted import SpecLineFinder, format_spec_key_path

    lines = SpecLineFinder(text)
    return tuple(
        SpecFindingView(
            v.family,
            v.check,
            v.level,
            format_spec_key_path(v.place),
            lines.of(v.place),
            v.what,
            v.fix,
        )
        for v in verdicts
    )


def _validate_spec_file(
    file: str,
    spec: ClusterSpec,
    aws: AwsClientFactory | None,
    scripts: str | None,
    only: tuple[str, ...],
) -> SpecValidationView:
    from hpctl.clusters.service_model import load_sagemaker_service_model
    from hpctl.clusters.validate import validate_spec as checks

    folder = scripts or (DEFAULT_SCRIPTS if Path(DEFAULT_SCRIPTS).is_dir() else None)
    # One line on a terminal that says what is awaited; nothing anywhere else.
    with output.make_console(err=True).status("asking AWS ...") as status:
        verdicts = checks(
            aws,
            spec,
            model=load_sagemaker_service_model(),
            directory=Path(folder) if folder else None,
            only=only,
            report=lambda part, done, of: status.update(f"asking AWS: {done} of {of} ({part})"),
        )
    views = make_spec_finding_views(verdicts, Path(file).read_text())
    return SpecValidationView(file, spec.name, aws is None, _count_findings_by_result(views), views)


def _make_unreadable_spec_view(
    file: str, error: ClusterSpecError, offline: bool
) -> SpecValidationView:
    """Return the problems of a file that cannot be read whole."""
    views = tuple(_make_schema_problem_view(text, error.hint) for text in error.problems)
    return SpecValidationView(file, "", offline, _count_findings_by_result(views), views)


RESTS_ON = {
    "vpc": {"spec", "network", "security-groups", "capacity", "storage", "s3"},
    "slurm_config": {"spec", "scripts", "cluster"},
    "instance_groups": {"spec"},
}
"""Families that judge groups by these keys of the whole cluster: without them they say nothing."""


def _merge_spec_problem_views(
    wrong: SpecValidationView, rest: SpecValidationView, error: ClusterSpecError
) -> SpecValidationView:
    """Return the file's problems, and those of the rest that do not come of what could not be
    read."""
    assert error.rest is not None
    places = [".".join(map(str, place)) for place in error.unread]
    whole_keys = [str(place[0]) for place in error.unread if len(place) < 3]
    blind = set(chain.from_iterable(RESTS_ON.get(key, ()) for key in whole_keys))
    more = tuple(
        v
        for v in rest.verdicts
        if v.level != "OK"
        and v.family not in blind
        and not _overlaps_unread_spec_path(v.place, places)
    )
    verdicts = (*wrong.verdicts, *more)
    known = not any(place[:1] == ("name",) for place in error.unread)
    return SpecValidationView(
        wrong.file,
        error.rest.name * known,
        wrong.offline,
        _count_findings_by_result(verdicts),
        verdicts,
        partial=True,
    )


def _overlaps_unread_spec_path(place: str, unread: Sequence[str]) -> bool:
    """Return whether a place is one of these, is in one of them, or holds one."""
    return any(
        _is_spec_path_within(place, other) or _is_spec_path_within(other, place) for other in unread
    )


def _is_spec_path_within(place: str, other: str) -> bool:
    """Return whether a place is another or in it."""
    return f"{place}.".startswith(f"{other}.")


def _make_schema_problem_view(text: str, fix: str) -> SpecFindingView:
    found = _PROBLEM.fullmatch(text)
    place, line, what = found.groups() if found else ("", None, text)
    return SpecFindingView("spec", "schema", "FAIL", place, int(line) if line else None, what, fix)


def _count_findings_by_result(views: Sequence[SpecFindingView]) -> dict[str, int]:
    counted = Counter(view.level for view in views)
    return {level: counted[level] for level in ("OK", "UNKNOWN", "WARN", "FAIL")}


_COLOURS = {"OK": "ok", "UNKNOWN": "unknown", "WARN": "warn", "FAIL": "fail"}
_SHOWN = {"OK": "ok", "UNKNOWN": "CANNOT TELL", "WARN": "WARN", "FAIL": "FAIL"}


def draw_spec_findings(out: Console, view: SpecValidationView, verbose: bool) -> None:
    """A paragraph for each family that has something to say, then the sum."""
    reasons: set[tuple[str, str]] = set()
    for family, group in groupby(view.verdicts, key=lambda v: v.family):
        found = list(group)
        worth = found if verbose else [v for v in found if v.level != "OK"]
        out.print(
            assemble_styled_text(
                (family, "bold"), "  ", _render_validation_totals(Counter(v.level for v in found))
            )
        )
        for verdict, after in zip_longest(worth, worth[1:]):
            # One fix for several in a row is printed below the last of them.
            fixed = after is None or after.fix != verdict.fix
            _draw_spec_finding(out, verdict, reasons, fixed=fixed)
    if view.verdicts:
        out.print()
    name = f"{view.file} ({view.cluster})" if view.cluster else view.file
    out.print(
        assemble_styled_text(
            f"{name}: ", _render_validation_totals(Counter(view.counts)) or "nothing was checked"
        )
    )
    if view.partial:
        out.print(style_text("The rest was checked as far as the file can be read.", DIM))
    elif not view.cluster:
        out.print(style_text("Everything else is checked once the file can be read.", DIM))
    elif view.offline:
        out.print(style_text("Only what needs no credentials was checked (--offline).", DIM))


def _draw_spec_finding(
    out: Console, verdict: SpecFindingView, reasons: set[tuple[str, str]], *, fixed: bool
) -> None:
    """`reasons`: why earlier checks have no result; each is printed once."""
    head = assemble_styled_text(
        color_state_word(_COLOURS[verdict.level], _SHOWN[verdict.level]), f"  {verdict.check}"
    )
    if verdict.place:
        head.append(f"  {verdict.place}")
    if verdict.line:
        head.append(f" (line {verdict.line})")
    out.print(indent_block(head))
    reason = (verdict.what.rpartition(": ")[2], verdict.fix)
    if verdict.level == "UNKNOWN" and reason in reasons:
        out.print(indent_block(style_text("for the same reason as above", DIM), 6))
        return
    reasons |= {reason} if verdict.level == "UNKNOWN" else set()
    out.print(indent_block(verdict.what, 6))
    shown = fixed or verdict.level == "UNKNOWN"
    if shown and verdict.fix and verdict.level != "OK":
        out.print(indent_block(style_text(f"fix: {verdict.fix}", DIM), 6))


def _render_validation_totals(counts: Counter[str]) -> Text:
    parts = [
        assemble_styled_text(f"{counts[level]} ", color_state_word(_COLOURS[level], _SHOWN[level]))
        for level in ("FAIL", "UNKNOWN", "WARN", "OK")
        if counts[level]
    ]
    return join_styled_texts(", ", parts)
