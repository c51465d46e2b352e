"""The checklist of `hpctl doctor` for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hpctl.cli.render import DIM, counted, word

if TYPE_CHECKING:
    from hpctl.cli.doctor import DoctorView


def doctor(out: Console, view: DoctorView) -> None:
    """The checklist of `hpctl doctor`: what is not in order says how to mend it."""
    labels = {"ok": "ok", "note": "note", "warn": "WARN", "fail": "FAIL", "unknown": "CANNOT TELL"}
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in view.checks:
        text = Text(check.what)
        if check.mend and check.verdict != "ok":
            text.append(f"\nmend: {check.mend}", DIM)
        if check.source:
            text.append(f"\nsource: {check.source}", DIM)
        table.add_row(word(check.verdict, labels[check.verdict]), Text(check.name), text)
    out.print(table)
    counts = {v: sum(c.verdict == v for c in view.checks) for v in labels}
    out.print()
    out.print(counted({v: n for v, n in counts.items() if n}))
