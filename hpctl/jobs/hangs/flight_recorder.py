"""Who did not come to a collective, by the dumps of PyTorch's flight recorder.

Each rank numbers the collectives of each process group. The collective at which a group is stopped
is the oldest one that some rank has begun and not completed; a member that never issued it did not
come. A rank that waits itself, in whatever group, is a victim or may be one, and is not named.
Point-to-point operations have separate numbers on each side and are not aligned: a rank that waits
in one is not named either.

The functions are pure and take parsed entries; `hpctl.jobs.hangs.flight_files` reads the files.
Fields: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (dump version 2.10, torch 2.11).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.jobs.hangs.wait_circles import find_circular_wait
from hpctl.toolkit.compat import StrEnum

MOST_NAMED: Final = 8
"""Ranks that a sentence names."""
MOST_COMPARED: Final = 64
"""Ranks that a verdict lists with their last sizes."""
MOST_WAITING: Final = 4096
"""Ranks that a verdict lists as waiting: all of them, or none where there are more."""
_WHOLE_JOB: Final = "default_pg"
"""The description of the group of all ranks (torch/distributed/distributed_c10d.py)."""
_LATE: Final = 0.8
"""Of the group's timeout: a rank that comes so long after the others finds them gone or leaving."""
_LEAST_LATE_S: Final = 5.0
"""Seconds: a machine that is busy for a moment explains less than that."""
_LEAST_TOGETHER: Final = 3
"""Ranks of which one can be later than the others."""
_SAME_SIZES: Final = frozenset(
    {"all_reduce", "broadcast", "reduce", "barrier", "_all_gather_base", "_reduce_scatter_base"}
    | {"allreduce_coalesced", "all_gather_into_tensor", "reduce_scatter_tensor"}
)
"""Collectives whose tensors have the same size on every rank. Others may differ by rank."""


_NEEDS_ALL: Final = frozenset(
    {"all_reduce", "barrier", "all_gather", "_all_gather_base", "_reduce_scatter_base"}
    | {"reduce_scatter", "all_to_all", "alltoall_base", "allreduce_coalesced"}
)
"""Collectives that no rank completes before every rank has issued them."""


class FlightRecorderEntry(Struct, frozen=True):
    """One collective or point-to-point operation of one rank.

    `group` is the process group's name, `seq` its number there. `sizes` are the input tensors'
    numbers of elements. `place` is the call in the job's own code, `function (file:line)`.
    `created_ns` is when it was issued (POSIX ns, by the clock of its node), 0 if unknown;
    `timeout_s` is its group's timeout in seconds, 0 if unknown.
    """

    group: str
    seq: int
    op: str
    sizes: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    completed: bool = False
    p2p: bool = False
    place: str = ""
    may_fail: bool = False
    """It has ended, and the recorder does not say whether with an error."""
    created_ns: int = 0
    timeout_s: float = 0.0

    @property
    def what(self) -> str:
        """Return the operation for a person: `all_reduce of 65536 Float`."""
        if not self.sizes:
            return self.op
        return f"{self.op} of {sum(self.sizes)} {'/'.join(dict.fromkeys(self.dtypes))}".rstrip()

    @property
    def call(self) -> tuple[str, tuple[int, ...], tuple[str, ...]]:
        """Return what must be the same on all ranks of the group."""
        if self.op not in _SAME_SIZES:
            return self.op, (), ()
        return self.op, self.sizes, self.dtypes


class FlightRecorderProcessGroup(Struct, frozen=True):
    """A process group: its name, its description and its global ranks. `listed`: the dumps list its
    ranks; else they are those that issued something there."""

    name: str
    description: str = ""
    ranks: tuple[int, ...] = ()
    listed: bool = True


class FlightRecorderDump(Struct, frozen=True):
    """What one rank dumped. `whole`: no entry was overwritten in the recorder's ring buffer."""

    rank: int
    groups: tuple[FlightRecorderProcessGroup, ...] = ()
    entries: tuple[FlightRecorderEntry, ...] = ()
    whole: bool = False


class FlightRecorderHangCause(StrEnum):
    """What the dumps show."""

    ABSENT = "absent"
    """Ranks did not come to a collective that others wait in."""
    DIFFERENT = "different"
    """Ranks issued different collectives under one number: the program's branches differ."""
    SILENT = "silent"
    """Ranks wrote no dump, while those that did wait in a collective."""
    LATE = "late"
    """A rank came to a collective when the others had given up waiting in it."""
    TOGETHER = "together"
    """All ranks came to the collective, and it does not end."""
    NOTHING = "nothing"
    """No rank waits in a collective, or no rank can be named."""


class FlightRecorderHangVerdict(Struct, frozen=True):
    """Who it is. `ranks` are global ranks; `world` is the size of the largest group; `text` is a
    sentence for a person; `dumps` is how many ranks' dumps were read.

    `waiting` are ranks that wait in a collective. `last_sizes` are the numbers of elements with
    which ranks came to the last collective of a group, `(rank, number)`: only where these differ.
    `only_silent` is the one rank of the largest group that wrote no dump, where all others did.
    """

    cause: FlightRecorderHangCause = FlightRecorderHangCause.NOTHING
    text: str = ""
    ranks: tuple[int, ...] = ()
    world: int = 0
    dumps: int = 0
    waiting: tuple[int, ...] = ()
    last_sizes: tuple[tuple[int, int], ...] = ()
    only_silent: int | None = None


_GroupKey = int
"""Counts the groups by their names and ranks: up to torch 2.7, the groups of one split_group share
their name."""


class _StalledCollective(Struct, frozen=True):
    """A group that makes no progress: the entries of the ranks that wait at `seq`, and who did not
    come. `came` has the entries of all ranks at `seq`, of those that completed it too. `silent`
    wrote no dump; `unread` wrote one that is not known."""

    key: _GroupKey
    group: FlightRecorderProcessGroup
    seq: int
    waiting: Mapping[int, FlightRecorderEntry]
    came: Mapping[int, FlightRecorderEntry]
    absent: tuple[int, ...]
    silent: tuple[int, ...]
    unread: tuple[int, ...]

    @property
    def name(self) -> str:
        return _format_process_group_name(self.group)


class _FlightRecorderEntryIndex(Struct):
    """The entries of all ranks, by group, rank and number."""

    by_group: dict[_GroupKey, dict[int, dict[int, FlightRecorderEntry]]] = field(
        default_factory=dict
    )
    groups: dict[_GroupKey, FlightRecorderProcessGroup] = field(default_factory=dict)
    whole: dict[int, bool] = field(default_factory=dict)
    in_p2p: set[int] = field(default_factory=set)
    unread: frozenset[int] = frozenset()
    _keys: dict[tuple[str, tuple[int, ...]], _GroupKey] = field(default_factory=dict)
    _seen: dict[tuple[str, int], tuple[tuple[int, ...], _GroupKey]] = field(default_factory=dict)

    def find_process_group_key(self, name: str, ranks: tuple[int, ...]) -> _GroupKey:
        """Return the key of a group.

        The hash of a large group takes as long as the group, and each of its ranks names it: the
        same object is hashed once. `_seen` keeps the object, so that its id stays its own.
        """
        known = self._seen.get((name, id(ranks)))
        if known is not None:
            return known[1]
        key = self._keys.setdefault((name, ranks), len(self._keys))
        self._seen[name, id(ranks)] = (ranks, key)
        return key

    def add(self, dump: FlightRecorderDump) -> None:
        self.whole[dump.rank] = dump.whole
        keys: dict[str, _GroupKey] = {}
        for group in dump.groups:
            key = self.find_process_group_key(group.name, group.ranks)
            keys[group.name] = key
            self.groups.setdefault(key, group)
        for entry in dump.entries:
            if entry.p2p:
                self.in_p2p |= set() if entry.completed else {dump.rank}
                continue
            place = keys.get(entry.group)
            ranks = self.by_group.setdefault(
                self.find_process_group_key(entry.group, ()) if place is None else place, {}
            )
            # Coalesced collectives share one number: the first of them is the one that is compared.
            ranks.setdefault(dump.rank, {}).setdefault(entry.seq, entry)


def diagnose_hang_from_recorder_dumps(
    dumps: Iterable[FlightRecorderDump], unread: Collection[int] = ()
) -> FlightRecorderHangVerdict:
    """Align the ranks' collectives by their numbers, and name the ranks that the others wait for.

    `unread` are ranks that wrote a dump which could not be read. Dumps may be missing, and ring
    buffers may have dropped old entries; what is not known names no rank.
    """
    known = _FlightRecorderEntryIndex(unread=frozenset(unread))
    for dump in _add_missing_group_ranks(list(dumps)):
        known.add(dump)
    listed = [len(group.ranks) for group in known.groups.values() if group.listed]
    world = max(listed, default=0)
    found = [_find_stalled_collective(key, known) for key in known.groups]
    stops = [stop for stop in found if stop is not None]
    stops.sort(key=lambda stop: (-len(stop.waiting), stop.group.name))
    verdict = (
        _find_ranks_in_mismatched_collective(stops, known)
        or _find_ranks_absent_from_collective(stops, known)
        or _find_circular_wait_rank(known)
        or _find_ranks_without_dump(stops)
        or _find_common_stalled_collective(stops)
        or _find_rank_late_to_collective(known)
        or FlightRecorderHangVerdict(text=_describe_unknown_hang_cause(stops))
    )
    named = verdict.cause in (FlightRecorderHangCause.DIFFERENT, FlightRecorderHangCause.ABSENT)
    sizes = () if named else _compare_last_collective_sizes(known)
    waiting = tuple(sorted(set(chain.from_iterable(stop.waiting for stop in stops))))
    if len(waiting) > MOST_WAITING:
        waiting = ()
    return replace(
        verdict,
        world=world,
        dumps=len(known.whole),
        waiting=waiting,
        last_sizes=sizes,
        only_silent=_find_only_rank_without_dump(known),
    )


def _find_only_rank_without_dump(known: _FlightRecorderEntryIndex) -> int | None:
    """Return the one rank of the largest group that wrote no dump; None where there are several, or
    where so few wrote one that the dumps may be elsewhere."""
    listed = [group.ranks for group in known.groups.values() if group.listed]
    ranks = max(listed, key=len, default=())
    silent = [rank for rank in ranks if rank not in known.whole and rank not in known.unread]
    return silent[0] if len(silent) == 1 and len(ranks) > 2 else None


def _add_missing_group_ranks(dumps: Sequence[FlightRecorderDump]) -> Sequence[FlightRecorderDump]:
    """Return the dumps, with the ranks of the groups of which a dump does not list them: those that
    issued something there, and all that wrote a dump for the group of the whole job."""
    groups = chain.from_iterable(dump.groups for dump in dumps)
    unlisted = {group.name for group in groups if not group.ranks}
    if not unlisted:
        return dumps
    members: dict[str, set[int]] = defaultdict(set)
    for dump in dumps:
        whole_job = {group.name for group in dump.groups if group.description == _WHOLE_JOB}
        for name in {entry.group for entry in dump.entries if not entry.p2p} | whole_job:
            members[name].add(dump.rank)
    ranks = {name: tuple(sorted(members[name])) for name in unlisted}
    return [_add_missing_ranks_to_dump(dump, ranks) for dump in dumps]


def _add_missing_ranks_to_dump(
    dump: FlightRecorderDump, ranks: Mapping[str, tuple[int, ...]]
) -> FlightRecorderDump:
    """Return a dump with the ranks of the groups that are named."""
    groups = []
    for group in dump.groups:
        found = ranks.get(group.name)
        groups.append(group if found is None else replace(group, ranks=found, listed=False))
    return replace(dump, groups=tuple(groups))


def _find_stalled_collective(
    key: _GroupKey, known: _FlightRecorderEntryIndex
) -> _StalledCollective | None:
    """Return the collective at which a group is stopped; None where there is none."""
    group = known.groups[key]
    issued = known.by_group.get(key, {})
    issued = _mark_failed_entries_incomplete(issued)
    known.by_group[key] = issued
    every = chain.from_iterable(entries.values() for entries in issued.values())
    seq = min((entry.seq for entry in every if not entry.completed), default=None)
    if seq is None:
        return None
    waiting = {
        rank: entries[seq]
        for rank, entries in sorted(issued.items())
        if seq in entries and not entries[seq].completed
    }
    came = {rank: entries[seq] for rank, entries in sorted(issued.items()) if seq in entries}
    members = [rank for rank in group.ranks if rank in known.whole]
    absent = tuple(
        rank for rank in members if _has_rank_skipped_collective(issued.get(rank), seq, known, rank)
    )
    others = [rank for rank in group.ranks if rank not in known.whole]
    unread = tuple(rank for rank in others if rank in known.unread)
    silent = tuple(rank for rank in others if rank not in known.unread)
    return _StalledCollective(key, group, seq, waiting, came, absent, silent, unread)


def _mark_failed_entries_incomplete(
    issued: dict[int, dict[int, FlightRecorderEntry]],
) -> dict[int, dict[int, FlightRecorderEntry]]:
    """Return the entries of a group, with those open that ended although a rank never issued them:
    they failed, and the ranks had waited there.

    Where as many ranks are behind as ahead, a lost peer may have failed one collective of some and
    the next one of the others: nothing is known then.
    """
    last = {rank: max(entries) for rank, entries in issued.items() if entries}
    lowest = min(last.values(), default=0)
    behind = sum(number == lowest for number in last.values())
    if 2 * behind >= len(last):
        return issued
    opened: dict[int, dict[int, FlightRecorderEntry]] = {}
    for rank, entries in issued.items():
        later = {
            seq: _mark_failed_entry_incomplete(entry)
            for seq, entry in entries.items()
            if seq > lowest
        }
        opened[rank] = {**entries, **later}
    return opened


def _mark_failed_entry_incomplete(entry: FlightRecorderEntry) -> FlightRecorderEntry:
    failed = entry.may_fail and entry.op in _NEEDS_ALL
    return replace(entry, completed=False) if failed else entry


def _has_rank_skipped_collective(
    entries: Mapping[int, FlightRecorderEntry] | None,
    seq: int,
    known: _FlightRecorderEntryIndex,
    rank: int,
) -> bool:
    """Return whether a rank is known not to have issued a collective yet."""
    if not entries:
        return known.whole[rank]
    return max(entries) < seq


def _find_ranks_in_mismatched_collective(
    stops: Sequence[_StalledCollective], known: _FlightRecorderEntryIndex
) -> FlightRecorderHangVerdict | None:
    """Return ranks that came under the same number to another collective than most others.

    A rank may have completed its own: the root of a broadcast does not wait for the others.
    """
    for stop in stops:
        calls: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for rank, entry in stop.came.items():
            calls[entry.call].append(rank)
        if len(calls) < 2:
            continue
        ordered = sorted(calls.values(), key=lambda ranks: (-len(ranks), ranks[0]))
        most, others = ordered[0], ordered[1:]
        odd = tuple(chain.from_iterable(others))
        clear = len(most) > len(odd)
        parts = [
            f"{_format_ranks(ranks)} called {stop.came[ranks[0]].what}"
            f"{_describe_collective_call_location(stop.came[ranks[0]])}"
            for ranks in (*others, most)[:3]
        ]
        swapped = (
            _has_rank_swapped_collective_order(stop, known, odd[0], most[0]) if clear else None
        )
        order = f"; {_format_ranks(odd)} called them in another order" if swapped else ""
        text = (
            f"the ranks differ in collective {stop.seq} of {stop.name}: {', '.join(parts)}{order}"
        )
        return FlightRecorderHangVerdict(
            FlightRecorderHangCause.DIFFERENT, text, odd if clear else ()
        )
    return None


def _has_rank_swapped_collective_order(
    stop: _StalledCollective, known: _FlightRecorderEntryIndex, odd: int, other: int
) -> bool:
    """Return whether two ranks called the same two collectives, each the other's first."""
    issued = known.by_group[stop.key]
    by_odd = {entry.call for seq, entry in issued[odd].items() if seq > stop.seq}
    by_other = {entry.call for seq, entry in issued[other].items() if seq > stop.seq}
    return stop.came[other].call in by_odd and stop.came[odd].call in by_other


def _find_ranks_absent_from_collective(
    stops: Sequence[_StalledCollective], known: _FlightRecorderEntryIndex
) -> FlightRecorderHangVerdict | None:
    """Return ranks that did not come to a collective and wait in no operation themselves."""
    waiting = set(known.in_p2p).union(*(stop.waiting for stop in stops))
    for stop in stops:
        named = tuple(rank for rank in stop.absent if rank not in waiting)
        if not named or len(named) > len(stop.waiting):
            continue
        last = _describe_last_collective_of_rank(known, stop, named[0]) if len(named) == 1 else ""
        text = f"{_format_ranks(named)} did not come to {_describe_stalled_collective(stop)}{last}"
        return FlightRecorderHangVerdict(FlightRecorderHangCause.ABSENT, text, named)
    return None


def _list_ranks_missing_collective(
    known: _FlightRecorderEntryIndex, key: _GroupKey, seq: int
) -> Iterator[int]:
    """Yield the members of a group that are known not to have issued one of its collectives."""
    issued = known.by_group[key]
    for rank in known.groups[key].ranks:
        if rank in known.whole and _has_rank_skipped_collective(issued.get(rank), seq, known, rank):
            yield rank


def _find_circular_wait_rank(known: _FlightRecorderEntryIndex) -> FlightRecorderHangVerdict | None:
    """Return the rank of a circle of ranks that wait for each other in different groups.

    The last collective of each rank counts, also where it has failed since.
    """
    last: dict[int, tuple[_GroupKey, FlightRecorderEntry]] = {}
    for key, issued in known.by_group.items():
        for rank, entries in issued.items():
            if not entries or key not in known.groups:
                continue
            entry = entries[max(entries)]
            if rank not in last or entry.created_ns > last[rank][1].created_ns:
                last[rank] = (key, entry)
    # Ranks that wait in the same collective share one set: a large job has few different ones.
    absent: dict[tuple[_GroupKey, int], frozenset[int]] = {}
    waits: dict[int, frozenset[int]] = {}
    for rank, (key, entry) in last.items():
        if entry.op not in _NEEDS_ALL or not entry.created_ns:
            continue
        if entry.completed and not entry.may_fail:
            continue
        place = (key, entry.seq)
        if place not in absent:
            absent[place] = frozenset(_list_ranks_missing_collective(known, key, entry.seq))
        waits[rank] = absent[place]
    circle, only = find_circular_wait(waits)
    if not circle:
        return None
    places = [
        f"rank {rank} in {last[rank][1].op} of"
        f" {_format_process_group_name(known.groups[last[rank][0]])}"
        f"{_describe_collective_call_location(last[rank][1])}"
        for rank in circle[:3]
    ]
    text = f"the ranks wait for each other in different groups: {', '.join(places)}"
    return FlightRecorderHangVerdict(
        FlightRecorderHangCause.DIFFERENT, text, () if only is None else (only,)
    )


def _format_process_group_name(group: FlightRecorderProcessGroup) -> str:
    return group.description or f"process group {group.name}"


def _find_ranks_without_dump(
    stops: Sequence[_StalledCollective],
) -> FlightRecorderHangVerdict | None:
    """Return ranks without a dump, where they are clearly fewer than those with one.

    Where half of the dumps or more are missing, the dumps are more likely to be elsewhere.
    """
    for stop in stops:
        unknown = len(stop.silent) + len(stop.unread)
        if not stop.silent or stop.absent or 2 * unknown >= len(stop.group.ranks):
            continue
        text = (
            f"{_format_ranks(stop.silent)} wrote no flight recorder dump (it had ended, or did not"
            f" run Python code), and the others stand at {_describe_stalled_collective(stop)}"
        )
        return FlightRecorderHangVerdict(FlightRecorderHangCause.SILENT, text, stop.silent)
    return None


def _find_common_stalled_collective(
    stops: Sequence[_StalledCollective],
) -> FlightRecorderHangVerdict | None:
    for stop in stops:
        if stop.group.listed and 0 < len(stop.waiting) == len(stop.group.ranks):
            text = (
                f"all {len(stop.waiting)} ranks came to {_describe_stalled_collective(stop)}, "
                f"and it did not end"
            )
            return FlightRecorderHangVerdict(FlightRecorderHangCause.TOGETHER, text)
    return None


def _find_rank_late_to_collective(
    known: _FlightRecorderEntryIndex,
) -> FlightRecorderHangVerdict | None:
    """Return the rank that issued the last collective of a group long after all others, which had
    waited for most of their timeout by then.

    How long a rank took from one collective to the next is by its own clock, so that how far the
    nodes' clocks differ does not count.
    """
    for key, group in known.groups.items():
        came = _list_last_collective_entries(known, key)
        pauses = _measure_collective_issue_delays(known, key, came)
        if len(came) < _LEAST_TOGETHER or len(pauses) < len(came):
            continue
        *others, rank = sorted(pauses, key=pauses.__getitem__)
        lateness_s = pauses[rank] - pauses[others[-1]]
        spread_s = pauses[others[-1]] - pauses[others[0]]
        last = came[rank]
        limit_s = max(_LEAST_LATE_S, _LATE * last.timeout_s)
        failed = all(entry.may_fail or not entry.completed for entry in came.values())
        if not failed or not last.timeout_s or lateness_s < max(limit_s, 2 * spread_s):
            continue
        name = _format_process_group_name(group)
        text = (
            f"rank {rank} did not come to collective {last.seq} of {name} ({last.what}) until"
            f" {lateness_s:.0f} s after the others, which had given up"
        )
        return FlightRecorderHangVerdict(FlightRecorderHangCause.LATE, text, (rank,))
    return None


def _measure_collective_issue_delays(
    known: _FlightRecorderEntryIndex, key: _GroupKey, came: Mapping[int, FlightRecorderEntry]
) -> dict[int, float]:
    """Return for how many seconds each rank had issued the collective before when it issued this
    one; nothing of ranks of which that is not known."""
    pauses = {}
    for rank, last in came.items():
        before = known.by_group[key][rank].get(last.seq - 1)
        if before is not None and before.created_ns and last.created_ns and last.op in _NEEDS_ALL:
            pauses[rank] = (last.created_ns - before.created_ns) / 1e9
    return pauses


def _list_last_collective_entries(
    known: _FlightRecorderEntryIndex, key: _GroupKey
) -> dict[int, FlightRecorderEntry]:
    """Return the entries of the newest collective of a group by their ranks; none where a rank that
    wrote a dump has not issued it."""
    issued = {rank: entries for rank, entries in known.by_group.get(key, {}).items() if entries}
    last = max((max(entries) for entries in issued.values()), default=0)
    members = [rank for rank in known.groups[key].ranks if rank in known.whole]
    came = {rank: issued[rank][last] for rank in members if last in issued.get(rank, {})}
    return came if len(came) == len(members) else {}


def _compare_last_collective_sizes(known: _FlightRecorderEntryIndex) -> tuple[tuple[int, int], ...]:
    """Return with how many elements each rank came to the last collective of a group; empty where
    the numbers are the same."""
    for key in known.groups:
        sizes = {
            rank: sum(entry.sizes)
            for rank, entry in _list_last_collective_entries(known, key).items()
        }
        if len(set(sizes.values())) > 1:
            return tuple(sorted(sizes.items()))[:MOST_COMPARED]
    return ()


def _describe_unknown_hang_cause(stops: Sequence[_StalledCollective]) -> str:
    if not stops:
        return "no rank waits in a collective"
    stop = stops[0]
    silent = f", {_format_ranks(stop.silent)} wrote no dump" if stop.silent else ""
    unread = f", the dump of {_format_ranks(stop.unread)} cannot be read" if stop.unread else ""
    return (
        f"the ranks stand at {_describe_stalled_collective(stop)}{silent}{unread}; the dumps "
        f"name no rank"
    )


def _describe_stalled_collective(stop: _StalledCollective) -> str:
    """Return `collective 5 of default_pg (all_reduce of 65536 Float), where rank 0 waits in
    ...`."""
    first = next(iter(stop.waiting.values()))
    ranks = tuple(stop.waiting)
    many = "waits" if len(ranks) == 1 else "wait"
    return (
        f"collective {stop.seq} of {stop.name} ({first.what}), where {_format_ranks(ranks)} {many}"
        + (f" in {first.place}" if first.place else "")
    )


def _describe_last_collective_of_rank(
    known: _FlightRecorderEntryIndex, stop: _StalledCollective, rank: int
) -> str:
    """Return the last collective of a rank that did not come."""
    entries = known.by_group.get(stop.key, {}).get(rank)
    if not entries:
        return f"; rank {rank} issued none there"
    last = entries[max(entries)]
    return f"; its last is {last.seq} ({last.op}){_describe_collective_call_location(last)}"


def _describe_collective_call_location(entry: FlightRecorderEntry) -> str:
    return f" in {entry.place}" if entry.place else ""


def _format_ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:MOST_NAMED]))
    more = len(ranks) - MOST_NAMED
    return (
        f"rank {named}"
        if len(ranks) == 1
        else f"ranks {named}" + (f" and {more} more" if more > 0 else "")
    )


def count_tensor_elements(shape: Sequence[int]) -> int:
    """Return the number of elements of a tensor, bounded."""
    return min(prod(shape[:16]), 2**62)
