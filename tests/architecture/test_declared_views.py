"""A view's text is declared beside its fields, and says of every field whether it is shown."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from string import Formatter
from types import CodeType, FunctionType
from typing import Any

import pytest

import hpctl
from hpctl.toolkit.declared_view import (
    AgeCell,
    Cell,
    Column,
    ItemTextLines,
    LabeledValueTable,
    LayoutPart,
    NestedViewPart,
    RepeatedLayoutParts,
    RowTable,
    TextLine,
)
from tests.architecture.source import python_files, text, tree

DRAWN_BY_HAND = {
    "hpctl/cli/explain.py": "explain",
    "hpctl/cli/top.py": "top",
    "hpctl/clusters/commands/validate.py": "cluster-validate",
}
"""The schemas that a file shows by a function of its own, with the reason above the call."""


def modules() -> Iterator[Any]:
    for info in pkgutil.walk_packages(hpctl.__path__, "hpctl."):
        if info.name.split(".")[1] not in ("__main__", "sandbox") and "__main__" not in info.name:
            yield importlib.import_module(info.name)


def declared(name: str) -> dict[str, type]:
    """The classes that declare a `layout` or `columns`."""
    return {
        f"{value.__module__}.{value.__qualname__}": value
        for module in modules()
        for value in vars(module).values()
        if isinstance(value, type)
        and value.__module__.startswith("hpctl.")
        and hasattr(value, "__struct_fields__")
        and isinstance(vars(value).get(name), tuple)
    }


def read_by(code: CodeType, known: dict[str, Any], seen: set[CodeType]) -> set[str]:
    """The names that a function reads, by itself and through the functions that it calls."""
    seen.add(code)
    names = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and inner not in seen:
            names |= read_by(inner, known, seen)
    for name in code.co_names:
        called = known.get(name)
        if isinstance(called, FunctionType) and called.__code__ not in seen:
            names |= read_by(called.__code__, called.__globals__, seen)
    return names


def named(cell: str) -> set[str]:
    """The fields that a name or a template names: `link` of `link.path`."""
    if "{" in cell:
        places = [field for _, field, _, _ in Formatter().parse(cell) if field]
    else:
        places = [cell] if cell else []
    words = [place.split(".")[0].split("[")[0] for place in places]
    return {word for word in words if not word.isdigit()}


def read_in(cell: Cell | None) -> tuple[set[str], set[str]]:
    """What a cell names, and what its function reads."""
    if isinstance(cell, AgeCell):
        return {cell.start, cell.until} - {""}, set()
    if isinstance(cell, str):
        return named(cell), set()
    if isinstance(cell, FunctionType):
        return set(), read_by(cell.__code__, cell.__globals__, set())
    return set(), set()


def template(words: object) -> object:
    """A part's own words name fields in braces alone."""
    return words if not isinstance(words, str) or "{" in words else None


def function(style: object) -> object:
    """A style that is a function of the row."""
    return style if isinstance(style, FunctionType) else None


def cells_of(part: LayoutPart) -> list[Any]:
    """The cells of a part that are read of the view."""
    cells: list[Any] = [part.when, template(part.title)]
    match part:
        case LabeledValueTable():
            cells += [one for fact in part.facts for one in (fact.cell, function(fact.style))]
        case RowTable():
            columns = part.columns
            cells += [part.rows, template(part.otherwise), *(one.when for one in columns)]
            cells += [template(one.heading) for one in columns]
        case TextLine():
            cells += [template(part.text), function(part.style)]
        case ItemTextLines() | RepeatedLayoutParts():
            cells += [part.items]
        case NestedViewPart():
            cells += [part.view]
    return cells


def problems(owner: type, cells: list[Any]) -> list[str]:
    """Names that the class lacks, fields without a place, and marks that are not true."""
    known: set[str] = set()
    read: set[str] = set()
    for cell in cells:
        names, inner = read_in(cell)
        known |= names
        read |= names | inner
    wrong = [f"{name}: there is no such field" for name in known if not hasattr(owner, name)]
    waiting = list(read)
    while waiting:
        one = vars(owner).get(waiting.pop())
        function = one.fget if isinstance(one, property) else one
        if isinstance(function, FunctionType):
            more = read_by(function.__code__, function.__globals__, set()) - read
            read |= more
            waiting += more
    # `as_of` is the time that `AgeCell` counts to, in columns of other classes too.
    fields = set(owner.__struct_fields__) - {"as_of"}  # type: ignore[attr-defined]
    hidden = set(getattr(owner, "json_only", ()))
    wrong += [f"{name}: neither shown nor json_only" for name in fields - read - hidden]
    wrong += [f"{name}: json_only, and shown" for name in hidden & known]
    wrong += [f"{name}: json_only, and no field" for name in hidden - fields]
    return sorted(wrong)


def test_every_field_of_a_declared_view_is_shown_or_marked() -> None:
    found = declared("layout")
    assert len(found) > 25
    wrong = {}
    for name, view in found.items():
        cells = [cell for part in view.layout for cell in cells_of(part)]  # type: ignore[attr-defined]
        if listed := problems(view, cells):
            wrong[name] = listed
    assert wrong == {}


def test_every_field_of_a_row_with_columns_is_shown_or_marked() -> None:
    found = declared("columns")
    assert len(found) > 15
    wrong = {}
    for name, row in found.items():
        columns: tuple[Column, ...] = row.columns  # type: ignore[attr-defined]
        if listed := problems(row, [one for c in columns for one in (c.cell, function(c.style))]):
            wrong[name] = listed
    assert wrong == {}


def drawn_by_hand() -> Iterator[tuple[str, str, int]]:
    """Each file and schema that `output.show_view` is given a function for, with its line."""
    for path in python_files("hpctl"):
        for node in ast.walk(tree(path)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "show_view"
                and ast.unparse(node.func.value).endswith("output")
                and len(node.args) + len(node.keywords) > 3
            ):
                yield str(path), ast.literal_eval(node.args[0]), node.lineno


def test_a_drawing_function_is_for_a_view_that_is_no_facts_and_tables() -> None:
    found: dict[str, str] = {}
    for path, schema, line in drawn_by_hand():
        found[path] = f"{found[path]}, {schema}" if path in found else schema
        if path in DRAWN_BY_HAND:
            above = text(Path(path)).splitlines()[line - 2]
            assert above.strip().startswith("# By hand: "), f"{path}:{line} does not say why"
    assert found == DRAWN_BY_HAND


@pytest.mark.parametrize(
    ("cell", "wrong"),
    [
        (Column("A", "name"), ["why: neither shown nor json_only"]),
        (Column("A", "{name} {why}"), []),
        (Column("A", "text"), []),
        (Column("A", lambda row: row.name + row.why), []),
        (Column("A", "nmae"), ["name: neither", "nmae: there is no", "why: neither"]),
    ],
)
def test_the_check_itself_sees_what_is_read(cell: Column, wrong: list[str]) -> None:
    from msgspec import Struct

    class Row(Struct):
        name: str
        why: str

        @property
        def text(self) -> str:
            return f"{self.name}: {self.why}"

    found = problems(Row, [cell.cell])
    assert len(found) == len(wrong)
    assert all(one.startswith(start) for one, start in zip(found, wrong, strict=True))
