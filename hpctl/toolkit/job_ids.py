"""Job ids as users of Slurm write them, and what they name: `12`, `12_3`, `12+1`.

slurmctld gives each task of an array and each component of a heterogeneous job a separate number.
Users know a task by its array and index (`12_3`), and a component by its leader and offset
(`12+1`), as squeue shows them. Here alone such ids are written and read.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

from hpctl.toolkit.bounds import parse_count

_ID = re.compile(r"([0-9]{1,10})(?:([_+])([0-9]{1,10}))?")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?::([0-9]+))?)?")


class ParsedJobId(Struct, frozen=True):
    """An id as its user wrote it: a number, and a task or a component where it names one."""

    number: int
    task: int | None = None
    component: int | None = None


def parse_job_id(text: str) -> ParsedJobId | None:
    """Read `12`, `12_3` or `12+1`; None for any other text."""
    found = _ID.fullmatch(text) if text.isascii() else None
    if found is None:
        return None
    number, part = parse_count(found[1]), parse_count(found[3] or "")
    if found[2] == "_":
        return ParsedJobId(number, task=part)
    if found[2] == "+":
        return ParsedJobId(number, component=part)
    return ParsedJobId(number)


def format_array_task_id(array: int, tasks: str) -> str:
    """Write the id of a task of an array, `12_3`, or of several that wait, `12_[1-3,9%2]`."""
    return f"{array}_{tasks}" if tasks.isdigit() else f"{array}_[{tasks}]"


def format_het_component_id(leader: int, offset: int) -> str:
    """Write the id of a component of a heterogeneous job, `12+1`."""
    return f"{leader}+{offset}"


def parse_array_task_ranges(tasks: str) -> Iterator[range]:
    """Yield the tasks that a list as `7`, `1-3`, `0-20:2,9%4` names; nothing for `...` and noise.

    Slurm cuts a long list off with `...`.
    """
    for part in tasks.partition("%")[0].split(","):
        found = _RANGE.fullmatch(part)
        if found is not None:
            first, last = parse_count(found[1]), parse_count(found[2] or found[1])
            yield range(first, last + 1, parse_count(found[3] or "1") or 1)
