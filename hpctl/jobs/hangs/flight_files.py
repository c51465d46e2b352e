"""Read the flight recorder's dumps of one attempt and find who did not come to a collective.

torch writes one file a rank, `PREFIX` followed by the rank: a pickle of plain values, or JSON. The
ranks are the user's, so a file may hold anything. It is read by a separate process, as the user,
with bounds on memory, processor time and size: a hostile file costs that file, at worst this one
answer. The unpickler permits no global, so a pickle can name no function; the bounds are needed all
the same, because a few bytes can ask CPython's unpickler for gigabytes of memo.

`diagnose_hang_from_dumps_in_subprocess` starts that process: `python -m
hpctl.jobs.hangs.flight_files PREFIX SINCE ...`. Many files are shared between several processes
that it forks: unpickling takes one core, and one that a file ends costs its share.
"""

import contextlib
import gc
import io
import os
import pickle
import re
import resource
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, NoReturn

import msgspec
from msgspec import Struct

from hpctl.jobs.hangs.flight_recorder import (
    FlightRecorderDump,
    FlightRecorderEntry,
    FlightRecorderHangVerdict,
    FlightRecorderProcessGroup,
    count_tensor_elements,
    diagnose_hang_from_recorder_dumps,
)
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.compat import SAFE_PATH

READ_S: Final = 20.0
"""Seconds for all dumps of an attempt; what is read by then is judged."""
MARGIN_S: Final = 10.0
"""Seconds beyond that after which the process is ended."""
LARGEST: Final = 32 << 20
"""Bytes of one dump: 2,000 entries with their stacks take about 1 MB."""
MEMORY: Final = 2 << 30
MOST_FILES: Final = 16384
MOST_ENTRIES: Final = 20_000
MOST_GROUPS: Final = 4096
MOST_RANKS: Final = 65_536
KEPT_COMPLETED: Final = 64
"""The newest completed entries of each group that are kept."""
KEPT_OPEN: Final = 256
"""The oldest entries of a rank that are not completed and that are kept."""
MANY_FILES: Final = 2048
"""Above so many files an eighth of these is kept, so that all ranks' entries fit into MEMORY."""
MOST_PROCESSES: Final = 8
PER_PROCESS: Final = 64
"""Files that are worth another process: it takes about as long to start as to read them."""
ANSWER: Final = 1 << 16
READ_AHEAD: Final = 1 << 17
EARLY_S: Final = 5.0
"""A file server's clock may be so much behind ours."""

DEFAULT_GROUP: Final = "default_pg"
"""torch's description of the group of all ranks (init_process_group)."""

_RANK_NUMBER: Final = re.compile(r"\d{1,6}")
_LIBRARY: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<")


class InvalidFlightRecorderDumpError(ValueError):
    """A file is no dump of the flight recorder."""


class _RestrictedUnpickler(pickle.Unpickler):
    """An unpickler of plain values only. Raises UnpicklingError where a pickle names anything
    else."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module[:40]}.{name[:40]} is not permitted")


class FlightRecorderEntryLimits(Struct, frozen=True):
    """How many entries of a dump are kept: completed ones of each group, and open ones."""

    completed: int = KEPT_COMPLETED
    open: int = KEPT_OPEN


_ALL_KEPT: Final = FlightRecorderEntryLimits()


def parse_flight_recorder_dump(
    rank: int, raw: bytes, kept: FlightRecorderEntryLimits = _ALL_KEPT
) -> FlightRecorderDump:
    """Read one rank's dump, pickle or JSON. Raises InvalidFlightRecorderDumpError.

    Call it with bounded memory: CPython's unpickler can be made to allocate without end.
    """
    try:
        document = _decode_flight_recorder_dump(raw)
        version = document["version"]
        if not isinstance(version, str) or not version.startswith("2."):
            raise InvalidFlightRecorderDumpError(
                f"version {str(version)[:20]!r} of the flight recorder is not known"
            )
        rows = _select_newest_recorder_entries(document.get("entries") or [])
        entries = tuple(
            _parse_flight_recorder_entry(row, completed)
            for row, completed in _select_entries_to_compare_across_ranks(rows, kept)
        )
        first = rows[0].get("record_id") if rows else 0
        groups = _fill_process_group_names(_parse_process_groups(document.get("pg_config")), rows)
    except InvalidFlightRecorderDumpError:
        raise
    except Exception as error:  # noqa: BLE001 -- a hostile pickle may raise anything
        raise InvalidFlightRecorderDumpError(
            f"no dump of the flight recorder: {error!r:.100}"
        ) from None
    return FlightRecorderDump(rank, groups, entries, first == 0)


def _decode_flight_recorder_dump(raw: bytes) -> dict[str, Any]:
    if raw[:1] == b"{":
        document = msgspec.json.decode(raw)
    else:
        # The unpickler reads ahead only in what has `peek`: three times as fast.
        document = _RestrictedUnpickler(io.BufferedReader(io.BytesIO(raw), READ_AHEAD)).load()
    if type(document) is not dict:
        raise InvalidFlightRecorderDumpError("it holds no table")
    return document


def _select_newest_recorder_entries(listed: object) -> Sequence[Mapping[str, Any]]:
    """Return the newest entries, oldest first."""
    if not isinstance(listed, list) or not all(type(one) is dict for one in listed):
        raise InvalidFlightRecorderDumpError("its entries are no list of tables")
    return listed[-MOST_ENTRIES:]


def _list_entry_completion_flags(rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Return whether each entry is completed, by its own state or by what another entry shows.

    torch never updates the state of an operation inside a coalesced one (batch_isend_irecv, an
    all_gather of unequal sizes): it stays `scheduled`, and the entry of the whole, under the same
    number, has the state (test_batched_send_recv in test/distributed/test_c10d_nccl.py). The
    collectives of a group run on one stream, so a later one that is completed says the same.
    """
    last: dict[str, int] = {}
    batches = set[tuple[str, int]]()
    places = [
        (_read_process_group_name(row), _read_sequence_number(row), row.get("is_p2p") is True)
        for row in rows
    ]
    for row, (group, number, point_to_point) in zip(rows, places, strict=True):
        if not _has_operation_ended(row):
            continue
        if point_to_point:
            batches.add((group, number))
        elif number > last.get(group, -1):
            last[group] = number
    over = []
    for group, number, point_to_point in places:
        if point_to_point:
            over.append((group, number) in batches)
        else:
            over.append(number <= last.get(group, -1))
    return over


def _has_operation_ended(row: Mapping[str, Any]) -> bool:
    """Return whether an operation has ended.

    ProcessGroupGloo records no state, and retires an entry when its work ends, with or without an
    error (finishWorkGloo and finishWorkGlooError in ProcessGroupGloo.cpp, torch 2.13). That of NCCL
    also retires what it has aborted, and records the state.
    """
    return row.get("state") == "completed" or _has_gloo_operation_ended(row)


def _has_gloo_operation_ended(row: Mapping[str, Any]) -> bool:
    """Return whether an operation of gloo's has ended, maybe with an error."""
    name = row.get("profiling_name")
    return row.get("retired") is True and isinstance(name, str) and name.startswith("gloo:")


def _read_process_group_name(row: Mapping[str, Any]) -> str:
    """Return the name of an entry's group as the dump has it: to compare, not to show."""
    name = row["process_group"][0]
    if not isinstance(name, str):
        raise InvalidFlightRecorderDumpError("it has something else where a text should be")
    return name


def _read_sequence_number(row: Mapping[str, Any]) -> int:
    """Return the number of an operation in its group: the two kinds are counted apart."""
    kind = "p2p_seq_id" if row.get("is_p2p") is True else "collective_seq_id"
    return _parse_dump_number_field(row[kind])


def _parse_flight_recorder_entry(row: Mapping[str, Any], completed: bool) -> FlightRecorderEntry:
    group = row["process_group"]
    shapes = row.get("input_sizes") or ()
    return FlightRecorderEntry(
        group=_parse_dump_text_field(group[0]),
        seq=_read_sequence_number(row),
        # Profiling names carry the backend: nccl:all_reduce.
        op=_parse_dump_text_field(row["profiling_name"]).rpartition(":")[2],
        sizes=tuple(map(_count_shape_elements, islice(shapes, 64))),
        dtypes=tuple(
            _parse_dump_text_field(name) for name in islice(row.get("input_dtypes") or (), 64)
        ),
        completed=completed,
        may_fail=completed and row.get("state") != "completed" and _has_gloo_operation_ended(row),
        created_ns=_parse_dump_time_field(row.get("time_created_ns")),
        timeout_s=_parse_dump_time_field(row.get("timeout_ms")) / 1000,
        p2p=row.get("is_p2p") is True,
        place=_find_user_code_frame(row.get("frames") or ()),
    )


def _count_shape_elements(shape: Iterable[Any]) -> int:
    """Return how many elements a tensor of a shape has, by its first 16 dimensions."""
    return count_tensor_elements([_parse_dump_number_field(size) for size in islice(shape, 16)])


def _find_user_code_frame(frames: Sequence[Mapping[str, Any]]) -> str:
    """Return the innermost call in code that is no library's; empty where the dump has no
    stacks."""
    for frame in islice(frames, 64):
        path = _parse_dump_text_field(frame["filename"])
        if not _is_library_frame(path):
            name, line = (
                _parse_dump_text_field(frame["name"]),
                _parse_dump_number_field(frame["line"]),
            )
            return f"{name} ({path.rpartition('/')[2]}:{line})"
    return ""


@lru_cache(4096)
def _is_library_frame(path: str) -> bool:
    return _LIBRARY.search(path) is not None


def _parse_process_groups(listed: object) -> tuple[FlightRecorderProcessGroup, ...]:
    if not isinstance(listed, dict):
        return ()
    return tuple(
        FlightRecorderProcessGroup(
            str(name)[:64],
            _parse_dump_text_field(one.get("desc", "")),
            _parse_rank_list(one.get("ranks", "")),
        )
        for name, one in islice(listed.items(), MOST_GROUPS)
        if isinstance(one, dict)
    )


def _fill_process_group_names(
    groups: tuple[FlightRecorderProcessGroup, ...], rows: Sequence[Mapping[str, Any]]
) -> tuple[FlightRecorderProcessGroup, ...]:
    """Return the groups, those without a name with the names of the entries.

    ProcessGroupGloo registers its ranks before the group has a name (torch 2.13). Of several groups
    the last one overwrites the others, so its ranks are known only where the entries are of one.
    """
    places = {(_read_process_group_name(row), row["process_group"][1]) for row in rows}
    if len(groups) != 1 or groups[0].name:
        return groups
    ranks = groups[0].ranks if len(places) == 1 else ()
    return tuple(
        FlightRecorderProcessGroup(
            _parse_dump_text_field(name), _parse_dump_text_field(description), ranks
        )
        for name, description in islice(sorted(places), MOST_GROUPS)
    )


def _parse_rank_list(text: object) -> tuple[int, ...]:
    """Return the ranks of `[0, 1, 2]`; none where it is no such text."""
    return _parse_rank_numbers(text) if isinstance(text, str) else ()


@lru_cache(4096)
def _parse_rank_numbers(text: str) -> tuple[int, ...]:
    numbers = _RANK_NUMBER.findall(text[: 8 * MOST_RANKS])
    return tuple(int(number) for number in numbers[:MOST_RANKS])


def _select_entries_to_compare_across_ranks(
    rows: Sequence[Mapping[str, Any]], most: FlightRecorderEntryLimits
) -> list[tuple[Mapping[str, Any], bool]]:
    """Return the entries that the alignment needs, and whether each is completed: the oldest that
    are not and, of each group, the newest that are."""
    left: dict[str, int] = {}
    finished = list[tuple[Mapping[str, Any], bool]]()
    waiting = list[tuple[Mapping[str, Any], bool]]()
    for row, completed in zip(
        reversed(rows), reversed(_list_entry_completion_flags(rows)), strict=True
    ):
        if not completed:
            waiting.append((row, False))
            continue
        group = _read_process_group_name(row)
        kept = left.get(group, 0)
        if kept < most.completed:
            left[group] = kept + 1
            finished.append((row, True))
    return [*reversed(finished), *reversed(waiting[-most.open :])]


def _parse_dump_text_field(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidFlightRecorderDumpError("it has something else where a text should be")
    return _make_text_printable(value[-200:])


@lru_cache(8192)
def _make_text_printable(text: str) -> str:
    return make_printable(text)


def _parse_dump_time_field(value: object) -> int:
    """Return a time or a duration of a dump; 0 where it has none."""
    return value if type(value) is int and 0 < value < 2**63 else 0


def _parse_dump_number_field(value: object) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise InvalidFlightRecorderDumpError("it has something else where a number should be")
    return value


def read_flight_recorder_dump_files(
    prefix: str, since: float, deadline: float
) -> tuple[list[FlightRecorderDump], set[int]]:
    """Read the dumps `PREFIX0`, `PREFIX1`, ... that were written at or after `since` (POSIX time).

    `deadline` is a time of the monotonic clock at which reading stops. Also returns the ranks whose
    files were not read: files that are no dumps, that are too large, or another user's, and those
    that the deadline cut off. Raises OSError where the folder cannot be listed.
    """
    return _read_dump_files_with_rank_suffixes(
        prefix, _list_dump_file_rank_suffixes(prefix), since, deadline
    )


def _read_dump_files_with_rank_suffixes(
    prefix: str,
    names: Sequence[str],
    since: float,
    deadline: float,
    kept: FlightRecorderEntryLimits = _ALL_KEPT,
) -> tuple[list[FlightRecorderDump], set[int]]:
    unread = {int(name) for name in names}
    dumps = []
    for name in sorted(names, key=int)[:MOST_FILES]:
        if time.monotonic() >= deadline:
            break
        with contextlib.suppress(OSError, InvalidFlightRecorderDumpError, MemoryError):
            raw = _read_recent_dump_file_of_user(prefix + name, since)
            dumps.append(parse_flight_recorder_dump(int(name), raw, kept))
            unread.discard(int(name))
    return dumps, unread


class _DumpReaderResult(Struct, array_like=True):
    """What one process has read. Groups are in a table: one of 16,384 ranks is in as many dumps."""

    groups: list[FlightRecorderProcessGroup]
    dumps: list[tuple[int, bool, list[int], tuple[FlightRecorderEntry, ...]]]
    unread: list[int]


def read_flight_recorder_dumps_in_parallel(
    prefix: str, since: float, deadline: float, processes: int
) -> tuple[list[FlightRecorderDump], set[int]]:
    """Read as `read_flight_recorder_dump_files` does, in several forked processes. The caller must
    have no threads. Raises OSError."""
    names = sorted(_list_dump_file_rank_suffixes(prefix), key=int)[:MOST_FILES]
    many = len(names) > MANY_FILES
    kept = FlightRecorderEntryLimits(KEPT_COMPLETED // 8, KEPT_OPEN // 8) if many else _ALL_KEPT
    processes = max(1, min(processes, len(names) // PER_PROCESS))
    if processes == 1:
        return _read_dump_files_with_rank_suffixes(prefix, names, since, deadline, kept)
    with contextlib.ExitStack() as stack:
        begun = list[tuple[int, IO[bytes], list[str]]]()
        out: IO[bytes]
        for number in range(processes):
            # Neighbors go to different processes: whole nodes may have ended early.
            share = names[number::processes]
            out = stack.enter_context(tempfile.TemporaryFile())
            child = os.fork()
            if child == 0:
                _run_dump_reader_process(out, prefix, share, since, deadline, kept)
            begun.append((child, out, share))
        dumps = list[FlightRecorderDump]()
        unread = set[int]()
        groups = dict[FlightRecorderProcessGroup, FlightRecorderProcessGroup]()
        for child, out, share in begun:
            os.waitpid(child, 0)
            some, missed = _load_dump_reader_result(out, share, groups)
            dumps += some
            unread |= missed
    return dumps, unread


def _run_dump_reader_process(  # noqa: PLR0913 -- what a forked process is given
    out: IO[bytes],
    prefix: str,
    names: Sequence[str],
    since: float,
    deadline: float,
    kept: FlightRecorderEntryLimits,
) -> NoReturn:
    """Read a share of the files, write it, and end the process."""
    code = 1
    try:
        dumps, unread = _read_dump_files_with_rank_suffixes(prefix, names, since, deadline, kept)
        places: dict[FlightRecorderProcessGroup, int] = {}
        rows = []
        for dump in dumps:
            listed = [places.setdefault(group, len(places)) for group in dump.groups]
            rows.append((dump.rank, dump.whole, listed, dump.entries))
        out.write(msgspec.msgpack.encode(_DumpReaderResult(list(places), rows, sorted(unread))))
        out.flush()
        code = 0
    finally:
        os._exit(code)


def _load_dump_reader_result(
    out: IO[bytes],
    names: Sequence[str],
    groups: dict[FlightRecorderProcessGroup, FlightRecorderProcessGroup],
) -> tuple[list[FlightRecorderDump], set[int]]:
    """Return what a process has read; where it was ended, all its ranks are unread."""
    out.seek(0)
    try:
        share = msgspec.msgpack.decode(out.read(), type=_DumpReaderResult)
    except (msgspec.MsgspecError, MemoryError):
        return [], {int(name) for name in names}
    known = [groups.setdefault(group, group) for group in share.groups]
    dumps = []
    for rank, whole, places, entries in share.dumps:
        own = tuple(known[place] for place in places)
        dumps.append(FlightRecorderDump(rank, own, entries, whole))
    return dumps, set(share.unread)


def _list_dump_file_rank_suffixes(prefix: str) -> list[str]:
    """Return the numbers that follow a prefix in the names of files. Raise OSError."""
    folder, _, start = prefix.rpartition("/")
    return [
        name[len(start) :]
        for name in os.listdir(folder or "/")
        if name.startswith(start) and _RANK_NUMBER.fullmatch(name[len(start) :])
    ]


def list_flight_recorder_dump_files(prefix: str) -> list[Path]:
    """Return the files that have the names of an attempt's dumps. Raise OSError."""
    return [Path(prefix + name) for name in _list_dump_file_rank_suffixes(prefix)] if prefix else []


def _read_recent_dump_file_of_user(path: str, since: float) -> bytes:
    """Return the bytes of a plain file of ours. Raise OSError."""
    # A FIFO in its place must not hold us up, and a link leads elsewhere.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        if not ours or found.st_size > LARGEST or found.st_mtime < since:
            raise OSError(f"{path} is no dump of this attempt")
        return file.read(LARGEST)


def filter_dumps_by_world_size(
    dumps: Sequence[FlightRecorderDump], unread: set[int], world: int
) -> tuple[list[FlightRecorderDump], set[int]]:
    """Return the dumps of a run of `world` ranks (0: unknown), and the ranks whose dumps are not
    read. A dump that names another number of ranks is another run's: its rank counts as not read,
    because what it did is not known."""
    own = [dump for dump in dumps if not world or _has_matching_world_size(dump, world)]
    return own, unread | ({dump.rank for dump in dumps} - {dump.rank for dump in own})


def _has_matching_world_size(dump: FlightRecorderDump, world: int) -> bool:
    """Return whether a dump may be of a run of so many ranks: its default group has them all, and
    no group has more."""
    sizes = [len(group.ranks) for group in dump.groups]
    whole = [len(group.ranks) for group in dump.groups if group.description == DEFAULT_GROUP]
    fits = all(size in (0, world) for size in whole)
    return fits and dump.rank < world and max(sizes, default=0) <= world


def diagnose_hang_from_dumps_in_subprocess(
    prefix: str, since: float, *, read_s: float = READ_S, become: Sequence[str] = (), world: int = 0
) -> FlightRecorderHangVerdict:
    """Read and align an attempt's dumps in a separate process. Raise nothing.

    `since` is the POSIX time in seconds at which the attempt began. A verdict without dumps means
    that there are none, or that they could not be read. Where there is no file, no process is
    started: a run whose network broke continues without waiting for one. `become`: the command and
    options by which root becomes the owner of the dumps. `world`: how many ranks the run has; dumps
    of another number of ranks do not count. 0: any.
    """
    command = [
        *become,
        sys.executable, *SAFE_PATH, "hpctl.jobs.hangs.flight_files",
        prefix, str(since), str(read_s), str(world),
    ]  # fmt: skip
    try:
        # Root does not look where a user may lead it.
        if not become and not _list_dump_file_rank_suffixes(prefix):
            return FlightRecorderHangVerdict()
        with tempfile.TemporaryFile() as out:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.DEVNULL,
                    timeout=read_s + MARGIN_S,
                    check=False,
                )
            out.seek(0)
            return msgspec.json.decode(out.read(ANSWER), type=FlightRecorderHangVerdict)
    # ValueError: a prefix that holds a null byte. A full disk has no temporary file either.
    except (OSError, ValueError, msgspec.MsgspecError):
        return FlightRecorderHangVerdict()


def main(arguments: Sequence[str]) -> None:
    """Print the verdict on the dumps of PREFIX as JSON. Bounds itself first."""
    prefix, since, read_s = arguments[0], float(arguments[1]), float(arguments[2])
    world = int(arguments[3])
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(read_s + MARGIN_S), int(read_s + MARGIN_S) + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A third of the time of reading a large dump; what leaks by cycles is bounded by MEMORY.
    gc.disable()
    processes = min(MOST_PROCESSES, len(os.sched_getaffinity(0)))
    deadline = time.monotonic() + read_s
    dumps, unread = read_flight_recorder_dumps_in_parallel(
        prefix, since - EARLY_S, deadline, processes
    )
    dumps, unread = filter_dumps_by_world_size(dumps, unread, world)
    print(
        make_printable(
            msgspec.json.encode(diagnose_hang_from_recorder_dumps(dumps, unread)).decode()
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
