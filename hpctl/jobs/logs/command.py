"""`hpctl policy test-logs`: what log rules would have fired on a job's log, and when."""

from __future__ import annotations

from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec import Struct

from hpctl.jobs.arguments import complete_log_rule_preset_names
from hpctl.toolkit import output
from hpctl.toolkit.arguments import convert_errors_to_usage_errors
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.declared_view import (
    BlankLine,
    Column,
    Columns,
    ItemTextLines,
    JsonOnly,
    Layout,
    RowTable,
    TextLine,
)
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.toolkit.output import ExitCode
from hpctl.toolkit.tables import format_datetime
from hpctl.toolkit.view_copy import build_view_from_source

if TYPE_CHECKING:
    from hpctl.jobs.logs.engine import LogReplayResult, LogRuleState
    from hpctl.jobs.logs.rules import LogRule, LogRuleSet


class RuleRow(Struct, frozen=True):
    """One rule over the whole log."""

    name: str
    judges: str
    matched: int
    unread: int
    fired: int
    due: datetime | None

    columns: ClassVar[Columns] = (
        Column("RULE", "name"),
        Column("JUDGES", "judges"),
        Column("MATCHED", "matched"),
        Column("FIRED", "fired"),
        Column("HANG DUE", "due"),
    )
    json_only: ClassVar[JsonOnly] = ("unread",)


class VerdictRow(Struct, frozen=True):
    """One time that a rule fired."""

    at: datetime | None
    rule: str
    what: str
    why: str
    line_number: int
    value: str
    line: str

    columns: ClassVar[Columns] = (
        Column("TIME", "at"),
        Column("LINE", lambda verdict: verdict.line_number or None),
        Column("WHAT", "what"),
        Column("RULE", "rule"),
        Column("WHY", "why", fold=True),
    )
    json_only: ClassVar[JsonOnly] = ("value", "line")


class LogsTestView(Struct, frozen=True):
    """What `hpctl policy test-logs` shows."""

    as_of: datetime
    file: str
    lines: int
    bytes: int
    first: datetime | None
    last: datetime | None
    rules: tuple[RuleRow, ...]
    verdicts: tuple[VerdictRow, ...]
    notes: tuple[str, ...]

    layout: ClassVar[Layout] = (
        RowTable("verdicts", otherwise="nothing would have fired"),
        BlankLine(),
        RowTable("rules"),
        ItemTextLines("notes", "note: {}"),
        TextLine("{lines} lines, {bytes} bytes{span}"),
    )
    json_only: ClassVar[JsonOnly] = ("file",)

    @property
    def span(self) -> str:
        """Return from when to when the log is; empty where its lines have no time."""
        return (
            f", {format_datetime(self.first)} to {format_datetime(self.last)}" if self.first else ""
        )


@click.command("test-logs", short_help="Show which log rules would have fired, and where.")
@click.argument(
    "paths", nargs=-1, required=True, metavar="[RULES] FILE", type=click.Path(readable=False)
)
@click.option(
    "--preset",
    "presets",
    multiple=True,
    metavar="NAME",
    help="Use a preset's rules.",
    shell_complete=complete_log_rule_preset_names,
)
@output.json_option
def test_logs(paths: tuple[str, ...], presets: tuple[str, ...], as_json: bool) -> None:
    """Show which of RULES would have fired on FILE, on which line, and when.

    RULES may be left out where --preset names rules; the option may be repeated. Reads FILE and
    does nothing else. Exit code: 0 nothing fired, 1 something did, 2 RULES are wrong, 3 FILE
    cannot be read.
    """
    from hpctl.jobs.logs.engine import NotALogFileError, replay_log_file

    if len(paths) > 2 or (len(paths) == 1 and not presets):
        raise click.UsageError("name a rules file and one job log, or --preset and one job log")
    rules = _load_log_rules_by_name(paths[:-1], presets)
    try:
        replayed = replay_log_file(rules, Path(paths[-1]))
    except NotALogFileError as error:
        raise ServiceUnavailable(str(error), error.hint) from error
    view = _build_logs_test_view(replayed, paths[-1])
    output.show_view("logs-test", view, as_json)
    output.exit_with_code(ExitCode.PROBLEM if view.verdicts else ExitCode.FINE)


@click.command("log-rules", short_help="Print a preset's log rules, to copy and change.")
@click.argument("name", required=False, shell_complete=complete_log_rule_preset_names)
def log_rules(name: str | None) -> None:
    """Print a preset's log rules, to be copied and changed; without NAME, the names."""
    from hpctl.jobs.logs import rules as logs_rules
    from hpctl.vocabulary import log_presets

    if name is None:
        output.echo("\n".join(log_presets.PRESETS))
        return
    _load_log_rules_by_name((), (name,))
    output.echo(logs_rules.read_log_rule_preset_text(name), nl=False)


def _load_log_rules_by_name(files: tuple[str, ...], names: tuple[str, ...]) -> LogRuleSet:
    """Return all rules that were named. What is wrong with them is a usage error, exit code 2."""
    from hpctl.jobs.logs.rules import LogRuleSet, load_log_rule_preset, load_log_rules

    with convert_errors_to_usage_errors():
        sets = [load_log_rule_preset(name) for name in names] + [
            load_log_rules(Path(path)) for path in files
        ]
    return LogRuleSet(tuple(chain.from_iterable(one.rules for one in sets)))


def _is_hang_detection_rule(rule: LogRule) -> bool:
    """Return whether a rule says by when, or how often, a line has to come."""
    limits = (rule.expectedStartCutOffInSeconds, rule.expectedRecurringFrequencyInSeconds)
    return any(limit is not None for limit in limits)


def _build_logs_test_view(replayed: LogReplayResult, file: str) -> LogsTestView:
    timed = replayed.first is not None
    rules = tuple(_build_log_rule_row(watch, timed) for watch in replayed.engine.watches)
    verdicts = tuple(
        build_view_from_source(
            VerdictRow, v, at=_convert_timestamp_to_datetime(v.at) if timed else None
        )
        for v in replayed.verdicts
    )
    hangs = sum(_is_hang_detection_rule(watch.rule) for watch in replayed.engine.watches)
    notes = [f"rule {row.name!r} matched no line" for row in rules if not row.matched]
    notes += [
        f"rule {row.name!r} captured {row.unread} times what is no number"
        for row in rules
        if row.unread
    ]
    if hangs and not timed:
        notes.append(f"no line near the beginning tells a time: {hangs} rules judged no hang")
    return LogsTestView(
        as_of=output.get_current_utc_time(),
        file=file,
        lines=replayed.engine.lines,
        bytes=replayed.size,
        first=_convert_timestamp_to_datetime(replayed.first),
        last=_convert_timestamp_to_datetime(replayed.last),
        rules=rules,
        verdicts=verdicts,
        notes=tuple(notes),
    )


def _build_log_rule_row(watch: LogRuleState, timed: bool) -> RuleRow:
    due = watch.due if timed else None
    kind = watch.rule.judges or "hang"
    return RuleRow(
        watch.rule.name,
        kind,
        watch.matched,
        watch.unread,
        watch.fired,
        _convert_timestamp_to_datetime(due),
    )


def _convert_timestamp_to_datetime(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)
