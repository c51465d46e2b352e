"""Stacks of a job's ranks, grouped by likeness: a rank that is elsewhere than the others is named.

Ranks of a synchronous program that hangs wait for each other in a collective, all but the one that
never came to it. Two stacks are alike when the same functions called each other: lines are kept for
display, and what happens below the entrance of a collective does not count. What a job's processes
report names ranks of that job and decides about no node.
"""

import base64
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

import msgspec
from msgspec import Struct

from hpctl.toolkit import bounds
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.vocabulary.trouble import HangPlace

MOST_FRAMES, MOST_RANKS, MOST_NAMED = 64, 64, 4
"""Frames of a stack and ranks of a node that are kept; ranks that a sentence names."""


MAX_WORLD = 2**16


LINE = 900
"""Characters of a line: srun mixes those of several nodes where one is over 1,024 bytes long."""


MAX_NODE = 1 << 20
"""Bytes of what one node says, unpacked."""


_WAITS: Final = re.compile(
    r"torch/distributed/(distributed_c10d|_functional_collectives|rendezvous)\.py"
    r"|(torch_xla|deepspeed|horovod|jax)/.*(comm|collective|mpi_ops|multihost_utils)\w*\.py"
    r"|megatron/core/.*p2p_communication\.py"
)


_POINT_TO_POINT: Final = re.compile(
    r"torch/distributed/distributed_c10d\.py:(?:i?send|i?recv|(?:send|recv)_object_list"
    r"|batch_isend_irecv)\Z|megatron/core/.*p2p_communication\.py:"
)
"""Calls by which one rank sends to another (`send_object_list`), as `file:function`."""


_WAITS_NATIVE: Final = re.compile(
    r"(c10d|gloo)::|_?p?nccl[A-Z]|P?MPI_|u[cv][pt]_|nrt_|(cuda|cu|hip)\w*Synchronize"
)


_LIBRARY: Final = re.compile(r"(torch|torch_xla|deepspeed|horovod|jax|megatron)/")


_NO_WAIT: Final = re.compile(r"torch/(utils/data|distributed/checkpoint)/")


_NUMBERS: Final = re.compile(r"\d+|0x[0-9a-f]+")


_STATES: Final = {
    "D": "in the kernel, where no signal reaches it",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "dead, and not yet waited for",
}


_FILE_WAITS: Final = re.compile(
    r"wait_for_partner|(?:folio|page)_wait|wait_on_page|io_schedule|rpc_wait_bit|nfs\d?_|ll_|cl_"
    r"|ptlrpc_|ldlm_|obd_|request_wait_answer|fuse_|(?:flock|posix|locks)_lock|do_flock|fcntl_setlk"
    r"|__break_lease|ceph_|(?:anon_|fifo_)?pipe_write\b"
)
"""Functions of the kernel in which a process sleeps until a file, a lock on a file or its server
answers: fs/pipe.c (opening a named pipe, and writing to a full one, whose reader does not take the
output), mm/filemap.c, net/sunrpc, fs/nfs, Lustre, fs/fuse, fs/locks.c, fs/ceph. Reading a pipe is
not among them: that is how a data loader waits for its workers."""


_CALLERS: Final = re.compile(
    r"torch/(?:serialization\.py|utils/data\b|distributed/checkpoint/(?:filesystem|state_dict_\w+))"
)
"""Library code that says what a rank was about to do, wherever it is below it."""


_SAVES: Final = re.compile(r"torch/(?:serialization\.py|distributed/checkpoint/)")
"""Those of `_CALLERS` that read or write a file system."""


_LOCKS: Final = re.compile(r"(?:filelock|portalocker|fasteners)/")
"""Libraries that ask for the lock of a file again and again, and sleep in between."""


_LOADS: Final = re.compile(r"_next_data|_try_get_data|DataLoader")
"""Functions of torch.utils.data in which a rank waits for its workers."""


_HANDOVERS: Final = re.compile(r"(?:multiprocessing|concurrent/futures)/|(?:queue|threading)\.py\Z")
"""Modules of Python's in which a rank waits for what its processes and threads hand over."""


_FILE_MODULES: Final = re.compile(
    r"(?:shutil|tempfile|zipfile(?:/__init__)?|tarfile|gzip|bz2|lzma|glob|filecmp)\.py\Z"
    r"|numpy/lib/_?(?:npyio|format)\w*\.py|numpy/(?:_core|core)/memmap\.py"
    r"|(?:safetensors|h5py|zarr|tifffile|fsspec/implementations)/"
)
"""Modules that read or write files. One that packs or unpacks runs, and does not sleep."""


_ENGINE: Final = "_engine_run_backward"
"""torch's call of the autograd engine. Its caller sleeps while the threads of the devices work, and
while DDP's hook waits for the reduction of the gradients (torch/csrc/autograd/engine.cpp;
reducer.cpp, finalize_backward)."""


class StackFrame(Struct, frozen=True, array_like=True):
    """One call, as py-spy reports it. `line` 0: native code. `own`: no library's."""

    function: str
    file: str = ""
    line: int = 0
    own: bool = False

    def __post_init__(self) -> None:
        bounds.make_text_fields_printable(self, "function", "file")

    def __str__(self) -> str:
        place = self.file.rpartition("/")[2]
        return f"{self.function} ({place}:{self.line})" if self.line else self.function


class RankStack(Struct, frozen=True, omit_defaults=True):
    """What one rank does: its frames, innermost first; or why it is unknown (`error`).

    `state` is the kernel's letter for the process, `wchan` the kernel's function that it sleeps in.
    `children` are its child processes that do not live: `123 Z`. `flight` is the path of its NCCL
    flight recorder's dump.
    """

    rank: int
    pid: int = 0
    step: str = ""
    state: str = ""
    wchan: str = ""
    frames: tuple[StackFrame, ...] = ()
    error: str = ""
    children: tuple[str, ...] = ()
    flight: str = ""

    def __post_init__(self) -> None:
        bounds.make_text_fields_printable(self, "error", "wchan", "state", "step", "flight")


class NodeStacks(Struct, frozen=True, omit_defaults=True):
    """What one node's collector says. `world`: ranks of the job, 0 if unknown. `ras`: the beginning
    of what NCCL's RAS service said. `error`: why it cannot say more. `began`: when the first of its
    ranks was started (POSIX s), 0 if unknown. With neither ranks nor an error, no Python process of
    the job runs there."""

    node: str
    world: int = 0
    ranks: tuple[RankStack, ...] = ()
    error: str = ""
    ras: str = ""
    began: float = 0.0

    def __post_init__(self) -> None:
        bounds.make_text_fields_printable(self, "node", "error", "ras")


class StackGroup(Struct, frozen=True):
    """Ranks whose stacks are alike, and the stack of the first of them."""

    ranks: tuple[int, ...]
    waits: bool
    place: str
    frames: tuple[str, ...]
    hang_place: HangPlace = HangPlace.UNKNOWN


class SuspectRank(Struct, frozen=True):
    """One rank that the others wait for. `function`, `file` and `line` are the call in the job's
    own code, or the innermost one where none is; empty where no stack was read."""

    rank: int
    node: str
    why: str
    function: str = ""
    file: str = ""
    line: int = 0
    hang_place: HangPlace = HangPlace.UNKNOWN


class StackHangVerdict(Struct, frozen=True):
    """The ranks that are elsewhere than the others. `silent`: nodes that did not answer; `missing`:
    ranks without a process on those that did. `idle`: nodes without a rank where none is expected.
    `errors`: why stacks were not read, each once."""

    text: str
    suspects: tuple[SuspectRank, ...] = ()
    groups: tuple[StackGroup, ...] = ()
    missing: tuple[int, ...] = ()
    silent: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes of the suspects."""
        return tuple(sorted({one.node for one in self.suspects if one.node}))


def format_node_stacks(dump: NodeStacks) -> Iterator[str]:
    """Yield what a node says as lines of text that may be mixed with other nodes'."""
    packed = base64.b64encode(zlib.compress(msgspec.json.encode(dump))).decode()
    parts = [packed[at : at + LINE - 100] for at in range(0, len(packed), LINE - 100)]
    for number, part in enumerate(parts):
        yield f"stacks {dump.node} {number} {len(parts)} {part}"


def parse_node_stacks(text: Iterable[str]) -> list[NodeStacks]:
    """Return what nodes said, from lines in any order. What is torn or no such line is left out."""
    parts: dict[str, dict[int, str]] = defaultdict(dict)
    whole: dict[str, int] = {}
    for fields in (line.split() for line in text):
        if len(fields) == 5 and fields[0] == "stacks" and fields[2].isdecimal():
            parts[fields[1]][bounds.parse_count(fields[2])] = fields[4]
            whole[fields[1]] = bounds.parse_count(fields[3])
    found = []
    for node, pieces in parts.items():
        try:
            packed = "".join(pieces[number] for number in range(min(whole[node], len(pieces) + 1)))
            raw = zlib.decompressobj().decompress(base64.b64decode(packed), MAX_NODE)
            dump = msgspec.json.decode(raw, type=NodeStacks)
        except (KeyError, ValueError, zlib.error, msgspec.MsgspecError, RecursionError):
            continue
        if dump.node == node:
            found.append(dump)
    return found


def is_waiting_in_collective(frames: Sequence[StackFrame]) -> bool:
    """Return whether a stack ends in a collective, or in waiting for the GPU to have done one."""
    return _find_collective_frame(frames) is not None


def _find_collective_frame(frames: Sequence[StackFrame]) -> int | None:
    """Return where a stack enters the collective that it waits in; None where it waits in none."""
    found: int | None = None
    for number, frame in enumerate(frames):
        if frame.line == 0:
            if found is None and _WAITS_NATIVE.match(frame.function):
                found = number
        elif _WAITS.search(frame.file):
            found = number
        elif not _LIBRARY.match(frame.file) or _NO_WAIT.match(frame.file):
            break
    return found


def _find_collective_wait_frame_of_rank(rank: RankStack) -> int | None:
    """Return where a rank enters the collective that it waits in; None where it waits in none.

    Python's frames do not show that the engine's hook waits: that its caller sleeps shows it.
    """
    found = _find_collective_frame(rank.frames)
    sleeps = rank.state == "S" and bool(rank.frames) and rank.frames[0].function == _ENGINE
    return 0 if found is None and sleeps else found


@lru_cache(4096)
def _normalize_stack_frame_name(file: str, function: str) -> tuple[str, str]:
    return _NUMBERS.sub("#", file.rpartition("/")[2]), _NUMBERS.sub("#", function)


_Key = tuple[bool, tuple[tuple[str, str], ...]]


def _make_stack_grouping_key(rank: RankStack) -> _Key:
    """Return what is the same for stacks that are alike: names of files and functions, without
    numbers that a compiler or a path puts in; recursion counts once."""
    at = _find_collective_wait_frame_of_rank(rank)
    kept: list[tuple[str, str]] = []
    for frame in rank.frames[at or 0 :]:
        name = _normalize_stack_frame_name(frame.file, frame.function)
        if frame.line and (not kept or kept[-1] != name):
            kept.append(name)
    return at is not None, tuple(kept)


def diagnose_hang_from_rank_stacks(
    dumps: Iterable[NodeStacks],
    asked: Iterable[str] = (),
    expected: Collection[str] | None = None,
    *,
    spares: bool = False,
) -> StackHangVerdict:
    """Return which of a job's ranks are elsewhere than the others, by what its nodes report.

    `asked`: the nodes that were to answer. `expected`: those on which a step of the job runs, None
    if unknown. `spares`: the job keeps nodes idle on purpose.
    """
    answers = list(dumps)
    step = _find_step_with_most_ranks(answers)
    node_of: dict[int, str] = {}
    by_rank: dict[int, RankStack] = {}
    for answer in answers:
        for one in answer.ranks[:MOST_RANKS]:
            if one.step == step and 0 <= one.rank < MAX_WORLD:
                node_of[one.rank], by_rank[one.rank] = answer.node, one
    errors = {one.error for one in answers} | {one.error for one in by_rank.values()}
    errors.discard("")
    empty = sorted(one.node for one in answers if not one.ranks and not one.error)
    lost = empty if not by_rank else [node for node in empty if node in (expected or ())]
    idle = tuple(node for node in empty if node not in lost)
    if lost:
        errors.add(f"no Python process of the job runs on {fold_hostlist(lost)[:200]}")
    silent = tuple(sorted(set(asked) - {answer.node for answer in answers}))
    # Ranks of nodes that did not answer are not known to be missing.
    world = min(max((answer.world for answer in answers), default=0), MAX_WORLD)
    missing = () if silent else tuple(rank for rank in range(world) if rank not in by_rank)
    # Where most ranks have no process of Python, their program is none of Python, or its processes
    # do not say which rank they are: that tells nothing of one rank.
    many = 2 * len(missing) > world
    if many and by_rank:
        errors.add(f"{len(missing)} of {world} ranks have no Python process that names its rank")
    by_key: dict[_Key, list[RankStack]] = defaultdict(list)
    for _, one in sorted(by_rank.items()):
        if one.frames:
            by_key[_make_stack_grouping_key(one)].append(one)
    ordered = sorted(by_key.items(), key=lambda item: (-len(item[1]), item[1][0].rank))
    groups = tuple(_make_stack_group(key, members) for key, members in ordered)
    suspects = _find_suspect_ranks(by_rank, [members for _, members in ordered], groups, node_of)
    gone = () if many else tuple(map(_make_missing_rank_suspect, missing[:MOST_RANKS]))
    suspects = (*gone, *suspects)
    text = _describe_stack_hang_verdict(suspects, groups, len(by_rank), silent, sorted(errors))
    if idle:
        idle_nodes = fold_hostlist(idle)[:200]
        text += (
            f"; {idle_nodes}: spare, idle"
            if spares
            else f"; no process of the job runs on {idle_nodes}"
        )
    return StackHangVerdict(text, suspects, groups, missing, silent, tuple(sorted(errors)), idle)


def _find_step_with_most_ranks(answers: Sequence[NodeStacks]) -> str:
    """Return the step with the most ranks: a job may run a monitor in another step than its
    training."""
    ranks = chain.from_iterable(answer.ranks[:MOST_RANKS] for answer in answers)
    sizes = Counter(one.step for one in ranks)
    return max(sizes, key=lambda step: (sizes[step], step), default="")


def _make_stack_group(key: _Key, members: Sequence[RankStack]) -> StackGroup:
    frames = members[0].frames
    place = frames[_find_collective_wait_frame_of_rank(members[0]) or 0]
    ranks = tuple(one.rank for one in members)
    texts = tuple(map(str, frames[:MOST_FRAMES]))
    return StackGroup(ranks, key[0], str(place), texts, _classify_rank_hang_place(members[0]))


def _find_suspect_ranks(
    by_rank: dict[int, RankStack],
    ordered: Sequence[Sequence[RankStack]],
    groups: Sequence[StackGroup],
    node_of: dict[int, str],
) -> tuple[SuspectRank, ...]:
    """Return those that do not live, then those that are neither in a collective nor with most
    others.

    Where all wait, the fewer wait for the more: their program took another branch. The stages of a
    pipeline, of which one sends and another receives, did not. Where more than half would be
    suspect, none is.
    """
    found = {
        rank: f"is {_STATES[one.state]}"
        for rank, one in by_rank.items()
        if one.state in ("T", "t", "Z")
    }
    dead = dict(found)
    read_ = sum(len(members) for members in ordered)
    for rank, one in by_rank.items():
        if not one.frames and 2 * read_ > len(by_rank):
            found.setdefault(rank, f"could not be read: {one.error}")
    odd = [
        g
        for n, g in enumerate(groups)
        if not g.waits and not (n == 0 and _is_majority_stack_group(g, read_))
    ]
    if (
        not odd
        and not found
        and not any(_is_rank_in_send_or_receive(members[0]) for members in ordered)
    ):
        odd = list(groups[1:]) if groups and _is_majority_stack_group(groups[0], read_) else []
    for rank in chain.from_iterable(group.ranks for group in odd):
        found.setdefault(rank, _describe_rank_kernel_wait(by_rank[rank]))
    if 2 * len(found) > len(by_rank):
        found = dead
    if 2 * len(found) > len(by_rank):
        return ()
    return tuple(
        _make_suspect_rank(by_rank[rank], node_of[rank], why) for rank, why in found.items()
    )


def _is_rank_in_send_or_receive(rank: RankStack) -> bool:
    """Return whether a rank waits to send to another one, or to receive from it."""
    at = _find_collective_wait_frame_of_rank(rank)
    frame = rank.frames[at or 0]
    return at is not None and bool(_POINT_TO_POINT.match(f"{frame.file}:{frame.function}"))


def _describe_rank_kernel_wait(rank: RankStack) -> str:
    """Return in what of the kernel's a rank sleeps; empty where that says nothing."""
    if rank.state == "D":
        return f"is {_STATES['D']} ({rank.wchan})"
    if _FILE_WAITS.match(rank.wchan):
        return f"waits for a file in the kernel ({rank.wchan})"
    return ""


def _is_majority_stack_group(group: StackGroup, of: int) -> bool:
    return 2 * len(group.ranks) > of


def _make_missing_rank_suspect(rank: int) -> SuspectRank:
    return SuspectRank(rank, "", "has no process", hang_place=HangPlace.GONE)


def _make_suspect_rank(rank: RankStack, node: str, why: str) -> SuspectRank:
    hang_place = _classify_rank_hang_place(rank)
    if not rank.frames:
        return SuspectRank(rank.rank, node, why, hang_place=hang_place)
    own = _find_job_code_frame(rank.frames)
    where = f"is in {own}" + (f", in {rank.frames[0]}" if rank.frames[0] != own else "")
    caller = _find_calling_library_file(rank.frames)
    where += f", called by {caller}" if caller else ""
    dead = f", its processes {', '.join(rank.children[:3])}" if rank.children else ""
    file = own.file.rpartition("/")[2]
    text = "; ".join(filter(None, (why, where + dead)))
    return SuspectRank(rank.rank, node, text, own.function, file, own.line, hang_place)


def _find_job_code_frame(frames: Sequence[StackFrame]) -> StackFrame:
    """Return the innermost call in the job's own code, or the innermost one where none is."""
    inner = next((frame for frame in frames if frame.line), frames[0])
    return next((frame for frame in frames if frame.own), inner)


def _find_calling_library_file(frames: Sequence[StackFrame]) -> str:
    """Return the library's code that says what a rank was about to do; empty where none is."""
    found = next(filter(None, (_CALLERS.match(frame.file) for frame in frames)), None)
    return found[0] if found is not None else ""


def _classify_rank_hang_place(rank: RankStack) -> HangPlace:
    """Return where a rank is, by its state in the kernel and its stack."""
    if rank.state in ("T", "Z"):
        return HangPlace.STOPPED if rank.state == "T" else HangPlace.GONE
    if rank.state == "D" or _FILE_WAITS.match(rank.wchan):
        return HangPlace.FILES
    if not rank.frames:
        return HangPlace.UNKNOWN
    caller = _find_calling_library_file(rank.frames)
    shown = (rank.frames[0], _find_job_code_frame(rank.frames))
    locks = any(_LOCKS.match(frame.file) for frame in rank.frames)
    sleeps = rank.state == "S" and bool(_FILE_MODULES.match(rank.frames[0].file))
    if locks or sleeps or _SAVES.match(caller) or any(map(_is_file_system_call_frame, shown)):
        return HangPlace.FILES
    if rank.children and is_waiting_for_other_thread(rank.frames[0]):
        return HangPlace.LOADER
    if caller or any(_LOADS.search(frame.function) for frame in shown):
        return HangPlace.LOADER
    return HangPlace.CODE


def is_waiting_for_other_thread(frame: StackFrame) -> bool:
    """Return whether a call waits for what another thread or process hands over."""
    return _HANDOVERS.match(frame.file) is not None


def _is_file_system_call_frame(frame: StackFrame) -> bool:
    """Return whether a call reads or writes a file system by its name."""
    return frame.function == "save_checkpoint" or frame.file.rpartition("/")[2] == "pathlib.py"


def _describe_stack_hang_verdict(
    suspects: Sequence[SuspectRank],
    groups: Sequence[StackGroup],
    ranks: int,
    silent: Sequence[str],
    errors: Sequence[str],
) -> str:
    """Return the verdict as a sentence of bounded length."""
    named = []
    for one in suspects[:MOST_NAMED]:
        where = f" on {one.node}" if one.node else ""
        named.append(f"rank {one.rank}{where} {one.why[:200]}")
    more = len(suspects) - MOST_NAMED
    named += [f"{more} more ranks"] if more > 0 else []
    if groups:
        first = groups[0]
        does = "wait" if first.waits else "are"
        many = f"{len(first.ranks)} of {ranks} ranks {does} in {first.place[:200]}"
        if not suspects:
            others = f", the others in {len(groups) - 1} other places" if len(groups) > 1 else ""
            many = f"no rank stands out: {many}{others}"
        named.append(many)
    elif not ranks:
        named.append("no rank of the job was found")
    named += [f"no stack was read: {errors[0][:200]}"] if errors and not groups else []
    named += [f"no answer from {fold_hostlist(silent)[:200]}"] if silent else []
    return "; ".join(named)
