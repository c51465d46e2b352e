"""How `hpctl logs test` is shown to people."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text

from hpctl.cli.render import columns, wrapped

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.cli.logs import LogsTestView


def test(out: Console, view: LogsTestView) -> None:
    """The verdicts in their order, then what became of each rule."""
    if view.verdicts:
        rows = columns("TIME", "LINE", "WHAT", "RULE", wrapped("WHY"))
        for verdict in view.verdicts:
            line = str(verdict.line_number or "-")
            rows.add_row(
                _time(verdict.at), line, verdict.what, Text(verdict.rule), Text(verdict.why)
            )
        out.print(rows)
    else:
        out.print("nothing would have fired")
    out.print()
    rows = columns("RULE", "JUDGES", "MATCHED", "FIRED", "HANG DUE")
    for rule in view.rules:
        matched, fired = str(rule.matched), str(rule.fired)
        rows.add_row(Text(rule.name), rule.judges, matched, fired, _time(rule.due))
    out.print(rows)
    for note in view.notes:
        out.print(Text(f"note: {note}"))
    span = f", {_time(view.first)} to {_time(view.last)}" if view.first else ""
    out.print(Text(f"{view.lines} lines, {view.bytes} bytes{span}"))


def _time(at: datetime | None) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S") if at else "-"
