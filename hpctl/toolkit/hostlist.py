"""Slurm's hostlists: `n[1-3,7],login` as a tuple of names, and back; nodes by nearness.

Strict on purpose: whatever a configuration file or a command's output holds, a name that is
not plainly a host name never reaches an argument list. Checked in the tests against
`scontrol show hostnames`.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TypeVar

Name = TypeVar("Name", bound=str)

MAX_HOSTS = 100_000
"""As many as hpctl will expand: Slurm itself stops at 65 536 in one bracket."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*\Z")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z")
_TAIL = re.compile(r"(.*?)(\d+)\Z")
_MAX_DIGITS = 18


class HostlistError(ValueError):
    """A hostlist that cannot be read. `part` is the piece that is wrong."""

    def __init__(self, message: str, part: str) -> None:
        super().__init__(f"{message}: {part!r}")
        self.part = part


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Return the names of a hostlist, in its order, repeats kept as Slurm keeps them.

    An empty text is no names. Raises HostlistError with the bad part.
    """
    if not text:
        return ()
    names: list[str] = []
    for part in _split_hostlist_parts(text):
        for name in _expand_hostlist_part(part):
            if len(names) >= MAX_HOSTS:
                raise HostlistError(f"more than {MAX_HOSTS} hosts", part)
            names.append(name)
    return tuple(names)


def fold_hostlist(names: Iterable[str]) -> str:
    """Return the shortest hostlist we can write for a set of names, sorted, repeats dropped.

    `expand(fold(names))` is the same set. Raises HostlistError for a name that is not one.
    """
    groups: dict[tuple[str, int], set[int]] = {}
    whole: set[str] = set()
    for name in names:
        if not is_host_name(name):
            raise HostlistError("not a host name", name)
        match = _TAIL.match(name)
        if match is None or not match[1] or len(match[2]) > _MAX_DIGITS:
            whole.add(name)
            continue
        prefix, digits = match[1], match[2]
        # n07 and n7 are two hosts, and n09-n10 keep their width: only equal widths fold.
        groups.setdefault((prefix, len(digits)), set()).add(int(digits))
    parts = sorted(whole)
    parts += [_fold_numbered_names(*key, groups[key]) for key in sorted(groups)]
    return ",".join(parts)


def format_node_names(names: Sequence[str]) -> str:
    """Return names for people: as a hostlist, or with commas where one is not plainly a name."""
    return fold_hostlist(names) if all(map(is_host_name, names)) else ", ".join(names)


def is_host_name(name: str) -> bool:
    """Return whether this is plainly one host name: letters, digits, `_`, `.` and `-` inside."""
    return len(name) <= 255 and _NAME.match(name) is not None


def split_names_into_batches(names: Iterable[str], size: int = 100) -> Iterator[tuple[str, ...]]:
    """Yield the names in order, in tuples of at most `size`."""
    batch: list[str] = []
    for name in names:
        batch.append(name)
        if len(batch) == size:
            yield tuple(batch)
            batch = []
    if batch:
        yield tuple(batch)


def sort_nodes_by_leaf_proximity(
    nodes: Iterable[Name], job: Collection[Name], leaves: Mapping[Name, str]
) -> list[Name]:
    """`nodes`, first those whose leaf has most of the job's; else in the order that they had.

    `leaves`: the leaf switch or block of each node, as Slurm's topology has it; empty where none is
    known, which leaves the order as it was.
    """
    shared = Counter(leaves[node] for node in job if node in leaves)
    return sorted(nodes, key=lambda node: -shared[leaves.get(node, "")])


def _split_hostlist_parts(text: str) -> Iterator[str]:
    """Yield the parts between commas that are outside brackets."""
    start = depth = 0
    for at, char in enumerate(text):
        if char == "[":
            depth += 1
        elif char == "]":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
        if depth not in (0, 1):
            raise HostlistError("brackets do not match", text[start : at + 1])
    if depth:
        raise HostlistError("a bracket is not closed", text[start:])
    yield text[start:]


def _expand_hostlist_part(part: str) -> Iterator[str]:
    """Yield the names of one part, such as `rack[1-2]n[01-03]`."""
    if not part:
        raise HostlistError("an empty name", part)
    pieces: list[list[str]] = []
    count = 1
    for at, piece in enumerate(re.split(r"[\[\]]", part)):
        if at % 2:
            values = _expand_bracket_ranges(piece, part)
            count *= len(values)
            if count > MAX_HOSTS:
                raise HostlistError(f"more than {MAX_HOSTS} hosts", part)
            pieces.append(values)
        elif _PLAIN.match(piece):
            pieces.append([piece])
        else:
            raise HostlistError("not a host name", piece)
    for combination in product(*pieces):
        name = "".join(combination)
        if not is_host_name(name):
            raise HostlistError("not a host name", name)
        yield name


def _expand_bracket_ranges(inside: str, part: str) -> list[str]:
    """Return the numbers of one bracket, with their leading zeros."""
    values: list[str] = []
    for item in inside.split(","):
        match = _RANGE.match(item)
        if match is None or len(match[1]) > _MAX_DIGITS or len(match[2] or "") > _MAX_DIGITS:
            raise HostlistError("not a number or a range", item or part)
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise HostlistError("a range that runs backwards", item)
        if int(high) - int(low) >= MAX_HOSTS - len(values):
            raise HostlistError(f"more than {MAX_HOSTS} hosts", item)
        values += [str(n).zfill(len(low)) for n in range(int(low), int(high) + 1)]
    return values


def _fold_numbered_names(prefix: str, width: int, numbers: set[int]) -> str:
    """Return one prefix and width as `prefix[1-3,7]`, or a plain name where there is one number."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    texts = [
        str(a).zfill(width) if a == b else f"{str(a).zfill(width)}-{str(b).zfill(width)}"
        for a, b in runs
    ]
    if len(numbers) == 1:
        return prefix + texts[0]
    return f"{prefix}[{','.join(texts)}]"
