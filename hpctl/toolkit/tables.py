"""What the text of every command is made of: tables, colors, times, indents.

A command makes text for people from its view, on the console that `output.show` gives it. rich is
imported here only when text is made: `--json` never pays for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctl.toolkit.bounds import make_printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.console import Console, RenderableType
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    Heading = str | tuple[str, dict[str, object]]

WIDE = 120
"""From so many columns on a table shows what else there is."""
MANY = 500
"""Rows from which a table is no longer rich's, which takes seconds for ten thousand."""
GOOD, BAD, WARN, DIM, HEAD = "green", "red", "yellow", "dim", "bold"
STYLES = {
    **dict.fromkeys(("healthy", "IDLE", "returned", "resumed", "ok", "passed", "Running"), GOOD),
    **dict.fromkeys(("faulty", "DOWN", "escalated", "gave_up", "held", "fail", "Failure"), BAD),
    **dict.fromkeys(("suspect", "unknown", "UNKNOWN", "warn", "waived", "NOT_FOUND"), WARN),
    **dict.fromkeys(("cancelled", "not_reached", "absent", "-"), DIM),
}


def style_text(value: str, style: str = "") -> Text:
    """Return a text in a style; what is appended to it may have another."""
    from rich.text import Text

    return Text(value, style)


def assemble_styled_text(*parts: str | Text | tuple[str, str]) -> Text:
    """Return one text of parts, each a text or a string with its style."""
    from rich.text import Text

    return Text.assemble(*parts)


def join_styled_texts(between: str, parts: Sequence[Text]) -> Text:
    """Texts as one, with the same words between each two of them."""
    return style_text(between).join(parts)


def color_state_word(value: str, shown: str = "") -> Text:
    """Return a word in the color of its meaning; `-` for nothing."""
    return style_text(shown or value or "-", STYLES.get(value or "-", ""))


def format_state_counts(counts: dict[str, int]) -> Text:
    """`2 IDLE, 1 DOWN`, each word in the color of its meaning."""
    parts = [color_state_word(name, f"{count} {name}") for name, count in counts.items()]
    return join_styled_texts(", ", parts) if parts else style_text("none", DIM)


def indent_block(what: RenderableType, depth: int = 2) -> Padding:
    """Something moved to the right, its wrapped lines as well."""
    from rich.padding import Padding

    return Padding(what, (0, 0, 0, depth))


def stack_renderables(parts: Sequence[RenderableType]) -> RenderableType:
    """Return the parts as one, each below the one before."""
    from rich.console import Group

    return Group(*parts)


def print_heading(out: Console, text: str) -> None:
    """A blank line and a title."""
    out.print()
    out.print(text, style=HEAD)


def format_clock_time(at: datetime) -> str:
    """Return the time of day with hundredths of a second, UTC."""
    return f"{at:%H:%M:%S}.{at.microsecond // 10000:02}"


def format_time_offset(seconds: float) -> str:
    """`T+0.15 s`: how long after the fault, or before it; fine while seconds matter."""
    from hpctl.toolkit.durations import format_duration

    size = abs(seconds)
    sign = "-" if seconds < 0 else "+"
    return f"T{sign}{size:.2f} s" if size < 10 else f"T{sign}{format_duration(size)}"


def format_age(at: datetime | None, now: datetime) -> str:
    """Return how long ago, in two units."""
    from hpctl.toolkit.durations import format_duration

    return "never" if at is None else f"{format_duration((now - at).total_seconds())} ago"


def format_datetime(at: datetime | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a date and time; `-` for none."""
    return at.strftime(form) if at else "-"


def format_count(number: int | None) -> str:
    """Return a number; `-` where it is unknown."""
    return "-" if number is None else str(number)


def make_plain_table(*names: Heading) -> Table:
    """Return a plain table; a column is its heading, or that and rich's options for it."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style=HEAD, padding=(0, 2, 0, 0))
    for column in names:
        name, options = (column, {}) if isinstance(column, str) else column
        table.add_column(name, **{"no_wrap": True, **options})  # type: ignore[arg-type]
    return table


def make_headingless_grid(*styles: str) -> Table:
    """Columns without headings, one for each style and one more, which wraps."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for style in styles:
        table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    return table


def format_plain_columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns without color, and no line of them wrapped."""
    filled = []
    for row in rows:
        filled.append(tuple(cell or "-" for cell in row))
    widths = [max(map(len, cells)) for cells in zip(*filled, strict=True)]
    padded = (map(str.ljust, row, widths) for row in filled)
    return "\n".join(make_printable("  ".join(cells)).rstrip() for cells in padded)
