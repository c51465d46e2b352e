"""The fault table: what a row is, and all rows, read from the Markdown tables beside this file.

One row is one code of a check, and one the check that finds it. The rule id of a fault is its
check's stem and its code: `gpu.ecc` and `contained` make `gpu-ecc-contained`. The letters of the
treatments:

- I   count it only; the node stays in service
- W   as I, and show the node as Suspect
- J   the job's fault, or fatal to one job only: restart the job, the node stays
- H   nothing automatic; a human reads it, and the node is Suspect
- R1  close the node to new work, reset the GPU once its jobs have ended
- R2  stop the jobs, start them elsewhere, reset the GPU
- A   close the node to new work, reboot it once its jobs have ended, then replace it
- B   stop the jobs, start them elsewhere, reboot, then replace
- X   stop the jobs, start them elsewhere, replace the instance

A line of a table is one row by its columns, the names of fields: FaultRow, HealthCheckSpec, Limit,
BenignKernelLine, KernelDriverRow, or a fragment of patterns. The column `options` holds the fields
that most rows do without. A cell of patterns, heads, words or checks has each in backquotes; a
vertical bar in a cell has a backslash before it. A heading is a section of the documentation; the
text below it is for readers. The order of the files here, and of the lines in them, is the order of
precedence: among rows that are equally urgent and equally strong the first one names the fault.
What is misspelled or incomplete raises at the first import. The tables are meant to be reviewed
line by line; docs/catalogue.md shows each row that departs from what NVIDIA says.
"""

import pkgutil
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import cast

from msgspec import Struct, convert, field

from hpctl.faults.sightings import FaultSighting, parse_sightings
from hpctl.vocabulary.identity import RuleId
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict

WEEK = 7 * 86400.0
_NUMBERS = re.compile(r"\d[\d\s-]*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_STEMS = {"kernel.xid": "xid", "kernel.sxid": "sxid"}


class FaultRow(Struct, frozen=True, forbid_unknown_fields=True):
    """What one code of a check means, and what is done about it.

    `code` may list several numbers and ranges (`39-41 70-72`); empty stands for every code of the
    check that has no separate row. `nvidia` is what NVIDIA's Xid catalogue
    (docs.nvidia.com/deploy/xid-errors) or Fabric Manager guide says, empty where the fault is not
    NVIDIA's. `differs` says where hpctl departs from that, or why the treatment is what it is.
    `watch` makes a node with this finding Suspect for display, never Faulty; W and H imply it.
    `ladder` replaces the treatment's own. `settle_s` and `window_s` are FaultClass's fields, in
    seconds. `clears` is set where a kernel line's code ends otherwise than by a boot. `own` marks
    what only a node's own hardware can produce: a bus, memory or a disk that is lost. `nonfatal`
    marks an SXid that NVIDIA's guide lists as non-fatal and for which it asks for a reset: the
    line's own `Non-fatal` does not contradict the row.

    For a kernel line, `line` holds the regular expressions of its lines (kernel.md says what their
    groups mean) and `example` one of these lines. A row without `line` is read by code: the module
    is in `hpctl/detection/kernel/`.

    `seen` says where the fault was seen, or that it is known from manuals only; every row says it
    (`hpctl.faults.sightings`).

    For a counter in sysfs, `counter` is its path below the device's folder and `when` how it is
    compared with a limit of the check (fabric.md says how it is written).

    For what Slurm closes a node for, `reason` holds how the Reasons begin, `by` the programs that
    write them, `source` the files of Slurm's that do, and `advice` what a person does about it.
    """

    check: str
    code: str
    treatment: str
    meaning: str
    seen: str
    nvidia: str = ""
    differs: str = ""
    settle_s: float = 0.0
    window_s: float = WEEK
    watch: bool = False
    ladder: str = ""
    clears: ClearCondition = ClearCondition.BOOT
    own: bool = False
    nonfatal: bool = False
    line: tuple[str, ...] = ()
    example: str = ""
    counter: str = ""
    when: str = ""
    reason: tuple[str, ...] = ()
    by: str = ""
    source: str = ""
    advice: str = ""

    @property
    def rules(self) -> tuple[RuleId, ...]:
        """Return the ids of its rules: one, or one for each number."""
        if not self.code:
            return (RuleId(make_rule_prefix(self.check)),)
        return tuple(make_rule_id(self.check, code) for code in self.codes)

    @property
    def codes(self) -> tuple[str, ...]:
        """Return its codes one by one."""
        return (
            tuple(expand_fault_code_ranges(self.code))
            if _NUMBERS.fullmatch(self.code)
            else (self.code,)
        )

    @property
    def sightings(self) -> tuple[FaultSighting, ...]:
        """Where it was seen; none where it is known from manuals only."""
        return parse_sightings(self.seen)

    @property
    def suspect(self) -> bool:
        """Return whether a node with it is shown as Suspect."""
        return self.watch or self.treatment in ("W", "H")

    @property
    def acts(self) -> bool:
        """Return whether anything is done to the node, unless a site overrides it."""
        return self.treatment not in ("I", "W", "J", "H")

    @property
    def verdict(self) -> DeviceVerdict:
        """Return what the row says of the node: FAIL where it is treated, WARN where it is Suspect.

        NOTE for all others: what is the job's own fault, and what is only counted.
        """
        if self.acts:
            return DeviceVerdict.FAIL
        return DeviceVerdict.WARN if self.suspect else DeviceVerdict.NOTE


class BenignKernelLine(Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel line that a healthy node prints: what it begins with, and who says so.

    A driver that numbers its GPUs (`NVRM: GPU0 ...`) is matched without the number.
    """

    begins: str
    why: str
    source: str


class KernelDriverRow(Struct, frozen=True, forbid_unknown_fields=True):
    """A driver of `kernel.driver`: how its lines begin, and which checks speak of its hardware.

    `heads` are the first four characters of its lines, `checks` what the names of the checks begin
    with.
    """

    driver: str
    heads: tuple[str, ...]
    checks: tuple[str, ...] = ()


class HealthCheckThreshold(Struct, frozen=True, forbid_unknown_fields=True):
    """One number that a check compares with, its unit, and where it comes from."""

    value: float
    unit: str
    why: str


class HealthCheckSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One check of the agent: what it looks at, how often, and when it is believed.

    It runs each `every_s` seconds; 0 is for kernel lines, which are judged when they are read. A
    thing is reported when `seen[0]` of the last `seen[1]` runs saw it, and ends by `clears`; with
    GONE, when it has not been so for `gone_s`. What looks wrong in the first `grace_s` seconds
    after boot and after an upgrade of the agent is UNKNOWN. `shed`: 0 is never shed, the highest
    goes first when the agent is over its budget. `heads` are the first four characters of the
    kernel lines that it reads, `words` what stands later in lines that begin with any text.
    """

    name: str
    what: str
    source: str
    every_s: float = 0.0
    seen: tuple[int, int] = (1, 1)
    clears: ClearCondition = ClearCondition.GONE
    gone_s: float = 60.0
    grace_s: float = 0.0
    shed: int = 0
    limits: Mapping[str, HealthCheckThreshold] = field(default_factory=dict)
    heads: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def make_rule_prefix(check: str) -> str:
    """Return what the rule ids of a check begin with."""
    return _STEMS.get(check) or check.replace(".", "-")


def make_rule_id(check: str, code: str) -> RuleId:
    """Return the id of the rule for a code of a check."""
    return RuleId(f"{make_rule_prefix(check)}-{code}")


def expand_fault_code_ranges(numbers: str) -> Iterator[str]:
    """Yield the numbers in `11 25 39-41`."""
    for low, high in _RANGE.findall(numbers):
        yield from map(str, range(int(low), int(high or low) + 1))


_BAR = re.compile(r"(?<!\\)\|")
_QUOTED = re.compile(r"`([^`]+)`")
_FRAGMENT = re.compile(r"\{([a-z_]+)\}")
FRAGMENTS: dict[str, str] = {}
"""What `{name}` stands for in a pattern: filled when the tables are read."""
_QUOTED_COLUMNS = ("line", "heads", "words", "checks", "reason")
_FILES = ("gpu", "fabric", "host", "kernel", "outside")


def _read_markdown_table_rows(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row of a file's tables: the heading that it is under, and its cells by
    column."""
    title, columns = "", list[str]()
    for line in (pkgutil.get_data(__package__, f"{name}.md") or b"").decode().splitlines():
        if not line.startswith("|"):
            title, columns = line[3:] if line.startswith("## ") else title, []
            continue
        cells = [cell.strip().replace(r"\|", "|") for cell in _BAR.split(line[1:-1])]
        if not columns:
            columns = cells
        elif not line.startswith("|---"):
            yield title, dict(zip(columns, cells, strict=True))


def _parse_table_cell_options(text: str) -> Iterator[tuple[str, str | bool | list[str]]]:
    """`own` is a flag, `seen=2/3` two numbers."""
    for option in text.split(", ") if text else ():
        name, given, value = option.partition("=")
        yield name, (value.split("/") if name == "seen" else value) if given else True


def expand_regex_fragments(pattern: str) -> str:
    """Return a pattern with its fragments in their places. Raises KeyError for an unknown one."""
    return _FRAGMENT.sub(lambda found: expand_regex_fragments(FRAGMENTS[found[1]]), pattern)


def _parse_quoted_list_cells(cells: Mapping[str, str]) -> dict[str, str | list[str]]:
    """Return the cells, those of `_QUOTED_COLUMNS` as lists and the example without its quotes."""
    found: dict[str, str | list[str]] = {}
    for column, cell in cells.items():
        if column in _QUOTED_COLUMNS:
            found[column] = _QUOTED.findall(cell)
        else:
            found[column] = cell.strip("`") if column == "example" else cell
    return found


class _FaultTables(Struct):
    """All rows: the faults and the checks by section, the drivers, and the lines of no trouble."""

    faults: dict[str, list[FaultRow]] = field(default_factory=dict)
    checks: dict[str, list[HealthCheckSpec]] = field(default_factory=dict)
    drivers: list[KernelDriverRow] = field(default_factory=list)
    benign: list[BenignKernelLine] = field(default_factory=list)


def _read_tables() -> _FaultTables:
    """Read the files. What is misspelled or incomplete raises."""
    tables = _FaultTables()
    limits: dict[str, dict[str, HealthCheckThreshold]] = {}
    for title, cells in chain.from_iterable(map(_read_markdown_table_rows, _FILES)):
        if "limit" in cells:
            check, name = cells.pop("check"), cells.pop("limit")
            limits[check][name] = convert(cells, HealthCheckThreshold, strict=False)
            continue
        if "driver" in cells:
            tables.drivers.append(convert(_parse_quoted_list_cells(cells), KernelDriverRow))
            continue
        if "begins" in cells:
            tables.benign.append(convert(cells, BenignKernelLine))
            continue
        if "fragment" in cells:
            FRAGMENTS[cells["fragment"]] = cells["stands for"].strip("`")
            continue
        options = dict(_parse_table_cell_options(cells.pop("options")))
        row = {**options, **_parse_quoted_list_cells(cells)}
        if "treatment" in row:
            fault = convert(row, FaultRow, strict=False)
            parse_sightings(fault.seen)
            tables.faults.setdefault(title, []).append(fault)
        else:
            spec = convert(row, HealthCheckSpec, strict=False)
            tables.checks.setdefault(title, []).append(spec)
            limits[spec.name] = cast(dict[str, HealthCheckThreshold], spec.limits)
    return tables


_TABLES = _read_tables()
SECTIONS: tuple[tuple[str, tuple[FaultRow, ...]], ...] = tuple(
    (title, tuple(rows)) for title, rows in _TABLES.faults.items()
)
"""A title and its rows, as the documentation shows them."""
TIMED: tuple[tuple[str, tuple[HealthCheckSpec, ...]], ...] = tuple(
    (title, tuple(specs))
    for title, specs in _TABLES.checks.items()
    if not specs[0].name.startswith("kernel.")
)
"""The checks that run at intervals, by the same titles."""
CHECKS: tuple[HealthCheckSpec, ...] = tuple(chain.from_iterable(specs for _, specs in TIMED))
KERNEL_CHECKS: tuple[HealthCheckSpec, ...] = tuple(
    spec for spec in chain.from_iterable(_TABLES.checks.values()) if spec.name.startswith("kernel.")
)
"""The checks of the kernel's lines, which are judged when they are read."""
BENIGN_LINES: tuple[BenignKernelLine, ...] = tuple(_TABLES.benign)
"""The kernel lines that a healthy node prints."""


DRIVERS: tuple[KernelDriverRow, ...] = tuple(_TABLES.drivers)
"""The drivers whose unknown lines are counted."""


def _index_rows_by_rule() -> dict[RuleId, FaultRow]:
    index: dict[RuleId, FaultRow] = {}
    for row in chain.from_iterable(rows for _, rows in SECTIONS):
        for rule in row.rules:
            if rule in index:
                raise ValueError(f"rule {rule} is in the fault table twice")
            index[rule] = row
    return index


ROWS: MappingProxyType[RuleId, FaultRow] = MappingProxyType(_index_rows_by_rule())
"""Every row by its rules' ids, in order of precedence."""


def list_check_fault_rows(check: str) -> tuple[FaultRow, ...]:
    """Return the rows of one check, in order of precedence."""
    every = chain.from_iterable(rows for _, rows in SECTIONS)
    return tuple(row for row in every if row.check == check)
