"""A list of checks and what each found, as the commands that check something show it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from hpctl.toolkit import output
from hpctl.toolkit.declared_view import Column, Columns, Layout, RowTable, TextLine
from hpctl.toolkit.output import ExitCode
from hpctl.toolkit.tables import DIM, color_state_word, format_state_counts, style_text

if TYPE_CHECKING:
    from rich.text import Text


LABELS = {"ok": "ok", "note": "note", "warn": "WARN", "fail": "FAIL", "unknown": "CANNOT TELL"}
"""What the text calls each verdict."""


def _format_check_verdict_label(check: CheckView) -> Text:
    return color_state_word(check.verdict, LABELS[check.verdict])


def _format_check_finding(check: CheckView) -> Text:
    """Return what was found; what is not in order says how to fix it."""
    text = style_text(check.what)
    if check.fix and check.verdict != "ok":
        text.append(f"\nmend: {check.fix}", DIM)
    if check.source:
        text.append(f"\nsource: {check.source}", DIM)
    return text


class CheckView(Struct, frozen=True):
    """One check: `verdict` is ok, note, warn, fail or unknown; `fix` says what to do about it.

    `source` says where a fact about Slurm comes from.
    """

    name: str
    verdict: str
    what: str
    fix: str
    source: str = ""

    columns: ClassVar[Columns] = (
        Column("", _format_check_verdict_label),
        Column("", "name"),
        Column("", _format_check_finding, fold=True),
    )


def _format_check_verdict_counts(view: Any) -> Text:
    found = [check.verdict for check in view.checks]
    return format_state_counts(
        {verdict: found.count(verdict) for verdict in LABELS if verdict in found}
    )


CHECKLIST: Layout = (
    RowTable("checks"),
    TextLine(_format_check_verdict_counts, gap=True, when="checks"),
)
"""The text of any view's `checks`: each of them, then how many have which verdict."""


class DoctorView(Struct, frozen=True):
    """What `hpctl doctor` shows."""

    as_of: datetime
    checks: tuple[CheckView, ...]

    layout: ClassVar[Layout] = CHECKLIST


def choose_doctor_exit_code(view: DoctorView) -> ExitCode:
    """Return the command's exit code."""
    return output.choose_worst_exit_code(check.verdict for check in view.checks)
