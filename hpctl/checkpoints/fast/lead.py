"""Work over all nodes: the leader's turns, and the restore at a start.

The first helper that answers leads: it proves steps, drops old ones, flushes new ones. At a start
the newest whole step that the nodes still hold is gathered on each of them.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpctl.checkpoints import search
from hpctl.checkpoints.fast.node import NodeSaveStore
from hpctl.checkpoints.fast.spec import (
    META,
    FastCheckpointSaveSpec,
    FastSavedFile,
    FastSavedStep,
    find_spec_path,
    load_step_ledger,
    store_step_ledger,
)
from hpctl.checkpoints.fast.union import (
    NodeFileObject,
    NodeFilesObjectStore,
    PeerConnections,
    merge_node_inventories,
)
from hpctl.checkpoints.fetch import find_unused_checkpoint_path
from hpctl.checkpoints.files import RemotePath, parse_step_from_name
from hpctl.checkpoints.formats import megatron
from hpctl.checkpoints.hpctl_checkpoint import sync_directory
from hpctl.checkpoints.marks import CheckpointMarks, find_median_write_time, read_checkpoint_marks
from hpctl.checkpoints.search import CheckpointSearchResult, CompleteCheckpoint, SkippedCheckpoint

FLUSH_LIMIT_S = 3600.0
MOST_TRIES = 20
"""How often a node that reported a change is polled immediately; after that it is polled with all
others."""
LAST_FLUSH_S = 20.0
"""Time for the end of a job: Slurm kills what is left 30 s after its signal (KillWait)."""
CLOCKS_NS = 5_000_000
"""Nodes' clocks count as different where they differ by more than this and half a round trip."""
TELL_S = 60.0
"""What is not a complete step and has not changed for so long is reported: no program still writes
it."""
_NUMBER = re.compile(r"\d+")
_SAMPLES = 8
"""Samples of a node's clock; the one with the shortest round trip counts, as in RFC 5905."""


class NodeClockOffsets:
    """The offsets of the nodes' clocks, in ns ahead of this node's clock."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[tuple[int, int]]] = {}
        self._ahead: dict[str, int] = {}

    def sample(self, host: str, asked: int, theirs: int, answered: int) -> None:
        """Add a request: its two ends by this clock, and the other clock in between."""
        kept = self._samples.setdefault(host, deque(maxlen=_SAMPLES))
        kept.append((answered - asked, theirs - (asked + answered) // 2))

    def get_offset_ns(self, host: str) -> int:
        """Return the offset, in ns. A difference within the error of the measurement is not a
        change: it would have a step judged again."""
        round_trip, apart = min(self._samples[host])
        if abs(apart - self._ahead.get(host, 0)) > CLOCKS_NS + round_trip // 2:
            self._ahead[host] = apart
        return self._ahead.get(host, 0)


class UncopiedFile(Struct, frozen=True):
    """A file that is not copied. `since_s`: the monotonic time since when."""

    parts: tuple[NodeFileObject, ...]
    why: str
    since_s: float


class FastSaveLeader:
    """The leader's memory."""

    def __init__(
        self, node: NodeSaveStore, peers: PeerConnections, say: Callable[[str], None]
    ) -> None:
        self._node, self._peers, self._say = node, peers, say
        self._spec = node.spec
        self._found: dict[str, dict[str, Any]] = {}
        """What each node that answers holds."""
        self._judged: dict[str, tuple[NodeFileObject, ...]] = {}
        self._odd: dict[str, str] = {}
        """Steps in no known format, and what they hold."""
        self._unproved: dict[str, UncopiedFile] = {}
        """What is not copied, by name."""
        self._told: set[str] = set()
        """Patterns of names that were already reported."""
        self._flushed: FastSavedStep | None = None
        self._flush_at = time.monotonic() + self._spec.saves.flush_s
        self._flushing: threading.Thread | None = None
        self._pinned = ""
        """The step that is being flushed."""
        self._tries: dict[str, int] = {}
        self._halt = threading.Event()
        self._sure = False
        self._waiting = False
        """Whether the newest step still lacks copies."""
        self._living: tuple[str, ...] = self._spec.hosts
        self._clocks = NodeClockOffsets()
        self._ahead: dict[str, int] = {}

    def turn(self, *, everyone: bool) -> None:
        """Poll all nodes, or those that have reported a change, and do what is due. A node that
        does not answer is left out."""
        changed = set()
        while self._node.changed:
            changed.add(self._node.changed.popleft())
        for host in self._spec.hosts:
            if not (everyone or host in changed):
                continue
            tries = 0 if self._poll_node_inventory(host) else self._tries.get(host, 0) + 1
            self._tries[host] = tries
            if host in changed and 0 < tries < MOST_TRIES:
                self._node.changed.append(host)  # polled again
        self._notify_missed_restore()
        ahead = {host: self._clocks.get_offset_ns(host) for host in self._found}
        living = tuple(host for host in self._spec.hosts if host in self._found)
        again = living != self._living or (everyone and self._waiting)
        self._living = living
        if again:
            self._resend_newest_step()
        if again or ahead != self._ahead or not self._sure:
            self._sure = self._verify_changed_steps(ahead)
            self._waiting = not self._delete_old_steps_on_nodes(self._found)
            self._ahead = ahead
        self._log_uncopied_files()
        if time.monotonic() >= self._flush_at:
            self._flush_at = time.monotonic() + self._spec.saves.flush_s
            if self._flushing is None or not self._flushing.is_alive():
                self._flushing = threading.Thread(
                    target=self._flush_newest_step_in_background, daemon=True
                )
                self._flushing.start()

    def _notify_missed_restore(self) -> None:
        """Notify a node that was silent at the last restore. It holds files of the start before it,
        which make no step with those of this one."""
        newest = max(self._found, key=lambda host: self._found[host]["epoch"], default="")
        for host in tuple(self._found):
            last = self._found[newest]
            if self._found[host]["epoch"] >= last["epoch"]:
                continue
            mine = self._peers.each("inventory", [host]).get(host)
            if mine is not None and mine["epoch"] < last["epoch"]:
                begun = (
                    last["begun"]
                    - self._clocks.get_offset_ns(newest)
                    + self._clocks.get_offset_ns(host)
                )
                given = {"epoch": last["epoch"], "above": last["above"], "begun": begun}
                heard = self._peers.each("missed", [host], **given)
                if not heard:
                    self._say(f"{host} was silent at the last restore, and takes no part yet")
                mine = self._peers.each("inventory", [host]).get(host) if heard else None
            self._found.pop(host)
            self._found |= {host: mine} if mine is not None else {}

    def _poll_node_inventory(self, host: str) -> bool:
        """Poll a node and return whether it answers. Its connection may be to a helper that has
        ended."""
        for _ in range(2):
            asked = time.time_ns()
            ping = self._peers.each("ping", [host]).get(host)
            if ping is not None:
                self._clocks.sample(host, asked, int(ping["now"]), time.time_ns())
                if self._found.get(host, {}).get("version") == ping["version"]:
                    return True
                break
        before = self._found.pop(host, None)
        self._found |= self._peers.each("inventory", [host]) if ping else {}
        self._sure &= before is None and host not in self._found
        return host in self._found

    def _verify_changed_steps(self, ahead: dict[str, int]) -> bool:
        """Prove the steps that changed and return whether each could be judged."""
        whole = merge_node_inventories(self._peers, self._found, ahead)
        sure = True
        for step in sorted(whole.also):
            if self._judged.get(step) == whole.also[step]:
                continue
            result = _verify_step_over_all_nodes(whole, step)
            self._odd.pop(step, None)
            if isinstance(result, CompleteCheckpoint):
                self._unproved.pop(step, None)
                self._record_verified_step(step, result, whole)
            else:
                self._record_unverified_step(step, whole.also[step], result.why)
                if result.unreadable:
                    sure = False
                    continue
                if result.format is None and result.holds:
                    self._odd[step] = result.holds
            self._judged[step] = whole.also[step]
        self._judged = {step: self._judged[step] for step in whole.also if step in self._judged}
        self._odd = {step: self._odd[step] for step in whole.also if step in self._odd}
        self._update_unrecognized_files(whole)
        return sure

    def _record_unverified_step(
        self, name: str, parts: tuple[NodeFileObject, ...], why: str
    ) -> None:
        known = self._unproved.get(name)
        if known is None or (known.parts, known.why) != (parts, why):
            self._unproved[name] = UncopiedFile(parts, why, time.monotonic())

    def _update_unrecognized_files(self, whole: NodeFilesObjectStore) -> None:
        """Keep in `_unproved` what still exists, and add files that no format recognizes."""
        others = chain.from_iterable(mine.get("others", ()) for mine in self._found.values())
        names = set(map(str, others))
        for name in names:
            self._record_unverified_step(name, (), f"1 file, no known format; {search.OWN_FORMAT}")
        there = names | whole.also.keys()
        self._unproved = {n: each for n, each in self._unproved.items() if n in there}

    def _log_uncopied_files(self) -> None:
        """Log what is not copied, once for each pattern of names."""
        for name, each in sorted(self._unproved.items()):
            pattern = _NUMBER.sub("N", name)
            if time.monotonic() < each.since_s + TELL_S or pattern in self._told:
                continue
            self._told.add(pattern)
            hint = f"; {search.OWN_FORMAT}" if name in self._odd else ""
            once = "" if pattern == name else f" (said once for {pattern})"
            self._say(f"{name} is not copied to other nodes: {each.why}{hint}{once}")

    def _record_verified_step(
        self, name: str, proved: CompleteCheckpoint, whole: NodeFilesObjectStore
    ) -> None:
        files = tuple(
            FastSavedFile(p.key.partition("/")[2], p.size, p.mtime_ns, p.modified_ns, p.host)
            for p in whole.also[name]
        )
        known = self._node.rows.get(name)
        seen_s = time.time() if known is None else compute_time_after_step(known)
        row = FastSavedStep(name, proved.step, proved.format, self._spec.hosts, files, seen_s)
        living = list(self._found)
        answers = self._peers.each("row", living, row=msgspec.to_builtins(row), living=living)
        for host in set(living) - set(answers):
            del self._found[host]
        with suppress(OSError):  # the nodes log this; the leader logs what was lost with them
            store_step_ledger(self._node.rows, _make_shared_ledger_path(self._spec))

    def _resend_newest_step(self) -> None:
        """Send the newest step again: nodes have come or gone, so that it has other partners, or
        one of them did not receive it or could not copy it."""
        rows = sorted(self._node.rows.values(), key=lambda row: row.order)
        for row in rows[-1:]:
            given = msgspec.to_builtins(row)
            self._peers.each("row", self._living, row=given, living=self._living)

    def _delete_old_steps_on_nodes(self, found: dict[str, dict[str, Any]]) -> bool:
        """Drop steps older than the newest with all its copies, but not the newest `steps` of all
        nor the newest `steps` of those that have all their copies. One that lacks copies, because
        the program removed it, stays only among the newest. Return whether the newest has all its
        copies."""
        rows = sorted(self._node.rows.values(), key=lambda row: row.order, reverse=True)
        safe = [row for row in rows if self._is_step_fully_replicated(row, found)]
        size = self._spec.saves.size
        full = size and any(int(mine["used"]) > size for mine in found.values())
        steps = 1 if full else self._spec.steps
        kept = {self._pinned, *(row.name for row in (*rows[:steps], *safe[:steps]))}
        whole = rows[rows.index(safe[0]) :] if safe else []
        old = [row.name for row in whole if row.name not in kept]
        if old:
            self._peers.each("drop", found, names=old)
        return not rows or (bool(safe) and safe[0] == rows[0])

    def _is_step_fully_replicated(
        self, row: FastSavedStep, found: dict[str, dict[str, Any]]
    ) -> bool:
        fit = sum(host not in self._spec.suspects for host in found)
        wanted = 1 + min(self._spec.saves.replicas, max(0, fit - 1))
        held = find_file_locations(row, found)
        return all(_count_nodes_with_file(held[file]) >= wanted for file in row.files)

    def _flush_newest_step_in_background(self) -> None:
        """Flush, while other threads prove and copy steps."""
        peers = PeerConnections(self._spec, self._node)
        try:
            self._flush_newest_step(peers, FLUSH_LIMIT_S, self._halt)
        finally:
            peers.close()

    @property
    def answering(self) -> frozenset[str]:
        """Return the hosts that answered at the last poll."""
        return frozenset(self._found)

    def request_flush(self) -> None:
        """Flush with the next turn."""
        self._flush_at = min(self._flush_at, time.monotonic())

    def end(self, limit_s: float, gone: Callable[[Sequence[str]], Sequence[str]]) -> bool:
        """Flush what the nodes hold now, for the last time; a flush under way is abandoned. Return
        whether nothing is left on the nodes that is to be kept. `gone`: which of the silent nodes
        have left the job."""
        deadline = time.monotonic() + limit_s
        self._halt.set()
        if self._flushing is not None:
            self._flushing.join(limit_s / 4)
        self._flush_at = math.inf
        self._peers.forget_unresponsive_hosts()
        self._found.clear()
        self.turn(everyone=True)
        left = max(0.0, deadline - time.monotonic())
        flushed = self._flush_newest_step(self._peers, left, threading.Event())
        silent = [host for host in self._spec.hosts if host not in self._found]
        last = -1 if self._flushed is None else self._flushed.order[0]
        odd = [n for n in self._odd if (step := parse_step_from_name(n)) is None or step > last]
        for name in odd:
            self._say(f"{self._odd[name]} of {name} stay on the nodes: no known format")
        lost = not silent or set(silent) <= set(gone(silent))
        return flushed and self._sure and not odd and lost

    def _flush_newest_step(
        self, peers: PeerConnections, limit_s: float, halt: threading.Event
    ) -> bool:
        """Bring the newest whole step into the shared directory, by its proof there; where that is
        lost, the one before it. Return whether nothing newer is left."""
        last, deadline = self._flushed, time.monotonic() + limit_s
        tried: set[str] = set()
        while not halt.is_set():
            known = [row for row in tuple(self._node.rows.values()) if row.name not in tried]
            newer = [row for row in known if last is None or row.order > last.order]
            left = deadline - time.monotonic()
            if not newer or (tried and left <= 0):
                return not tried
            row = max(newer, key=lambda row: row.order)
            if self.flush_step(row, peers, max(0.0, left), halt):
                return not tried
            tried.add(row.name)
        return False

    def _is_step_in_shared_directory(self, row: FastSavedStep) -> bool:
        """Return whether it is in the shared directory. A step that an earlier run left there under
        its name does not count; one that the program itself saves there may."""
        place = Path(self._spec.shared) / row.name
        if not isinstance(search.verify_checkpoint(place), CompleteCheckpoint):
            return False
        paths = (place, *place.rglob("*")) if place.is_dir() else (place,)
        times = [path.lstat().st_mtime_ns for path in paths if path.is_file()]
        began = self._node.begun_ns
        return max(times, default=0) >= began or min(f.written_ns for f in row.files) < began

    def flush_step(
        self, row: FastSavedStep, peers: PeerConnections, limit_s: float, halt: threading.Event
    ) -> bool:
        """Have the nodes write a step to the shared directory and prove it there; return whether
        it is there now."""
        shared = Path(self._spec.shared)
        room = _find_flush_staging_directory(self._spec) / str(time.monotonic_ns())
        self._pinned = row.name
        try:
            if not self._is_step_in_shared_directory(row):
                room.mkdir(mode=0o700, parents=True)
                self.write_step_files_from_nodes(row, peers, room / row.name, limit_s, halt)
                _write_megatron_tracker_file(row, room)
                result = search.verify_checkpoint(room / row.name)
                if not isinstance(result, CompleteCheckpoint) or result.step != row.step:
                    why = "another step" if isinstance(result, CompleteCheckpoint) else result.why
                    raise OSError(f"the flushed files are not whole: {why}")
                self._move_step_to_shared_directory(row, room)
            self._flushed = row
        except OSError as error:
            if not halt.is_set():
                why = f"not flushed to {shared}: {error.strerror or error}"
                self._say(f"step {row.step} was {why}")
            return False
        finally:
            self._pinned = ""
            shutil.rmtree(room, ignore_errors=True)
        return True

    def _move_step_to_shared_directory(self, row: FastSavedStep, room: Path) -> None:
        """Move a proved step from its room into the shared directory. Raises OSError."""
        shared = Path(self._spec.shared)
        # A helper that did not answer in time may lead as well, and may have flushed the same step
        # since the first check: its copy is as good, and moving it away would double the space.
        if self._is_step_in_shared_directory(row):
            return
        if os.path.lexists(shared / row.name):
            (shared / row.name).rename(find_unused_checkpoint_path(shared / row.name))
        (room / row.name).rename(shared / row.name)
        _write_megatron_tracker_file(row, shared)
        sync_directory(shared)
        self._say(f"flushed step {row.step} to {shared / row.name}")

    def write_step_files_from_nodes(
        self,
        row: FastSavedStep,
        peers: PeerConnections,
        into: Path,
        limit_s: float,
        halt: threading.Event,
    ) -> None:
        """Have the nodes that hold a step's files write them into a directory. Raises OSError."""
        found = peers.each("inventory")
        tasks: dict[str, list[tuple[FastSavedFile, str]]] = {}
        done = set()
        for file, held in find_file_locations(row, found).items():
            if file.path not in done and held:
                done.add(file.path)
                tasks.setdefault(held[0][0], []).append((file, held[0][1]))
        missing = {f.path for f in row.files} - done
        if missing:
            raise OSError(f"no node holds {min(missing) or row.name} any longer")
        for host, files in tasks.items():
            given = {"name": row.name, "into": str(into), "files": msgspec.to_builtins(files)}
            peers.ask(host, "flush", **given)
        errors = peers.finish(tasks, "flush", limit_s, halt)
        if errors:
            raise OSError("; ".join(errors[:3]))


def _verify_step_over_all_nodes(
    whole: NodeFilesObjectStore, step: str
) -> CompleteCheckpoint | SkippedCheckpoint:
    """Prove a step over the files of all nodes. One that is a single file, written by several
    nodes, is complete where each of them is, and all are of the same step."""
    result = search.verify_checkpoint(RemotePath(whole, step).without_snapshot())
    for single in whole.split_step_file_by_node(step):
        if not isinstance(result, CompleteCheckpoint):
            break
        other = search.verify_checkpoint(RemotePath(single, step).without_snapshot())
        if isinstance(other, CompleteCheckpoint) and other.step != result.step:
            why = "the nodes' files of this name are of different steps"
            return SkippedCheckpoint(other.path, why, format=other.format)
        if not isinstance(other, CompleteCheckpoint):
            return other
    return result


def _find_flush_staging_directory(spec: FastCheckpointSaveSpec) -> Path:
    """Return the directory where steps lie until they are proved."""
    return Path(spec.shared) / META / f"flush-{spec.job}"


def remove_unfinished_flush(spec: FastCheckpointSaveSpec) -> None:
    """Remove what an interrupted flush has left."""
    shutil.rmtree(_find_flush_staging_directory(spec), ignore_errors=True)


def remove_shared_fast_save_records(spec: FastCheckpointSaveSpec) -> None:
    """Remove hpctl's files next to the shared checkpoints of a job that is over. Raises OSError."""
    remove_unfinished_flush(spec)
    for path in (_make_shared_ledger_path(spec), find_spec_path(spec)):
        path.unlink(missing_ok=True)


def _write_megatron_tracker_file(row: FastSavedStep, directory: Path) -> None:
    """Write Megatron-LM's pointer, which shows that all ranks have saved and lies on one node."""
    if row.format == "megatron-legacy" and row.step is not None:
        megatron.write_tracker_file(directory, row.step)


def find_file_locations(
    row: FastSavedStep, found: dict[str, dict[str, Any]]
) -> dict[FastSavedFile, list[tuple[str, str]]]:
    """Return who holds each file of a step: the node, and "" for its saves or the origin of its
    copy."""
    held: dict[FastSavedFile, list[tuple[str, str]]] = {file: [] for file in row.files}
    named: dict[str, list[FastSavedFile]] = {}
    for file in row.files:
        named.setdefault(file.path, []).append(file)
    for host, mine in found.items():
        listed = [("", mine["live"].get(row.name, ()))]
        listed += [(origin, steps.get(row.name, ())) for origin, steps in mine["copies"].items()]
        for origin, files in listed:
            for path, size, mtime_ns, _ in files:
                for file in named.get(path, ()):
                    if origin in ("", file.origin) and file.same(size, mtime_ns):
                        held[file].append((host, origin))
    for file, where in held.items():
        where.sort(key=lambda h: h[0] != file.origin)
    return held


def _count_nodes_with_file(where: Iterable[tuple[str, str]]) -> int:
    """Return how many nodes hold a file; one may have it twice, as its own and as a copy."""
    return len({host for host, _ in where})


HELPERS_S, ROUNDS = 10.0, 3
"""How long, and how often, a start waits for the helpers of all nodes that run ranks. Where srun
cannot launch one immediately, on a node that has just come back, all are launched again."""
ASSEMBLE_S = 3600.0
_OWN = re.compile(r"(^|/)(bf16_|fp16_)?zero_pp_rank_\d+_")
"""Files of DeepSpeed that, on as many nodes, only the rank reads that wrote them. In the other
formats any rank may read any file: a rank of DCP reads what the planner of its load selects."""


class StepFileLocations(Struct, frozen=True):
    """A step of the ledger, and which nodes hold each of its files. `lost`: what no node holds."""

    row: FastSavedStep
    held: dict[FastSavedFile, list[tuple[str, str]]]

    @property
    def copies(self) -> int:
        """Return how many nodes hold each file, the least of all."""
        return min(map(_count_nodes_with_file, self.held.values()), default=0)

    @property
    def lost(self) -> tuple[FastSavedFile, ...]:
        """Return the files of which no node that answers has a copy."""
        return tuple(file for file, where in self.held.items() if not where)


Found: TypeAlias = dict[str, dict[str, Any]]


def list_node_steps(
    peers: PeerConnections, hosts: Sequence[str], wait_s: float
) -> tuple[list[StepFileLocations], Found]:
    """Return the ledger's steps, newest first, and the answer of each host that answered."""
    deadline = time.monotonic() + wait_s
    found: Found = {}
    while True:
        found |= peers.each("inventory", [h for h in hosts if h not in found])
        if len(found) == len(hosts) or time.monotonic() >= deadline:
            break
        time.sleep(0.2)
    rows: dict[tuple[str, tuple[FastSavedFile, ...]], FastSavedStep] = {}
    known: list[FastSavedStep] = []
    for mine in found.values():
        known += msgspec.convert(mine["rows"], list[FastSavedStep])
    for row in (*known, *load_step_ledger(_make_shared_ledger_path(peers.spec)).values()):
        rows.setdefault((row.name, row.files), row)
    steps = sorted(rows.values(), key=lambda row: row.order, reverse=True)
    return [StepFileLocations(row, find_file_locations(row, found)) for row in steps], found


def _make_shared_ledger_path(spec: FastCheckpointSaveSpec) -> Path:
    return Path(spec.shared) / META / f"ledger-{spec.job}.json"


def restore_fast_saves(  # noqa: PLR0913 -- the two limits have defaults that only tests change
    spec: FastCheckpointSaveSpec,
    others: CheckpointSearchResult,
    say: Callable[[str], None],
    gone: Callable[[Sequence[str]], Sequence[str]] = lambda _: (),
    wait_s: float = HELPERS_S,
    *,
    scratch: bool = False,
) -> CheckpointSearchResult:
    """Return the better of `others` (the shared directory and further tiers) and the nodes' own
    saves.

    Where the latter is newer it is gathered on every host, and its path is the same on each. Steps
    there that are newer than the answer are moved away, where the job starts with it. `gone`: which
    of the hosts whose helpers do not answer no longer run a rank; any other silent host rules the
    saves out, because its ranks would not find them. `scratch`: all saves are ruled out. Never
    raises for a helper that does not answer.
    """
    peers = PeerConnections(spec, retry_s=0.0)
    try:
        for _ in range(ROUNDS):
            steps, answered = list_node_steps(peers, spec.hosts, wait_s)
            silent = [h for h in spec.hosts if h not in answered]
            missing = [h for h in silent if h not in gone(silent)]
            if not missing:
                break
        if silent:
            say(f"no helper answers on {', '.join(silent)}")
        epoch = max([time.time_ns(), *(mine["epoch"] + 1 for mine in answered.values())])
        least = -1 if others.found is None or others.found.step is None else others.found.step
        marks = others.marks if others.marks.placed else read_checkpoint_marks([Path(spec.shared)])
        for held in () if scratch else _exclude_steps_with_checkpoint_marks(steps, marks, say):
            row = held.row
            if row.step is None or row.step < least:
                break
            if held.lost:
                with_whom = ", ".join(sorted({file.origin for file in held.lost}))
                say(f"step {row.step} is lost with {with_whom}: no running node holds all of it")
            elif missing:
                say(f"step {row.step} cannot be gathered on {', '.join(missing)}")
            elif _retry_assembling_step_on_hosts(
                peers, held, [h for h in spec.hosts if h in answered], epoch, say
            ):
                path = Path(spec.saves.dir) / row.name
                found = CompleteCheckpoint(path, row.step, None, row.format, deep=False)
                return CheckpointSearchResult(found, marks=marks)
        if answered and others.verdict in ("found", "none"):
            peers.each("aside", answered, above=least, epoch=epoch)
        return others
    finally:
        peers.close()


def _exclude_steps_with_checkpoint_marks(
    steps: Sequence[StepFileLocations], marks: CheckpointMarks, say: Callable[[str], None]
) -> list[StepFileLocations]:
    """Return the steps that no mark excludes, and log which are excluded."""
    left = []
    for held in steps:
        row = held.row
        written_ns = find_median_write_time((file.size, file.written_ns) for file in row.files)
        mark = marks.find(row.step, written_ns)
        if mark is None:
            left.append(held)
        else:
            say(f"step {row.step} of the nodes is passed over: {mark.text}")
    return left


def _retry_assembling_step_on_hosts(
    peers: PeerConnections,
    held: StepFileLocations,
    hosts: Sequence[str],
    epoch: int,
    say: Callable[[str], None],
) -> bool:
    """Gather a step and return whether every host has it. Tried twice, because a helper that has
    ended starts again within moments, and an older step costs more."""
    if _assemble_step_on_hosts(peers, held, hosts, epoch, say):
        return True
    steps, answered = list_node_steps(peers, hosts, HELPERS_S)
    again = next((each for each in steps if each.row == held.row and not each.lost), None)
    return (
        again is not None
        and set(answered) == set(hosts)
        and _assemble_step_on_hosts(peers, again, hosts, epoch, say)
    )


def _assemble_step_on_hosts(
    peers: PeerConnections,
    held: StepFileLocations,
    hosts: Sequence[str],
    epoch: int,
    say: Callable[[str], None],
) -> bool:
    row, begun = held.row, []
    moved = reassign_step_files_to_hosts(row, hosts)
    peers.finish(hosts, "gather", ASSEMBLE_S)  # of an abandoned start
    for at, host in enumerate(hosts):
        # Of a name that several nodes wrote, each node gets the file of its predecessor.
        slot = row.hosts[at] if at < len(row.hosts) else ""
        chosen: dict[str, FastSavedFile] = {}
        for file in row.files:
            if moved and file.origin != slot and _OWN.search(file.path):
                continue
            if file.path not in chosen or file.origin == slot:
                chosen[file.path] = file
        plan = [(msgspec.to_builtins(f), held.held[f]) for f in chosen.values()]
        try:
            peers.ask(host, "assemble", row=msgspec.to_builtins(row), plan=plan)
            begun.append(host)
        except OSError as error:
            say(f"step {row.step} is not gathered on {host}: {error}")
    errors = peers.finish(begun, "gather", ASSEMBLE_S)
    for why in errors[:3]:
        say(f"step {row.step} is not gathered: {why}")
    if errors or len(begun) < len(hosts):
        return False
    if not _publish_gathered_step(peers, moved or row, hosts, epoch, say):
        return False
    sources = [where[0] for where in held.held.values() if where]
    copies = {f"{host}'s copy of {origin}" for host, origin in sources if origin}
    own = {host for host, origin in sources if not origin}
    say(f"step {row.step} comes from {', '.join(sorted(own) + sorted(copies))}")
    return True


def _publish_gathered_step(
    peers: PeerConnections,
    row: FastSavedStep,
    hosts: Sequence[str],
    epoch: int,
    say: Callable[[str], None],
) -> bool:
    """Put a gathered step in its place on every host and return whether each did. All are asked,
    also after one that fails."""
    given = msgspec.to_builtins(row)
    whole = True
    for host in hosts:
        try:
            peers.ask(host, "adopt", row=given, epoch=epoch)
        except OSError as error:
            say(f"step {row.step} is not in its place on {host}: {error}")
            whole = False
    return whole


def reassign_step_files_to_hosts(row: FastSavedStep, hosts: Sequence[str]) -> FastSavedStep | None:
    """Return the step once each host has its predecessor's share, so that partners copy what has
    moved; None where each is given all of it. A node that wrote nothing was a spare: which of the
    nodes the ranks run on next is not known here."""
    wrote = {file.origin for file in row.files if _OWN.search(file.path)}
    if row.format != "deepspeed" or len(hosts) != len(row.hosts) or wrote != set(row.hosts):
        return None
    if row.hosts == tuple(hosts):
        return row
    heirs = dict(zip(row.hosts, hosts, strict=True))
    files = tuple(replace(file, origin=heirs[file.origin]) for file in row.files)
    return replace(row, hosts=tuple(hosts), files=files, seen_s=compute_time_after_step(row))


def compute_time_after_step(row: FastSavedStep) -> float:
    """Return the time, always later than a row's: nodes keep the later row of a step."""
    return max(time.time(), row.seen_s + 1e-3)
