"""A list of checks and what each found, as the commands that check something show it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from hpctl.toolkit import output
from hpctl.toolkit.output import Exit
from hpctl.toolkit.tables import DIM, counted, grid, styled, word

if TYPE_CHECKING:
    from rich.console import Console


class CheckView(Struct, frozen=True):
    """One check: `verdict` is ok, note, warn, fail or unknown; `fix` says what to do about it.

    `source` says where a fact about Slurm comes from.
    """

    name: str
    verdict: str
    what: str
    fix: str
    source: str = ""


class DoctorView(Struct, frozen=True):
    """What `hpctl doctor` shows."""

    as_of: datetime
    checks: tuple[CheckView, ...]


def verdict(view: DoctorView) -> Exit:
    """The command's exit code."""
    return output.worst(check.verdict for check in view.checks)


def draw_checks(out: Console, view: DoctorView) -> None:
    """The checklist of `hpctl doctor`: what is not in order says how to fix it."""
    labels = {"ok": "ok", "note": "note", "warn": "WARN", "fail": "FAIL", "unknown": "CANNOT TELL"}
    table = grid("", "")
    for check in view.checks:
        text = styled(check.what)
        if check.fix and check.verdict != "ok":
            text.append(f"\nmend: {check.fix}", DIM)
        if check.source:
            text.append(f"\nsource: {check.source}", DIM)
        table.add_row(word(check.verdict, labels[check.verdict]), check.name, text)
    out.print(table)
    counts = {v: sum(c.verdict == v for c in view.checks) for v in labels}
    out.print()
    out.print(counted({v: n for v, n in counts.items() if n}))
