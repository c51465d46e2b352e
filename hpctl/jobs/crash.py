"""What the end of a run amounts to, by its exit code and the last lines of its log.

The regular expressions here are anchored, without nested repeats, on lines of bounded length.
"""

import re
import signal
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import IntEnum
from functools import cache
from importlib.resources import files
from itertools import chain, pairwise
from typing import Any, Final

import yaml
from msgspec import Struct
from msgspec.structs import replace

from hpctl.jobs.launchers import find_first_launched_process_end, is_log_of_launcher_started_run
from hpctl.jobs.log_end import (
    LABEL,
    SURVIVED_LINES,
    is_normal_program_output_line,
    strip_srun_task_label,
)
from hpctl.jobs.logs.patterns import LogLinePattern
from hpctl.jobs.torch_checks import find_mismatched_collective, find_ranks_missing_from_barrier
from hpctl.jobs.tracebacks import (
    ParsedException,
    find_traceback_exceptions,
    mask_addresses_and_numbers,
    split_launcher_prefix,
)
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import (
    EVIDENCE_CHARS,
    UNSTARTED,
    Trouble,
    TroubleKind,
    classify_program_start_failure,
)

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RANK: Final = re.compile(r"\[[rR]ank ?(\d+)\]|\bRank (\d+): ")
"""How torch, and programs that begin a message with it, name the rank that writes."""
_SAID_RANK: Final = re.compile(r"\bRank (\d+)\b|\bon rank (\d+)\b")
"""Words about a rank, which may be another one than the rank that writes."""
_FILE: Final = re.compile(r"""["'](/[^"']{1,100})["']""")
"""The file that an error of the operating system names."""


def strip_control_characters(text: str) -> str:
    """Return one line without colors and control characters."""
    bare = _COLOUR.sub("", text)
    return "".join(c if c.isprintable() else " " for c in bare.rstrip())


def parse_rank_label(line: str, *, launched: bool = False) -> int | None:
    """Return the rank that a line says it is from. `launched`: srun's tasks are launchers of
    ranks."""
    found = _RANK.search(line)
    if found is None and not launched:
        found = LABEL.match(line)
    if found is None:
        found = _SAID_RANK.search(line)
    return int(next(filter(None, found.groups()))) if found else None


TAIL_LINES: Final = 500
TAIL_BYTES: Final = 256 * 1024
LINE_CHARS: Final = 2000
_SURVIVED_BEFORE: Final = 4
"""So many are enough before an exception that ended a rank: the ranks of a run whose rank has ended
stop at its next collective."""
_MESSAGE_LINES: Final = 12
"""Lines of an exception's message that are read: DALI's names the error of CUDA in the seventh."""
_SURVIVED_KINDS: Final = frozenset(
    {TroubleKind.GPU_MEMORY, TroubleKind.HOST_MEMORY, TroubleKind.DISK_FULL, TroubleKind.STORAGE}
)
"""Kinds of errors that programs catch and get over: with a smaller batch, without a cache."""
_OF_SYSTEM: Final = re.compile(
    r"srun: |slurmstepd|[Oo]ut of memory: Killed|oom-kill:|NVRM: |what\(\): |[Bb]us error"
    r"|memory allocation of \d{1,20} bytes failed"
)
"""Lines of Slurm, of the kernel, and of a process that aborts."""
_CLASSES: Final = {
    "MemoryError": (TroubleKind.HOST_MEMORY, "the host has no memory left for it"),
    "_ArrayMemoryError": (TroubleKind.HOST_MEMORY, "the host has no memory left for it"),
    "ArrowMemoryError": (TroubleKind.HOST_MEMORY, "the host has no memory left for it"),
    "OutOfMemoryError": (TroubleKind.GPU_MEMORY, "GPU out of memory"),
}
"""What an exception is by its class, which a prefix before its text does not hide."""

_DIED: Final = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"})
_SAVES: Final = frozenset({"SIGUSR1", "SIGUSR2"})
_TOO_LARGE: Final = "SIGXFSZ"
"""The signal of write(2) beyond the limit of a file's size (RLIMIT_FSIZE)."""
_NO_ECHO: Final = _DIED - {"SIGABRT"} | {"SIGKILL", _TOO_LARGE}
"""Signals by which no rank ends that has only lost a peer: torch's watchdog aborts."""
_SRUN_CODE: Final = re.compile(r"srun: error: (\S+): tasks? \S+: Exited with exit code (\d+)")
_NOT_STARTED: Final = re.compile(
    r"slurmstepd: error: (execve\(\): .+: (?:No such file or directory|Permission denied"
    r"|Exec format error))|^(?:\d+: )?(\S*python\S*: can't open file .+: \[Errno 2\] .+)"
)
_SRUN_NODE: Final = re.compile(r"srun: error: (\S+): tasks? ")
_TIMED_OUT: Final = re.compile(
    r"Rank (\d+)\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+)"
)
_P2P_TIMED_OUT: Final = re.compile(
    r"operation timeout: WorkNCCL\(.*OpType=(?:SEND|RECV|COALESCED)\b"
)
_GROUP_STATUS: Final = re.compile(
    r"(?: *\d{1,6}: )?(?:\[\w{1,16}\]:? ?)?\[rank(\d{1,6})\]:"
    r".*\[PG ID \d+ PG GUID (\w{1,64})(?:\(([\w.-]{0,64})\))? Rank \d+\].*"
    r"[Ll]ast enqueued (?:NCCL )?work: (-?\d{1,15}), last completed (?:NCCL )?work: (-?\d{1,15})"
)
"""What torch's watchdog says of a process group: the rank, the group's name and description, and
the numbers of the last collectives issued and completed (ProcessGroupNCCL.cpp, torch 2.11)."""
_NODE: Final = re.compile(
    r"Node failure on (\S+)|, node: ([\w.-]+)|^(?:\S+ )?([\w.-]+):\d+:\d+ \[\d+\] NCCL "
)
_DEVICE: Final = re.compile(
    r"\bGPU (\d+) has|cuda:(\d+)|Device: (\d+)|Xid \(([^)]+)\)"
    r"|:\d+:\d+ \[(\d+)\] NCCL |\b(nd\d+ nc\d+)"
)


class CrashPatternPriority(IntEnum):
    """How much a line explains. The lowest tier wins, and within it the first line."""

    ORDER = 0
    """Slurm says that it ended the run, and why."""
    CAUSE = 1
    """A rank says what broke in it."""
    ECHO = 2
    """A rank reports that it lost others: the first of these counts when no rank reports what
    broke."""
    WRAPPER = 3
    """A launcher says that one of its processes ended, and of what signal or exit code."""


class CrashPattern(Struct, frozen=True):
    """One wording of crash_patterns.yaml, which says what each field means."""

    kind: TroubleKind
    pattern: str
    says: str
    sample: str
    source: str
    tier: CrashPatternPriority = CrashPatternPriority.CAUSE
    named: bool = False
    names_node: bool = True


class _ErrorLineOrigin(IntEnum):
    """What a line that explains something is."""

    TEXT = 0
    """Any text: a program may have printed it and gone on."""
    CAUGHT = 1
    """A traceback that torch's hook for uncaught exceptions has not printed: a program may have
    caught the exception, printed it and gone on, or has no such hook."""
    RAISED = 2
    """An exception that ended its process or its thread."""
    SYSTEM = 3
    """What a rank does not survive, or what Slurm or the kernel says."""


class _MatchedErrorLine(Struct, frozen=True):
    """A line that explains something."""

    line: int
    tier: CrashPatternPriority
    kind: TroubleKind
    why: str
    signature: str
    names_node: bool = True
    begin: int = 0
    """The first line that belongs to it."""
    known: bool = True
    """A pattern says what the line means."""
    rank: int | None = None
    """The rank that failed, where another one prints its traceback, or where a launcher's prefix
    names it."""
    source: _ErrorLineOrigin = _ErrorLineOrigin.TEXT


class _FirstTorchrunFailure(Struct, frozen=True):
    """What torchrun calls the first observed failure."""

    host: str = ""
    rank: int | None = None
    code: int | None = None


def classify_crash(  # noqa: PLR0913 -- pure: all that decides is an argument, by keyword
    exit_code: int,
    tail: Sequence[str],
    *,
    at: datetime,
    node: NodeName | None = None,
    rank: int | None = None,
    policy: RunPolicy,
    again: bool = False,
) -> Trouble:
    """Return what the end of a run amounts to.

    `exit_code` is the shell's (128 + n for signal n; Python's -n is understood). `tail` are the
    log's last lines; the last 500 and 256 KiB count. `node` and `rank` are where the first task
    ended, used where the log names none. `again`: another run or rank of this job was able to start
    its command. Never raises for odd text.
    """
    lines = _select_last_log_lines(tail)
    launched = is_log_of_launcher_started_run(lines)
    root = _find_first_failure_in_launcher_log(lines)
    code = _convert_to_shell_exit_code(exit_code)
    # The first task to end is a launcher then, and its number is not that of a rank.
    rank = None if launched else rank
    trouble = Trouble(TroubleKind.CRASH, at, "", exit_code=code, node=node, rank=rank)
    first = _FirstTorchrunFailure(node or "", rank, code) if root.code is None else root
    hit = _find_most_explanatory_error_line(
        lines, killed=_get_signal_name(first.code or 0) == "SIGKILL"
    )
    contract = _classify_exit_codes_by_policy(
        policy, [code, root.code, *_list_srun_exit_codes(lines)]
    )
    if contract:
        kind, why, code = contract
        return replace(trouble, kind=kind, why=why, signature=why, exit_code=code)
    if code == 0 and not (hit and hit.tier is CrashPatternPriority.ORDER):
        why = "it ended with exit code 0 before its end"
        return replace(trouble, kind=TroubleKind.NO_PROGRESS, why=why, signature="exit 0")
    if hit is None or hit.tier > CrashPatternPriority.CAUSE:
        why = _describe_command_start_failure([code, root.code], lines)
        if why:
            kind, reason = classify_program_start_failure(why, again)
            return replace(trouble, kind=kind, why=reason, signature=why)
    if (
        hit is not None
        and hit.tier is CrashPatternPriority.ECHO
        and _is_first_failure_without_peer_loss(first, lines)
    ):
        consequence = hit.why
        hit = _classify_exit_code(first.code or 0)
        trouble = replace(trouble, rank=first.rank, node=node if first.rank == rank else None)
        hit = replace(hit, why=f"{hit.why}; the other ranks report: {consequence}")
        code = first.code or code
    elif hit is None or hit.tier is CrashPatternPriority.WRAPPER:
        code = root.code if root.code is not None else code
        # A launcher's exit code adds nothing to its own text; a signal does.
        hit = _classify_exit_code(code) if hit is None or _get_signal_name(code) else hit
    return _add_failure_node_and_evidence(trouble, hit, lines, root, code)


def classify_uncaught_exception(trouble: Trouble, tail: Sequence[str]) -> Trouble | None:
    """Return a trouble as the exception that ended a rank or one of its threads by the log; None
    where there is none, or where the run has got over it.

    A process whose main thread has raised lives on while another thread, or a child, does. `tail`
    is as for `classify_crash`.
    """
    lines = _select_last_log_lines(tail)
    hit = _find_most_explanatory_error_line(lines, killed=False)
    if (
        hit is None
        or hit.tier is not CrashPatternPriority.CAUSE
        or hit.source is not _ErrorLineOrigin.RAISED
    ):
        return None
    bare = replace(trouble, rank=None, node=None)
    return _add_failure_node_and_evidence(
        bare, hit, lines, _FirstTorchrunFailure(), trouble.exit_code or 0
    )


def _is_first_failure_without_peer_loss(first: _FirstTorchrunFailure, lines: Sequence[str]) -> bool:
    """Return whether the rank that ended first ended without having lost a peer.

    A rank that loses a peer raises, which is exit code 1, or aborts itself; it is not killed, does
    not fault and chooses no exit code. Where the first rank to end did so, and said nothing of a
    lost peer, the others lost it.
    """
    if first.code is None or not _is_root_cause_exit_code(first.code):
        return False
    launched = is_log_of_launcher_started_run(lines)
    if first.rank is None:
        return launched
    rows = _map_lines_to_crash_patterns(lines)
    echoes = [number for number, row in rows.items() if row.tier is CrashPatternPriority.ECHO]
    return first.rank not in {
        parse_rank_label(lines[number], launched=launched) for number in echoes
    }


def _add_failure_node_and_evidence(
    trouble: Trouble,
    hit: _MatchedErrorLine,
    lines: Sequence[str],
    root: _FirstTorchrunFailure,
    code: int,
) -> Trouble:
    """Return the trouble with place and evidence."""
    line = lines[hit.line] if 0 <= hit.line < len(lines) else ""
    evidence = "\n".join(lines[hit.begin : hit.line + 3])[-EVIDENCE_CHARS:] if line else ""
    located = replace(
        trouble, kind=hit.kind, signature=hit.signature, exit_code=code, evidence=evidence
    )
    if not hit.names_node:
        # Who complains of the others is not who is broken, except where one is behind them all.
        return _add_lagging_rank_to_failure(
            replace(located, why=hit.why, node=None, rank=None), lines
        )
    rank = hit.rank
    if rank is None:
        rank = parse_rank_label(line, launched=is_log_of_launcher_started_run(lines))
    if rank is None:
        rank = root.rank if root.rank is not None else trouble.rank
    same_place = trouble.rank in (None, rank)
    named = _find_first_pattern_capture(_NODE, [line]) or (root.host if rank == root.rank else "")
    if not named and not trouble.node:
        named = _find_first_pattern_capture(_SRUN_NODE, lines)
    node = _shorten_host_name(named) or (trouble.node if same_place else None)
    why = hit.why + _describe_error_line_details(hit, lines)
    why = why if rank is None else f"rank {rank}: {why}"
    return replace(
        located, why=why, node=node, rank=rank, device=_find_first_pattern_capture(_DEVICE, [line])
    )


def _add_lagging_rank_to_failure(trouble: Trouble, lines: Sequence[str]) -> Trouble:
    """Return a trouble of all ranks with the rank behind it, where the lines show one.

    torch's watchdog reports how far each rank is in each group. A rank that has issued fewer
    collectives than one that others wait in did not come to it: it hangs, and the network is well.
    """
    if trouble.signature == CALLS_DIFFER:
        why, rank = find_mismatched_collective(lines) or (trouble.why, None)
        return replace(trouble, why=why, rank=rank)
    if trouble.kind not in (TroubleKind.NETWORK, TroubleKind.HANG):
        return trouble
    missing = find_ranks_missing_from_barrier(lines) or _describe_ranks_absent_from_collective(
        lines
    )
    if missing is not None:
        why, rank = missing
        return replace(trouble, kind=TroubleKind.HANG, why=why, rank=rank, signature=NOT_COME)
    oldest: dict[int, int] = {}
    for line in lines:
        found = _TIMED_OUT.search(line)
        if found:
            rank, number = int(found[1]), int(found[2])
            oldest[rank] = min(number, oldest.get(rank, number))
    if len(oldest) < 2:
        return trouble
    last, other = sorted(oldest, key=oldest.__getitem__)[:2]
    if oldest[last] == oldest[other]:
        return trouble
    return replace(trouble, why=f"{trouble.why}: rank {last} is behind the others", rank=last)


def _describe_ranks_absent_from_collective(lines: Sequence[str]) -> tuple[str, int | None] | None:
    """Return who did not come to a collective, as a sentence, and the rank where it is one.

    Point-to-point operations of a group are counted apart on each rank, so no rank is named where
    one of them timed out.
    """
    if any(_P2P_TIMED_OUT.search(line) for line in lines):
        return None
    groups: dict[str, dict[int, tuple[int, int]]] = {}
    names: dict[str, str] = {}
    for line in lines:
        found = _GROUP_STATUS.match(line)
        if found:
            rank, group = int(found[1]), found[2]
            names[group] = found[3] or f"process group {group}"
            groups.setdefault(group, {})[rank] = (int(found[4]), int(found[5]))
    stuck: set[int] = set()
    for ranks in groups.values():
        stuck.update(rank for rank, (issued, completed) in ranks.items() if issued > completed)
    for group, ranks in groups.items():
        waiting = [
            done + 1 for rank, (issued, done) in ranks.items() if rank in stuck and done >= 0
        ]
        if not waiting:
            continue
        number = min(waiting)
        absent = sorted(
            rank for rank, (issued, _) in ranks.items() if issued < number and rank not in stuck
        )
        if absent and len(absent) <= len(waiting):
            listed = ", ".join(map(str, absent[:8]))
            who = f"rank {listed}" if len(absent) == 1 else f"ranks {listed}"
            others = "1 other waits" if len(waiting) == 1 else f"{len(waiting)} others wait"
            why = f"{who} did not come to collective {number} of {names[group]}, where {others}"
            return why, absent[0] if len(absent) == 1 else None
    return None


WORKER_DIED: Final = "a data loader worker died"
"""The signature of a data loader whose worker ended, as in crash_patterns.yaml."""
PEER_LOST: Final = "a peer was lost"
"""The signature of a rank whose connection a peer has closed, as in crash_patterns.yaml."""
SIZES_DIFFER: Final = "the ranks' tensors differ in size"
"""The signature of gloo's check of a message's length, as in crash_patterns.yaml."""
CALLS_DIFFER: Final = "the ranks call different collectives"
"""The signature of a program whose ranks call different collectives."""
NOT_COME: Final = "hang: did not come to a collective"
"""The signature of a rank that others wait for in a collective."""
_ASSERTED: Final = re.compile(r"([\w.-]{1,80}\.cuh?:\d{1,6}): .*Assertion `(.{1,120}?)[`'] failed")
_ASKED_FOR: Final = re.compile(
    r"(?i)(?:tried|trying) to allocate (\d[\d.,]* ?\w+)(?:.* of which (\d[\d.,]* \w+) is free)?"
)
MISUSED: Final = "NCCL was used wrongly"
_LAST_ERROR: Final = re.compile(r"Last error:\s*\n(.{1,200})")
_ASKED_DEVICE: Final = re.compile(r"\b(cuda:\d{1,4})\b")


def _describe_error_line_details(hit: _MatchedErrorLine, lines: Sequence[str]) -> str:
    """Return what else the lines of an error say that its reader needs, for the end of a
    sentence."""
    block = lines[max(hit.begin, 0) : hit.line + 1]
    if hit.kind in (TroubleKind.GPU_MEMORY, TroubleKind.HOST_MEMORY):
        for line in block:
            found = _ASKED_FOR.search(line)
            if found:
                free = f", {found[2]} free" if found[2] else ""
                return f": it asked for {found[1]}{free}"
    elif hit.signature == MISUSED:
        last = _find_first_pattern_capture(
            _LAST_ERROR, [f"{one}\n{two}" for one, two in pairwise(lines)]
        )
        return f": {last[:120]}" if last else ""
    elif INVALID_DEVICE in hit.signature:
        asked = _find_first_pattern_capture(_ASKED_DEVICE, block)
        return f" (it asks for {asked})" if asked else ""
    elif "device-side assert" in hit.signature or "CUBLAS_STATUS" in hit.signature:
        for line in lines:
            found = _ASSERTED.search(line)
            if found:
                return f": the assertion `{found[2]}` of a kernel failed ({found[1]})"
    return ""


NO_GPU: Final = "it sees no CUDA GPU"
INVALID_DEVICE: Final = "CUDA error: invalid device ordinal"
_HIDES: Final = frozenset({"", "-1", "NoDevFiles", "none", "void"})


class JobGpuAllocation(Struct, frozen=True):
    """The GPUs of a job by its environment.

    `visible` is CUDA_VISIBLE_DEVICES as the program was started with it, None where it is unset.
    `granted` is the number of GPUs that Slurm gave the job on a node, None if unknown. `listed` are
    their numbers on the node (SLURM_JOB_GPUS). `nodes` are the nodes on which tasks ended with the
    same exit code. `worked`: the job has trained before, so it does see GPUs.
    """

    visible: str | None = None
    granted: int | None = None
    listed: tuple[str, ...] = ()
    nodes: tuple[NodeName, ...] = ()
    worked: bool = False

    @property
    def hides_gpus(self) -> bool:
        """Return whether CUDA_VISIBLE_DEVICES leaves no GPU: CUDA ignores its entries from the
        first invalid one on (CUDA C++ Programming Guide, "CUDA Environment Variables")."""
        if self.visible is None:
            return False
        first = self.visible.partition(",")[0].strip()
        if first in _HIDES or first.startswith("-"):
            return True
        in_range = self.granted is None or not first.isdecimal() or int(first[:6]) < self.granted
        return not in_range and first not in self.listed


def explain_missing_gpu_failure(trouble: Trouble, grant: JobGpuAllocation) -> Trouble:
    """Return a trouble of a program without a GPU, or without the GPU that it asks for, with the
    cause.

    Where the job's environment hides the GPUs the cause is the user's: a crash that names no node.
    Else the node is suspect. Any other trouble is returned as it is.
    """
    if INVALID_DEVICE in trouble.signature and trouble.kind is TroubleKind.CRASH:
        return replace(trouble, why=trouble.why + _describe_available_gpus(grant))
    if trouble.signature != NO_GPU:
        return trouble
    hidden = ""
    if grant.hides_gpus:
        hidden = f"the job sees no GPU: CUDA_VISIBLE_DEVICES={grant.visible}"
    elif grant.granted == 0 and not grant.worked:
        hidden = "the job has no GPUs: Slurm gave it none (sbatch --gpus-per-node=N asks for them)"
    elif len(grant.nodes) > 1 and not grant.worked:
        first, second, *_ = sorted(grant.nodes)
        hidden = (
            f"no GPU is visible on {first}, {second} at the same time: the program or its"
            " environment hides them (CUDA_VISIBLE_DEVICES, the container's options)"
        )
    if hidden:
        signature = "the environment hides the GPUs"
        return replace(trouble, kind=TroubleKind.CRASH, why=hidden, signature=signature, node=None)
    node = f"node {trouble.node}" if trouble.node else "the node"
    if not grant.granted:
        why = f"{trouble.why}: is CUDA_VISIBLE_DEVICES right, and does nvidia-smi answer on {node}?"
        return replace(trouble, why=why)
    why = f"{node} shows no CUDA GPU although Slurm gave it {grant.granted} ({trouble.why})"
    return replace(trouble, why=why)


def _describe_available_gpus(grant: JobGpuAllocation) -> str:
    """Return what the program could have asked for."""
    given = f"; Slurm gave {grant.granted} a node" if grant.granted is not None else ""
    visible = f", CUDA_VISIBLE_DEVICES={grant.visible}" if grant.visible is not None else ""
    return f"{given}{visible}"


def _select_last_log_lines(tail: Sequence[str]) -> list[str]:
    """Return the last lines that count, one line each, without colors."""
    kept: list[str] = []
    left = TAIL_BYTES
    for text in reversed(tail[-TAIL_LINES:]):
        line = strip_control_characters(text[:LINE_CHARS])
        left -= len(line) + 1
        if left < 0:
            break
        kept.append(line)
    return kept[::-1]


def _find_most_explanatory_error_line(
    lines: Sequence[str], *, killed: bool
) -> _MatchedErrorLine | None:
    """Return the hit of the lowest tier, and of those the first, among what the run did not
    survive. `killed`: SIGKILL ended the process that ended first, which no exception does."""
    hits = [*_find_matched_error_lines(lines)]
    explained = set(chain.from_iterable(range(hit.begin, hit.line + 1) for hit in hits))
    lived_to = _find_last_survived_error_line(lines, explained, SURVIVED_LINES)
    fatal = [hit for hit in hits if hit.tier is CrashPatternPriority.ORDER or hit.line >= lived_to]
    if killed:
        fatal = [hit for hit in fatal if not _is_survivable_error(hit)]
    elif any(
        hit.source is _ErrorLineOrigin.RAISED and not _is_consequence_of_other_error(hit)
        for hit in fatal
    ):
        # One exception did end a rank, so fewer lines show that it had got over the others.
        lived_to = _find_last_survived_error_line(lines, explained, _SURVIVED_BEFORE)
        last = max(hit.line for hit in fatal if hit.source is _ErrorLineOrigin.RAISED)
        fatal = [
            hit for hit in fatal if hit.line >= min(lived_to, last) or not _is_survivable_error(hit)
        ]
    best = min(fatal, key=_make_error_sort_key, default=None)
    if best is not None and not best.known:
        # A later error of the same failure may have a known cause, as a loader's worker that died;
        # so may the rest of a message that begins with no more than a title.
        later = _list_chained_exception_lines(lines, best.line) | _list_exception_message_lines(
            lines, best.line
        )
        known = (hit for hit in fatal if hit.known and hit.line in later)
        best = next((hit for hit in known if hit.tier is CrashPatternPriority.CAUSE), best)
    if best is not None and best.signature == WORKER_DIED:
        # slurmstepd reports the kernel's kill when the step ends: after the worker's parent.
        return next((hit for hit in fatal if hit.kind is TroubleKind.HOST_MEMORY), best)
    return best


def _is_consequence_of_other_error(hit: _MatchedErrorLine) -> bool:
    return hit.tier > CrashPatternPriority.CAUSE


def _is_survivable_error(hit: _MatchedErrorLine) -> bool:
    """Return whether a process can go on after what a hit says."""
    return hit.tier is CrashPatternPriority.CAUSE and hit.source < _ErrorLineOrigin.RAISED


def _make_error_sort_key(hit: _MatchedErrorLine) -> tuple[int, bool, int]:
    """Return what the best hit is least in: of echoes, one with a known meaning goes first."""
    return hit.tier, _is_consequence_of_other_error(hit) and not hit.known, hit.line


def _list_chained_exception_lines(lines: Sequence[str], first: int) -> set[int]:
    """Return the lines of the exceptions that were raised while that of a line was handled."""
    found = {first}
    for one in find_traceback_exceptions(lines):
        if one.after in found:
            found.add(one.line)
    return found - {first}


def _list_exception_message_lines(lines: Sequence[str], first: int) -> set[int]:
    """Return the lines of an exception's message after its first one."""
    stream, _ = split_launcher_prefix(lines[first])
    found: set[int] = set()
    for number in range(first + 1, min(first + _MESSAGE_LINES, len(lines))):
        prefix, text = split_launcher_prefix(lines[number])
        if text.startswith("Traceback "):
            break
        if prefix == stream:
            found.add(number)
    return found


def _find_matched_error_lines(lines: Sequence[str]) -> Iterator[_MatchedErrorLine]:
    rows = _map_lines_to_crash_patterns(lines)
    raised = {one.line: one for one in find_traceback_exceptions(lines)}
    for number in sorted(rows.keys() | raised.keys()):
        row, error = rows.get(number), raised.get(number)
        begin = error.begin if error else number
        if row is not None and not (row.named and error):
            text = mask_addresses_and_numbers(lines[number])
            why = f"{row.says}: {lines[number].strip()[:120]}" if row.named else row.says
            if row.kind is TroubleKind.DISK_FULL and (place := _FILE.search(lines[number])):
                why = f"{row.says}: {place[1]}"
            if error is not None and error.own and row.tier is CrashPatternPriority.CAUSE:
                why = f"{why}, in {error.where}"
            signature = f"{row.says}: {text}" if row.named else row.says
            hit = _MatchedErrorLine(
                number, row.tier, row.kind, why, signature, row.names_node, begin
            )
            source = _classify_error_line_origin(lines[number], row, error)
            yield replace(hit, rank=_find_exception_rank(error), source=source)
        elif error is not None and not error.echoes:
            yield _classify_exception_by_type(error)


def _classify_exception_by_type(error: ParsedException) -> _MatchedErrorLine:
    """Return what an exception says by its class, where no pattern knows its text."""
    tier = CrashPatternPriority.ECHO if error.has_lost_peer else CrashPatternPriority.CAUSE
    hit = _MatchedErrorLine(
        error.line,
        tier,
        TroubleKind.CRASH,
        error.why,
        error.signature,
        True,
        error.begin,
        known=False,
        rank=_find_exception_rank(error),
        source=_classify_error_line_origin("", None, error),
    )
    known = _CLASSES.get(error.short_name)
    if known is None:
        return hit
    kind, says = known
    where = f", in {error.where}" if error.own else ""
    return replace(hit, kind=kind, why=f"{says}{where}", signature=says, known=True)


def _find_exception_rank(error: ParsedException | None) -> int | None:
    """Return the rank of an exception by its traceback, or by the prefix of its lines."""
    if error is None:
        return None
    return error.writer if error.rank is None else error.rank


def _classify_error_line_origin(
    line: str, row: CrashPattern | None, error: ParsedException | None
) -> _ErrorLineOrigin:
    """Return what a line is that a pattern or the end of a traceback explains."""
    if error is not None:
        uncaught = error.hooked or error.ended_thread or error.rank is not None
        # An error of the device stays: each later call of that process raises it as well.
        uncaught = uncaught or (row is not None and row.kind is TroubleKind.CUDA)
        return _ErrorLineOrigin.RAISED if uncaught else _ErrorLineOrigin.CAUGHT
    if row is None or row.kind not in _SURVIVED_KINDS or _OF_SYSTEM.search(line):
        return _ErrorLineOrigin.SYSTEM
    return _ErrorLineOrigin.TEXT


def load_crash_patterns() -> tuple[CrashPattern, ...]:
    """Return the rows of crash_patterns.yaml, in their order."""
    text = files(__package__).joinpath("crash_patterns.yaml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = yaml.safe_load(text)
    return tuple(
        CrashPattern(
            TroubleKind(row.pop("kind")), tier=CrashPatternPriority[row.pop("tier", "CAUSE")], **row
        )
        for row in rows
    )


@cache
def _compile_crash_patterns() -> tuple[tuple[CrashPattern, LogLinePattern], ...]:
    # Named rows say least of a line: any other row that matches it goes before.
    order = sorted(load_crash_patterns(), key=lambda row: (row.named, row.tier))
    return tuple((row, LogLinePattern(row.pattern)) for row in order)


def _map_lines_to_crash_patterns(lines: Sequence[str]) -> dict[int, CrashPattern]:
    """Return for each line that a row matches the row that says most of it."""
    block, starts = bytearray(), []
    for line in lines:
        starts.append(len(block))
        block += line.encode() + b"\n"
    found: dict[int, CrashPattern] = {}
    whole = bytes(block)
    for row, pattern in _compile_crash_patterns():
        for match in pattern.matches(whole):
            found.setdefault(bisect_right(starts, match.at) - 1, row)
    return found


def _find_last_survived_error_line(lines: Sequence[str], trouble: set[int], least: int) -> int:
    """Return the line up to which the run got over its errors: the last one of them after which so
    many ordinary lines came, or 0."""
    ordinary, before, lived_to = 0, -1, 0
    for number, line in enumerate(lines):
        if number in trouble:
            ordinary, before = 0, number
        elif is_normal_program_output_line(line):
            ordinary += 1
        if ordinary >= least and before >= lived_to:
            lived_to = before + 1
    return lived_to


def _find_first_failure_in_launcher_log(lines: Sequence[str]) -> _FirstTorchrunFailure:
    """Return what the run's launchers call the first failure; empty where none names one."""
    root = _find_first_failure_in_torchrun_log(lines)
    if root.rank is not None or root.code is not None:
        return root
    end = find_first_launched_process_end(lines)
    if end is None:
        return _FirstTorchrunFailure()
    return _FirstTorchrunFailure(
        end.host, end.rank, None if end.code is None else _convert_to_shell_exit_code(end.code)
    )


def _find_first_failure_in_torchrun_log(lines: Sequence[str]) -> _FirstTorchrunFailure:
    """Return what torchrun calls the first observed failure.

    The agent of each node prints a block `Root Cause (first observed failure):` of its ranks
    (torch/distributed/elastic/multiprocessing/errors). Of several nodes' blocks the one of a rank
    that cannot have ended for a lost peer counts, else the earliest. A node that has two has run
    twice: its last one counts.
    """
    roots: dict[str, tuple[str, _FirstTorchrunFailure]] = {}
    for values in _parse_torchrun_failures(lines):
        rank, code = (re.match(r"-?\d+", values.get(key, "")) for key in ("rank", "exitcode"))
        host = values.get("host", "")
        root = _FirstTorchrunFailure(
            "" if host.startswith(("localhost", "127.")) else host,
            int(rank[0]) if rank else None,
            _convert_to_shell_exit_code(int(code[0])) if code else None,
        )
        roots[host] = (values.get("time", ""), root)
    if not roots:
        return _FirstTorchrunFailure()
    _, first = min(
        roots.values(), key=lambda one: (not _is_root_cause_exit_code(one[1].code), one[0])
    )
    return first


def _parse_torchrun_failures(lines: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield the fields of each block of torchrun's."""
    values: dict[str, str] | None = None
    for line in map(strip_srun_task_label, lines):
        if "Root Cause (first observed failure):" in line:
            if values is not None:
                yield values
            values = {}
        elif values is not None and ":" in line:
            key, _, value = line.partition(":")
            values.setdefault(key.split()[-1] if key.split() else "", value.strip())
            if line.lstrip().startswith("traceback"):
                yield values
                values = None
    if values is not None:
        yield values


def _is_root_cause_exit_code(status: int | None) -> bool:
    """Return whether a rank that only lost a peer cannot end like this."""
    if status is None:
        return False
    code = _convert_to_shell_exit_code(status)
    name = _get_signal_name(code)
    return name in _NO_ECHO or (not name and 1 < code < 128)


def _classify_exit_codes_by_policy(
    policy: RunPolicy, codes: Sequence[int | None]
) -> tuple[TroubleKind, str, int] | None:
    """Return what one of the exit codes that mean something asks for."""
    for code in codes:
        if code is not None and code in policy.final_exit_codes:
            return TroubleKind.FINAL, f"exit code {code} asks not to be run again", code
    for code in codes:
        if code is not None and code in policy.corruption_exit_codes:
            return (
                TroubleKind.CORRUPTION,
                f"exit code {code}: results could not be reproduced",
                code,
            )
    return None


def _describe_command_start_failure(codes: Sequence[int | None], lines: Sequence[str]) -> str:
    """Return why the command could not be started; empty where it could."""
    for code in codes:
        if code is not None and code in UNSTARTED:
            return f"{UNSTARTED[code]} (exit code {code})"
    error = _find_first_pattern_capture(_NOT_STARTED, lines)
    return f"its command cannot be started: {error[:120]}" if error else ""


def _classify_exit_code(code: int) -> _MatchedErrorLine:
    name, kind = _get_signal_name(code), TroubleKind.CRASH
    if not name:
        why, signature = f"it ended with exit code {code}", f"exit {code}"
    elif name in _DIED:
        why, signature = f"it died of {name}", name
    elif name == _TOO_LARGE:
        why, signature = "a file may not become larger", name
        kind = TroubleKind.STORAGE
    else:
        extra = ": no handler saved on it" if name in _SAVES else ""
        why, signature, kind = f"it was killed by {name}{extra}", name, TroubleKind.KILLED
    return _MatchedErrorLine(-1, CrashPatternPriority.WRAPPER, kind, why, signature)


def _get_signal_name(code: int) -> str:
    """Return the name of the signal that an exit code means; empty for none."""
    try:
        return signal.Signals(code - 128).name if code > 128 else ""
    except ValueError:
        return ""


def _convert_to_shell_exit_code(status: int) -> int:
    """Return the shell's exit code of a status as Python has it (-n for signal n)."""
    return 128 - status if status < 0 else status


def _list_srun_exit_codes(lines: Sequence[str]) -> Iterator[int]:
    for line in lines:
        found = _SRUN_CODE.search(line)
        if found:
            yield int(found[2])


def _find_first_pattern_capture(pattern: re.Pattern[str], lines: Sequence[str]) -> str:
    """Return what the first line that matches captures."""
    for line in lines:
        found = pattern.search(line)
        if found:
            return next(filter(None, found.groups()), "")
    return ""


def _shorten_host_name(host: str) -> NodeName | None:
    """Return a host's short name, as Slurm calls nodes; None for an address."""
    if not host or re.fullmatch(r"[\d.:]+", host):
        return None
    return NodeName(host.partition(".")[0])
