"""The whole fault table, read from the Markdown tables beside this module.

A line of a table is one row: FaultRow, CheckSpec or Limit, by its columns, which are the fields'
names; the column `options` holds the fields that most rows do without. A heading is a section of
the documentation. The order of the files here, and of the lines in them, is the order of
precedence: among rows that are equally urgent and equally strong the one that stands first names
the fault. What is misspelled or incomplete raises at the first import.

Meant to be reviewed line by line; docs/catalogue.md shows each
row that departs from what NVIDIA says.
"""

import pkgutil
from collections.abc import Iterator
from types import MappingProxyType
from typing import cast

from msgspec import convert

from hpctl.core.faults.row import CheckSpec, FaultRow, Limit
from hpctl.core.model import RuleId

_FILES = ("gpu", "fabric", "host", "kernel", "outside")


def _lines(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each row of a file's tables: the heading that it stands under, and its cells by column."""
    title, columns = "", list[str]()
    for line in (pkgutil.get_data(__package__, f"{name}.md") or b"").decode().splitlines():
        if not line.startswith("|"):
            title, columns = line[3:] if line.startswith("## ") else title, []
            continue
        cells = [cell.strip() for cell in line[1:-1].split("|")]
        if not columns:
            columns = cells
        elif not line.startswith("|---"):
            yield title, dict(zip(columns, cells, strict=True))


def _options(text: str) -> Iterator[tuple[str, str | bool | list[str]]]:
    """`own` is a flag, `seen=2/3` two numbers."""
    for option in text.split(", ") if text else ():
        name, given, value = option.partition("=")
        yield name, (value.split("/") if name == "seen" else value) if given else True


def _read() -> tuple[dict[str, list[FaultRow]], dict[str, list[CheckSpec]]]:
    """The rows and the checks of each section."""
    faults: dict[str, list[FaultRow]] = {}
    checks: dict[str, list[CheckSpec]] = {}
    limits: dict[str, dict[str, Limit]] = {}
    for title, cells in (line for name in _FILES for line in _lines(name)):
        if "limit" in cells:
            check, name = cells.pop("check"), cells.pop("limit")
            limits[check][name] = convert(cells, Limit, strict=False)
            continue
        row = {**dict(_options(cells.pop("options"))), **cells}
        if "treatment" in row:
            faults.setdefault(title, []).append(convert(row, FaultRow, strict=False))
        else:
            spec = convert(row, CheckSpec, strict=False)
            checks.setdefault(title, []).append(spec)
            limits[spec.name] = cast(dict[str, Limit], spec.limits)
    return faults, checks


_FAULTS, _CHECKS = _read()
SECTIONS: tuple[tuple[str, tuple[FaultRow, ...]], ...] = tuple(
    (title, tuple(rows)) for title, rows in _FAULTS.items()
)
"""A title and its rows, as the documentation shows them."""
TIMED: tuple[tuple[str, tuple[CheckSpec, ...]], ...] = tuple(
    (title, tuple(specs))
    for title, specs in _CHECKS.items()
    if not specs[0].name.startswith("kernel.")
)
"""The checks that run at intervals, by the same titles."""
CHECKS: tuple[CheckSpec, ...] = tuple(spec for _, specs in TIMED for spec in specs)
KERNEL_CHECKS: tuple[CheckSpec, ...] = tuple(
    spec for specs in _CHECKS.values() for spec in specs if spec.name.startswith("kernel.")
)
"""The checks of the kernel's lines, which are judged when they are read."""


def _by_rule() -> dict[RuleId, FaultRow]:
    index: dict[RuleId, FaultRow] = {}
    for row in (row for _, rows in SECTIONS for row in rows):
        for rule in row.rules:
            if rule in index:
                raise ValueError(f"rule {rule} is in the fault table twice")
            index[rule] = row
    return index


ROWS: MappingProxyType[RuleId, FaultRow] = MappingProxyType(_by_rule())
"""Every row by its rules' ids, in order of precedence."""


def rows_of(check: str) -> tuple[FaultRow, ...]:
    """The rows of one check, in order of precedence."""
    return tuple(row for _, rows in SECTIONS for row in rows if row.check == check)
