"""How a view is shown as text, declared once beside the fields that are its JSON.

A row class declares `columns`, a view declares `layout`: its parts from top to bottom. A field of
either that no part shows, except `as_of`, is named in `json_only`. `hpctl.toolkit.view_drawing`
makes the text, so that `--json` never pays for rich.

A cell is the name of a field or property (`"node"`, `"link.path"`), a template of them
(`"{current}/{target}"`), or a function of the row. None is shown as `-`, a time in UTC to the
second, several texts separated by commas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeAlias

from msgspec import Struct

from hpctl.toolkit.tables import STYLES

Style: TypeAlias = str | Mapping[str, str] | Callable[[Any], str]
"""A rich style; or the style of each text; or a function of the row that returns it."""


class AgeCell(Struct, frozen=True):
    """A cell: the time from a row's time until the view's `as_of`; `never` for None.

    `until`: the name of a row's own end, used in place of `as_of` where it is not None. `suffix`
    follows the duration.
    """

    start: str
    until: str = ""
    suffix: str = ""


Cell: TypeAlias = str | Callable[[Any], object] | AgeCell
"""What a column, a fact or a line shows of a row or a view."""


class Column(Struct, frozen=True):
    """One column of a row class. `heading` may be a template of the view's fields.

    `wide`: shown only where the screen is wide. `right`: aligned right, for numbers. `fold`:
    broken over several lines where the screen is narrow. `empty`: shown for an empty text.
    `when`: a cell of the view; the column is shown only where it is true. Without a heading in any
    column a table has no heading line.
    """

    heading: str
    cell: Cell
    wide: bool = False
    right: bool = False
    fold: bool = False
    style: Style = ""
    empty: str = ""
    when: Cell | None = None


class LabeledValueRow(Struct, frozen=True):
    """A name and a value of a view; left out where the value is empty."""

    name: str
    cell: Cell
    style: Style = ""


BREAK = LabeledValueRow("", "")
"""A blank line between two facts."""


class LayoutPart(Struct, frozen=True, kw_only=True):
    """What every part of a layout has in common.

    `title`: a heading above the part, after a blank line. `gap`: a blank line above the part.
    `when`: a cell of the view; the part is shown only where it is true. A part that has nothing to
    show has no title and no gap either.
    """

    title: str | Callable[[Any], object] = ""
    gap: bool = False
    when: Cell | None = None
    indent: int = 0


class LabeledValueTable(LayoutPart, frozen=True):
    """A table of names and values."""

    facts: tuple[LabeledValueRow, ...]


class RowTable(LayoutPart, frozen=True):
    """A table of a view's rows: those of the field `rows`.

    `columns`: those of the rows' class where not given. `otherwise`: a template or a function, the
    line that is shown where there are no rows.
    """

    rows: Cell
    columns: tuple[Column, ...] = ()
    otherwise: str | Callable[[Any], object] = ""


class TextLine(LayoutPart, frozen=True):
    """One line of text: a template of the view's fields, or a function of the view.

    `unbroken`: not broken into lines where the screen ends, for paths and commands to copy.
    """

    text: str | Callable[[Any], object]
    style: Style = ""
    unbroken: bool = False


class ItemTextLines(LayoutPart, frozen=True):
    """One line for each item of the cell `items`: by `form`, a template or a function of it.

    In a template `{}` is the item, and `{name}` a field of it. What rich itself draws, such as
    a text of several styles, is shown as it is.
    """

    items: Cell
    form: str | Callable[[Any], object] = "{}"
    style: Style = ""
    unbroken: bool = False


class BlankLine(LayoutPart, frozen=True):
    """A blank line, whatever is above it and below it."""


class NestedViewPart(LayoutPart, frozen=True):
    """A field that is a view itself, by its own layout."""

    view: Cell


class RepeatedLayoutParts(LayoutPart, frozen=True):
    """The same parts for each item of the cell `items`; in them, the item is the view."""

    items: Cell
    layout: tuple[LayoutPart, ...]


Layout: TypeAlias = tuple[LayoutPart, ...]


Columns: TypeAlias = tuple[Column, ...]


JsonOnly: TypeAlias = tuple[str, ...]


class DeclaredView(Protocol):
    """A view that `hpctl.toolkit.output.show_view` shows without a function that draws it."""

    layout: ClassVar[Layout]


def make_number_column(
    heading: str, cell: Cell, *, wide: bool = False, when: Cell | None = None
) -> Column:
    """Return a column of numbers."""
    return Column(heading, cell, wide=wide, right=True, when=when)


def make_state_column(
    heading: str, cell: Cell, *, wide: bool = False, when: Cell | None = None
) -> Column:
    """Return a column of states, each in the color of its meaning; `-` for an empty one."""
    return Column(heading, cell, wide=wide, style=STYLES, empty="-", when=when)
