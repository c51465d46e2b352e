"""Match kernel lines against the patterns of the fault tables' rows.

The patterns of several checks become one regular expression: a line is matched once, whatever the
number of rows, and the first pattern in the tables' order wins. Patterns in a row that begin with
the same fragment share it, so that a long beginning is matched once for all of them.
hpctl/faults/kernel.md defines the named groups of a pattern.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import chain, groupby

from msgspec import Struct

from hpctl.detection.kernel.line import ENDED, KernelFaultLine, make_kernel_fault_line
from hpctl.detection.kernel.xid import normalize_pci_address
from hpctl.detection.kmsg import KernelRecord
from hpctl.faults.table import FaultRow, expand_regex_fragments, list_check_fault_rows

_GROUP = re.compile(r"\(\?P<(\w+)>")
_LEAD = re.compile(r"\{[a-z_]+\}")
_DEVICES = ("pci", "cpu", "neuron", "device")
_NUMBERED = ("cpu", "neuron")
"""Groups that contain a number: the device is the group's name and the number."""


class _RegexGroupName(Struct, frozen=True):
    """A named group of the joined pattern, and what the row's own pattern calls it."""

    name: str
    means: str


class _FaultRowPattern(Struct, frozen=True):
    """One pattern of a row within the joined pattern."""

    row: FaultRow
    groups: tuple[_RegexGroupName, ...]


class KernelLineMatcher:
    """A reader of the lines of some checks by the patterns of their rows."""

    def __init__(self, checks: Iterable[str]) -> None:
        self._alternatives: dict[str, _FaultRowPattern] = {}
        patterns: list[tuple[FaultRow, str]] = []
        for row in chain.from_iterable(map(list_check_fault_rows, checks)):
            patterns += [(row, pattern) for pattern in row.line]
        parts = [
            self._join_fault_row_patterns(lead, tuple(alike))
            for lead, alike in groupby(
                patterns, key=lambda one: _find_pattern_literal_prefix(one[1])
            )
        ]
        self._pattern = re.compile("|".join(parts)) if parts else None

    def _join_fault_row_patterns(
        self, lead: str, patterns: tuple[tuple[FaultRow, str], ...]
    ) -> str:
        """Return the patterns as one, with names of their own, and note what these mean."""
        shared: list[_RegexGroupName] = []
        begins = self._rename_regex_groups(lead, shared, f"s{len(self._alternatives)}")
        parts = []
        for row, pattern in patterns:
            name = f"p{len(self._alternatives)}"
            own: list[_RegexGroupName] = []
            text = self._rename_regex_groups(pattern.removeprefix(lead), own, name)
            self._alternatives[name] = _FaultRowPattern(row, (*shared, *own))
            parts.append(f"(?P<{name}>{text})")
        return f"{begins}(?:{'|'.join(parts)})"

    @staticmethod
    def _rename_regex_groups(pattern: str, groups: list[_RegexGroupName], prefix: str) -> str:
        def rename_regex_group(found: re.Match[str]) -> str:
            name = f"{prefix}_{len(groups)}"
            groups.append(_RegexGroupName(name, found[1]))
            return f"(?P<{name}>"

        return _GROUP.sub(rename_regex_group, expand_regex_fragments(pattern))

    def gather(self, record: KernelRecord) -> KernelFaultLine | None:
        """Return the values of a record by the first pattern that matches it; None where none
        does."""
        if self._pattern is None or (match := self._pattern.match(record.text)) is None:
            return None
        # The group around a pattern is closed after those within it.
        found = self._alternatives[str(match.lastgroup)]
        said = dict(_list_regex_group_values(match, found.groups))
        code = found.row.code or _find_code_group_name(said)
        ended = ENDED if "ended" in said else ""
        return make_kernel_fault_line(
            found.row.check,
            f"{ended}{code}",
            record,
            _get_matched_device_name(said),
            said.get("pid"),
        )


def _find_pattern_literal_prefix(pattern: str) -> str:
    """Return the fragment that a pattern begins with."""
    found = _LEAD.match(pattern)
    return found[0] if found else ""


def _list_regex_group_values(
    match: re.Match[str], groups: Iterable[_RegexGroupName]
) -> Iterator[tuple[str, str]]:
    """Yield the values of the line by the names of the row's groups."""
    for group in groups:
        value = match[group.name]
        if value is not None:
            yield group.means, value


def _get_matched_device_name(said: dict[str, str]) -> str:
    for name in _DEVICES:
        if name in said:
            value = said[name]
            if name == "pci":
                return normalize_pci_address(value)
            return f"{name}{value}" if name in _NUMBERED else value
    return ""


def _find_code_group_name(said: dict[str, str]) -> str:
    """Return the name of the group that is a code: in rows that cover every code."""
    return next(name for name in said if name not in (*_DEVICES, "pid", "ended"))
