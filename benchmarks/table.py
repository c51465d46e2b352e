"""What a benchmark says: rows of a figure, its rival, their ratio and the bar."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict
from rich.console import Console
from rich.table import Table
from rich.text import Text


class Row(Struct, frozen=True):
    """One figure. `bar`: at most this, in the unit of `ours`; None where there is none.

    `least` turns the bar round: at least. `ratio` is ours over the rival's.
    """

    what: str
    ours: float
    unit: str
    rival_name: str = ""
    rival: float | None = None
    bar: float | None = None
    least: bool = False

    @property
    def ratio(self) -> float | None:
        return self.ours / self.rival if self.rival else None

    @property
    def met(self) -> bool | None:
        if self.bar is None:
            return None
        return self.ours >= self.bar if self.least else self.ours <= self.bar

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


class Outcome(Struct):
    """One benchmark's rows and what a reader must know beside them."""

    name: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def missed(self) -> list[Row]:
        return [row for row in self.rows if row.met is False]

    def document(self) -> dict[str, Any]:
        return {"rows": [row.document() for row in self.rows], "notes": self.notes}


def seconds_of(work: Callable[[], object], runs: int) -> list[float]:
    """How long each of several runs took, in seconds."""
    taken = []
    for _ in range(runs):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return taken


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def p99(values: Sequence[float]) -> float:
    """The 99th percentile by nearest rank: of fewer than 100 values, the largest."""
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def show(outcome: Outcome, console: Console) -> None:
    """Print one benchmark's table and notes."""
    table = Table(title=outcome.name, title_justify="left", title_style="bold")
    for name in ("what", "ours", "rival", "ratio", "bar", "met"):
        table.add_column(name, justify="left" if name in ("what", "rival") else "right")
    for row in outcome.rows:
        table.add_row(*_cells(row))
    console.print(table)
    for note in outcome.notes:
        console.print(f"  {note}", style="dim", markup=False, highlight=False)
    for row in outcome.missed:
        over = f"{row.what}: {_figure(row.ours, row.unit)}"
        console.print(f"BAR MISSED  {over}, the bar is {_bar(row)}", style="bold red", markup=False)


def _cells(row: Row) -> list[str | Text]:
    rival = f"{row.rival_name} {_figure(row.rival, row.unit)}" if row.rival is not None else ""
    ratio = f"{row.ratio:.3g}" if row.ratio is not None else ""
    met = {None: Text(""), True: Text("yes", "green"), False: Text("NO", "bold red")}[row.met]
    return [Text(row.what), _figure(row.ours, row.unit), Text(rival), ratio, _bar(row), met]


def _bar(row: Row) -> str:
    if row.bar is None:
        return ""
    return f"{'>=' if row.least else '<='} {_figure(row.bar, row.unit)}"


def _figure(value: float, unit: str) -> str:
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f} {unit}".strip()
