"""Draw a declared view (`hpctl.toolkit.declared_view`) on a console: its parts in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from string import Formatter
from typing import TYPE_CHECKING, Any

from rich.console import ConsoleRenderable
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpctl.toolkit.declared_view import (
    BREAK,
    AgeCell,
    BlankLine,
    Cell,
    Column,
    DeclaredView,
    ItemTextLines,
    LabeledValueRow,
    LabeledValueTable,
    LayoutPart,
    NestedViewPart,
    RepeatedLayoutParts,
    RowTable,
    Style,
    TextLine,
)
from hpctl.toolkit.durations import format_duration
from hpctl.toolkit.tables import DIM, HEAD, MANY, WIDE, format_datetime, format_plain_columns

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def draw_view(out: Console, view: DeclaredView) -> None:
    """Print a view as its layout says."""
    draw_layout_parts(out, view.layout, view)


def draw_layout_parts(out: Console, parts: Sequence[LayoutPart], view: object) -> None:
    """Print parts of a view, which may have no layout."""
    for part in parts:
        if part.when is not None and not read_cell_value(part.when, view, view):
            continue
        if isinstance(part, BlankLine):
            out.print()
        elif isinstance(part, NestedViewPart):
            draw_view(out, read_cell_value(part.view, view, view))
        elif isinstance(part, RepeatedLayoutParts):
            for item in read_cell_value(part.items, view, view) or ():
                draw_layout_parts(out, part.layout, item)
        elif isinstance(part, LabeledValueTable):
            _draw_labeled_value_table(out, part, view)
        elif isinstance(part, RowTable):
            _draw_row_table(out, part, view)
        else:
            assert isinstance(part, TextLine | ItemTextLines)
            _draw_text_lines(out, part, view)


def read_cell_value(cell: Cell, row: object, view: object) -> Any:
    """Return the value of a cell of a row of a view."""
    if isinstance(cell, AgeCell):
        return _format_age_cell(cell, row, view)
    if not isinstance(cell, str):
        return cell(row)
    if "{" in cell:
        return fill_row_template(cell, row)
    if "." not in cell:
        return _read_row_field(row, cell)
    value = row
    for name in cell.split("."):
        value = _read_row_field(value, name)
    return value


def fill_row_template(template: str, row: object) -> str:
    """Return a template with a row's fields: `{name}`, or `{}` for the row itself."""
    return _TEMPLATES.vformat(template, (row,), _RowFields(row))


def format_display_value(value: object) -> str | Text:
    """Return a value as people read it."""
    if isinstance(value, str | Text):
        return value
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return format_datetime(value)
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return str(value)


def format_row_table(section: RowTable, view: object) -> tuple[list[str], list[list[str]]]:
    """Return the headings of a section and its rows as plain text; both empty where it has no
    rows."""
    rows = _list_table_rows(section, view)
    if not rows:
        return [], []
    columns = _list_table_columns(section, rows, view)
    texts = []
    for row in rows:
        texts.append([str(_format_column_value(column, row, view)) for column in columns])
    return [format_column_heading(column, view) for column in columns], texts


def format_labeled_value_table(part: LabeledValueTable, view: object) -> list[tuple[str, str]]:
    """Return the names of facts with their values as plain text, without those that have none."""
    return [
        (fact.name, str(value))
        for fact, value in _list_nonempty_labeled_values(part, view)
        if value
    ]


def format_column_heading(column: Column, view: object) -> str:
    """Return the heading of a column of a view's table."""
    return fill_row_template(column.heading, view)


def _format_age_cell(cell: AgeCell, row: object, view: object) -> str:
    start = _read_row_field(row, cell.start)
    if start is None:
        return "never"
    end = _read_row_field(row, cell.until) if cell.until else None
    passed = (end or _read_row_field(view, "as_of")) - start
    return format_duration(passed.total_seconds()) + cell.suffix


def _read_row_field(row: object, name: str) -> Any:
    """Return a field of a row; None for a key that a mapping lacks."""
    return row.get(name) if isinstance(row, Mapping) else getattr(row, name)


class _TemplateFormatter(Formatter):
    def format_field(self, value: object, format_spec: str) -> str:
        if value is None or not format_spec:
            return str(format_display_value(value))
        return format(value, format_spec)


_TEMPLATES = _TemplateFormatter()


class _RowFields(Mapping[str, object]):
    """A row's fields by their names."""

    def __init__(self, row: object) -> None:
        self._row = row

    def __getitem__(self, name: str) -> object:
        return _read_row_field(self._row, name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _format_layout_part_text(text: object, row: object) -> object:
    """Return a part's own words: a template filled, or what its function returns."""
    return fill_row_template(text, row) if isinstance(text, str) else text(row)  # type: ignore[operator]


def _apply_text_style(value: str | Text, style: Style, row: object) -> str | Text:
    if isinstance(value, Text):
        return value
    if isinstance(style, Mapping):
        style = style.get(value, "")
    elif not isinstance(style, str):
        style = style(row)
    return Text(value, style) if style else value


def _format_column_value(column: Column, row: object, view: object) -> str | Text:
    return format_display_value(read_cell_value(column.cell, row, view)) or column.empty


def _format_styled_cell(column: Column, row: object, view: object) -> str | Text:
    return _apply_text_style(_format_column_value(column, row, view), column.style, row)


def _list_table_rows(section: RowTable, view: object) -> list[object]:
    if section.when is not None and not read_cell_value(section.when, view, view):
        return []
    return list(read_cell_value(section.rows, view, view) or ())


def _list_table_columns(section: RowTable, rows: Sequence[object], view: object) -> list[Column]:
    """Return the columns of a table of these rows, those for wide screens among them."""
    declared: Sequence[Column] = section.columns or type(rows[0]).columns  # type: ignore[attr-defined]
    return [one for one in declared if one.when is None or read_cell_value(one.when, view, view)]


def _print_layout_part_heading(out: Console, part: LayoutPart, view: object) -> None:
    """Print what is above a part."""
    if part.gap or part.title:
        out.print()
    if part.title:
        out.print(_format_layout_part_text(part.title, view), style=HEAD)


def _indent_layout_part(what: RenderableType, part: LayoutPart) -> RenderableType:
    return Padding(what, (0, 0, 0, part.indent)) if part.indent else what


def _list_nonempty_labeled_values(
    part: LabeledValueTable, view: object
) -> list[tuple[LabeledValueRow, str | Text]]:
    """Return the facts that have a value, each with it, and the breaks between them."""
    values = [
        (
            fact,
            "" if fact == BREAK else format_display_value(read_cell_value(fact.cell, view, view)),
        )
        for fact in part.facts
    ]
    return [(fact, value) for fact, value in values if value or fact == BREAK]


def _draw_labeled_value_table(out: Console, part: LabeledValueTable, view: object) -> None:
    table = _build_rich_table([Column("", "name"), Column("", "value", fold=True)], view)
    for fact, value in _list_nonempty_labeled_values(part, view):
        table.add_row(Text(fact.name, DIM), _apply_text_style(value, fact.style, view))
    if table.row_count:
        _print_layout_part_heading(out, part, view)
        out.print(_indent_layout_part(table, part))


def _draw_row_table(out: Console, part: RowTable, view: object) -> None:
    rows = _list_table_rows(part, view)
    if not rows:
        if part.otherwise:
            out.print(_format_layout_part_text(part.otherwise, view))
        return
    _print_layout_part_heading(out, part, view)
    is_wide = out.width >= WIDE
    columns = [one for one in _list_table_columns(part, rows, view) if is_wide or not one.wide]
    if len(rows) > MANY:
        texts = [tuple(format_column_heading(one, view) for one in columns)]
        for row in rows:
            values = (_format_column_value(one, row, view) for one in columns)
            texts.append(tuple(map(_join_cell_lines, values)))
        lines = format_plain_columns(texts)
        out.print(lines, soft_wrap=True)
        return
    table = _build_rich_table(columns, view)
    for row in rows:
        table.add_row(*(_format_styled_cell(one, row, view) for one in columns))
    out.print(_indent_layout_part(table, part))


def _join_cell_lines(cell: str | Text) -> str:
    text = str(cell)
    return "; ".join(text.splitlines()) if "\n" in text else text


def _build_rich_table(columns: Sequence[Column], view: object) -> Table:
    table = Table(box=None, pad_edge=False, header_style=HEAD, padding=(0, 2, 0, 0))
    table.show_header = any(column.heading for column in columns)
    for column in columns:
        table.add_column(
            format_column_heading(column, view),
            justify="right" if column.right else "left",
            no_wrap=not column.fold,
            overflow="fold" if column.fold else "ellipsis",
        )
    return table


def _draw_text_lines(out: Console, part: TextLine | ItemTextLines, view: object) -> None:
    lines = (
        _make_text_line(part, view) if isinstance(part, TextLine) else _make_item_lines(part, view)
    )
    if lines:
        _print_layout_part_heading(out, part, view)
    for line in lines:
        out.print(_indent_layout_part(line, part), soft_wrap=part.unbroken)


def _make_text_line(part: TextLine, view: object) -> list[RenderableType]:
    text = _format_layout_part_text(part.text, view)
    return [_apply_text_style(format_display_value(text), part.style, view)] if text else []


def _make_item_lines(part: ItemTextLines, view: object) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for item in read_cell_value(part.items, view, view) or ():
        if isinstance(item, ConsoleRenderable):
            lines.append(item)
        else:
            lines.append(
                _apply_text_style(
                    format_display_value(_format_layout_part_text(part.form, item)),
                    part.style,
                    item,
                )
            )
    return lines
