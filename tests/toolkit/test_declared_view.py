"""A view that declares its columns, facts and lines is drawn from the declaration alone."""

import re
import subprocess
import sys
from datetime import datetime, timedelta
from typing import ClassVar

import click
import pytest
from click.testing import CliRunner
from msgspec import Struct
from rich.console import Console

from hpctl.toolkit import output
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.declared_view import (
    BREAK,
    AgeCell,
    BlankLine,
    Column,
    Columns,
    DeclaredView,
    ItemTextLines,
    JsonOnly,
    LabeledValueRow,
    LabeledValueTable,
    Layout,
    NestedViewPart,
    RepeatedLayoutParts,
    RowTable,
    TextLine,
    make_number_column,
    make_state_column,
)
from hpctl.toolkit.tables import MANY
from hpctl.toolkit.view_drawing import draw_view, format_labeled_value_table, format_row_table

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
EVIL = "\x1b[31m\u202egnp"
LONG = "words that do not fit on one line of a narrow screen, so that they are folded there twice"


class Row(Struct, frozen=True):
    """A node."""

    name: str
    state: str = "IDLE"
    gpus: int | None = 8
    seen: datetime | None = None
    ended: datetime | None = None
    tags: tuple[str, ...] = ()
    why: str = ""

    columns: ClassVar[Columns] = (
        Column("NODE", "name"),
        make_state_column("STATE", "state"),
        make_number_column("GPUS", "gpus"),
        Column("SEEN", "seen", wide=True),
        Column("FOR", AgeCell("seen", until="ended")),
        Column("TAGS", "tags", when="tagged"),
        Column("WHY", "{why}", fold=True),
    )


class Fleet(Struct, frozen=True):
    """A view."""

    as_of: datetime
    cluster: str = ""
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    tagged: bool = False

    layout: ClassVar[Layout] = (
        LabeledValueTable(
            (LabeledValueRow("cluster", "cluster"), BREAK, LabeledValueRow("nodes", "size"))
        ),
        RowTable("rows", title="Nodes of {cluster}", otherwise="{cluster} has no node."),
        ItemTextLines("notes", "note: {}", gap=True, indent=2),
        TextLine("{cluster}: {size} nodes", when="cluster"),
    )
    json_only: ClassVar[JsonOnly] = ("as_of",)

    @property
    def size(self) -> str:
        """The number of rows."""
        return str(len(self.rows))


def drawn(
    view: DeclaredView, width: int = 130, *, color: bool = False, as_json: bool = False
) -> str:
    @click.command()
    def command() -> None:
        output.show_view("fleet", view, as_json)

    result = CliRunner(env={"COLUMNS": str(width)}).invoke(command, color=color)
    assert result.exception is None, result.exception
    return result.stdout


def test_the_parts_stand_in_their_order() -> None:
    rows = (Row("gpu-1", seen=NOW - timedelta(hours=2)), Row("gpu-22", "DOWN", 0, why="dead"))
    assert drawn(Fleet(NOW, "llm", rows, ("one", "two"))).splitlines() == [
        "cluster  llm",
        "",
        "nodes    2",
        "",
        "Nodes of llm",
        "NODE    STATE  GPUS  SEEN                 FOR    WHY",
        "gpu-1   IDLE      8  2026-03-04 10:00:00  2 h",
        "gpu-22  DOWN      0  -                    never  dead",
        "",
        "  note: one",
        "  note: two",
        "llm: 2 nodes",
    ]


def test_what_is_empty_is_left_out_with_its_title_and_its_gap() -> None:
    assert drawn(Fleet(NOW)).splitlines() == ["", "nodes  0", " has no node."]


def test_a_narrow_screen_loses_the_wide_columns_and_folds() -> None:
    text = drawn(Fleet(NOW, "llm", (Row("gpu-1", why=LONG),)), 60)
    assert "SEEN" not in text
    assert max(map(len, text.splitlines())) <= 60
    # Each line of the folded cell begins where its column does.
    folded = [line for line in text.splitlines() if "folded there twice" in line]
    assert folded
    assert folded[0].index("folded") >= text.splitlines()[5].index("WHY")
    assert "SEEN" in drawn(Fleet(NOW, "llm", (Row("gpu-1"),)), 120)


def test_none_is_a_dash_an_empty_state_as_well_and_numbers_are_on_the_right() -> None:
    lines = drawn(Fleet(NOW, "", (Row("a", "", None), Row("b", "X", 123456)))).splitlines()
    assert lines[-2].split() == ["a", "-", "-", "-", "never"]
    assert lines[-2].index("-  -") == lines[-1].index("6  -")


def test_a_column_is_there_where_the_view_says_so() -> None:
    rows = (Row("a", tags=("x", "y")),)
    assert "TAGS" not in drawn(Fleet(NOW, "", rows))
    assert "x, y" in drawn(Fleet(NOW, "", rows, tagged=True))


def test_since_ends_at_the_rows_own_end() -> None:
    row = Row("a", seen=NOW - timedelta(hours=2), ended=NOW - timedelta(hours=1))
    assert "1 h" in drawn(Fleet(NOW, "", (row,)))


def test_a_state_has_the_color_of_its_meaning() -> None:
    out = Console(width=130, force_terminal=True, color_system="standard", _environ={})
    with out.capture() as seen:
        draw_view(out, Fleet(NOW, "", (Row("a", "DOWN"),)))
    assert "\x1b[31mDOWN" in seen.get()
    assert "\x1b" not in drawn(Fleet(NOW, "", (Row("a", "DOWN"),)))


def test_hostile_text_is_cleaned_in_every_part() -> None:
    view = Fleet(NOW, EVIL, (Row(EVIL, EVIL, why=EVIL, tags=(EVIL,)),), (EVIL,), tagged=True)
    for text in (drawn(view, color=True), drawn(Fleet(NOW, EVIL), color=True)):
        assert "gnp" in text
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)


class Table(Struct, frozen=True):
    """A view of a table alone."""

    as_of: datetime
    rows: tuple[Row, ...]
    tagged: bool = False

    layout: ClassVar[Layout] = (RowTable("rows"),)


def test_ten_thousand_rows_are_not_a_table_of_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tuple(Row(f"gpu-{number}", seen=NOW, why=LONG) for number in range(10_000))
    few = drawn(Table(NOW, rows[:MANY]), 300).splitlines()
    # rich takes seconds for them.
    monkeypatch.setattr(
        "hpctl.toolkit.view_drawing._build_rich_table", lambda *_: pytest.fail("rich's")
    )
    lines = drawn(Table(NOW, rows), 300).splitlines()
    assert len(lines) == len(rows) + 1
    assert [line.split() for line in lines[: MANY + 1]] == [line.split() for line in few]
    # Nothing is cut off, however narrow the screen is.
    assert drawn(Table(NOW, rows), 20).splitlines()[-1].endswith(LONG)


class Group(Struct, frozen=True):
    """A view inside a view."""

    name: str
    nodes: tuple[str, ...]

    layout: ClassVar[Layout] = (TextLine("{name}:"), ItemTextLines("nodes", "  {}"))


class Groups(Struct, frozen=True):
    """Views inside a view, and rows that are mappings."""

    first: Group
    groups: tuple[Group, ...]
    bills: tuple[dict[str, object], ...] = ()

    layout: ClassVar[Layout] = (
        NestedViewPart("first"),
        BlankLine(),
        RepeatedLayoutParts("groups", (TextLine("{name} has {nodes}"),)),
        RowTable("bills", (Column("NAME", "Name"), Column("FEE", "{Fee:.2f}"))),
        TextLine("{first.name} is the first", unbroken=True),
    )


def test_views_inside_a_view_and_mappings_as_rows() -> None:
    first, second = Group("a", ("x", "y")), Group("b", ())
    bills = ({"Name": "n", "Fee": 1.5}, {"Fee": None})
    assert drawn(Groups(first, (first, second), bills)).splitlines() == [
        "a:", "  x", "  y", "", "a has x, y", "b has", "NAME  FEE", "n     1.50", "-     -",
        "a is the first",
    ]  # fmt: skip


def test_an_unbroken_line_is_not_broken() -> None:
    view = Groups(Group(LONG, ()), ())
    assert f"{LONG} is the first" in drawn(view, 40).splitlines()


def test_the_json_has_the_fields_and_nothing_of_the_declaration() -> None:
    text = drawn(Fleet(NOW, "llm"), as_json=True)
    assert '"schema": "hpctl.fleet/1"' in text
    assert not re.search("layout|columns|json_only|size", text)


def test_json_and_declarations_import_no_rich() -> None:
    code = (
        "import sys, hpctl.cli.recoveries as r\n"
        "from datetime import datetime\n"
        "from hpctl.toolkit import output\n"
        "output.show_view('recoveries', r.RecoveriesView(datetime.now(), (), (), 0), True)\n"
        "assert 'rich' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr


def test_facts_and_tables_are_there_as_plain_text_for_a_page() -> None:
    view = Fleet(NOW, "llm", (Row("gpu-1", "DOWN"),))
    part, section = Fleet.layout[:2]
    assert isinstance(part, LabeledValueTable)
    assert isinstance(section, RowTable)
    assert format_labeled_value_table(part, view) == [("cluster", "llm"), ("nodes", "1")]
    headings, rows = format_row_table(section, view)
    assert headings == ["NODE", "STATE", "GPUS", "SEEN", "FOR", "WHY"]
    assert rows == [["gpu-1", "DOWN", "8", "-", "never", ""]]
    assert format_row_table(section, Fleet(NOW)) == ([], [])
