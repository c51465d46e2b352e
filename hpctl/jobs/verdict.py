"""Why a run failed, with a confidence, from what is known of it: `build_run_failure_verdict`, a
pure function.

The cause of a run's end is a Trouble, which `classify_crash`, `diagnose_step_end` and
`add_absent_rank_to_failure` find. This module adds what they cannot see and names the component:
the nodes' assessments, the runs before, and the policy's answer. It reads no log and no dump.

| what is known | cause | confidence |
|---|---|---|
| the run ended by Slurm's or a person's order | preemption | high |
| a node of the job is faulty by the fault catalogue | node, or link for the fabric's rules | high |
| the same failure twice, on two nodes or with the program's own error | program, data | high |
| one error that names its component | that component | medium |
| only an exit code, a signal or a timeout | what is most frequent, or unknown | low |

An error of the program's own (a traceback in its code, memory, a file system) is not put down to a
node whose assessment is bad as well: that node is a reason to read, not the cause.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from hpctl.jobs.crash import CALLS_DIFFER, NO_GPU, NOT_COME, SIZES_DIFFER, WORKER_DIED
from hpctl.jobs.decide import (
    PastJobFailure,
    RestartResources,
    decide_job_failure_action,
    has_same_failed_rank_and_step,
    is_repeated_job_failure,
)
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition
from hpctl.vocabulary.failure import FailureCause, FailureVerdict, VerdictConfidence
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.run_policy import RESTARTS, RunAction, RunPolicy
from hpctl.vocabulary.trouble import HangPlace, Trouble, TroubleKind

NEAR: Final = timedelta(minutes=10)
"""A node's fault that begins at most so long after a run's end may be the cause: a check needs
several looks, and slurmctld a timeout."""
MOST_REASONS: Final = 8
_ALL_MEANS: Final = RestartResources(step=True, nodes=1, requeue=True)
REASON_CHARS: Final = 400

_BY_KIND: Final[Mapping[TroubleKind, tuple[FailureCause, VerdictConfidence]]] = {
    TroubleKind.NODE: (FailureCause.NODE, VerdictConfidence.HIGH),
    TroubleKind.CRASH: (FailureCause.PROGRAM, VerdictConfidence.MEDIUM),
    TroubleKind.GPU_MEMORY: (FailureCause.MEMORY, VerdictConfidence.HIGH),
    TroubleKind.HOST_MEMORY: (FailureCause.MEMORY, VerdictConfidence.HIGH),
    TroubleKind.CUDA: (FailureCause.NODE, VerdictConfidence.MEDIUM),
    TroubleKind.NETWORK: (FailureCause.LINK, VerdictConfidence.LOW),
    TroubleKind.HANG: (FailureCause.UNKNOWN, VerdictConfidence.LOW),
    TroubleKind.NAN: (FailureCause.PROGRAM, VerdictConfidence.LOW),
    TroubleKind.SPIKE: (FailureCause.PROGRAM, VerdictConfidence.LOW),
    TroubleKind.SLOW: (FailureCause.UNKNOWN, VerdictConfidence.LOW),
    TroubleKind.UPLOAD: (FailureCause.STORAGE, VerdictConfidence.MEDIUM),
    TroubleKind.STORAGE: (FailureCause.STORAGE, VerdictConfidence.HIGH),
    TroubleKind.DISK_FULL: (FailureCause.STORAGE, VerdictConfidence.HIGH),
    TroubleKind.CORRUPTION: (FailureCause.NODE, VerdictConfidence.MEDIUM),
    TroubleKind.NO_PROGRESS: (FailureCause.PROGRAM, VerdictConfidence.LOW),
    TroubleKind.PREEMPTED: (FailureCause.PREEMPTION, VerdictConfidence.HIGH),
    TroubleKind.TIME_LIMIT: (FailureCause.PREEMPTION, VerdictConfidence.HIGH),
    TroubleKind.KILLED: (FailureCause.UNKNOWN, VerdictConfidence.LOW),
    TroubleKind.FINAL: (FailureCause.PROGRAM, VerdictConfidence.HIGH),
}
"""What each kind is where nothing else is known."""

_CERTAIN_WITHOUT_NODE: Final = frozenset(
    {
        TroubleKind.GPU_MEMORY,
        TroubleKind.STORAGE,
        TroubleKind.DISK_FULL,
        TroubleKind.UPLOAD,
        TroubleKind.PREEMPTED,
        TroubleKind.TIME_LIMIT,
        TroubleKind.FINAL,
    }
)
"""Kinds that a node's fault does not explain."""

_TELLING: Final = frozenset(
    {TroubleKind.CRASH, TroubleKind.CUDA, TroubleKind.NAN, TroubleKind.GPU_MEMORY}
)
"""Kinds whose signatures tell one cause from another."""

_LINK_RULES: Final = re.compile(
    r"(?:efa|rdma|sxid|gpu-nvlink|gpu-fabric|kernel-mlx5|kernel-nvidia-nvlink)\b"
    r"|xid-(?:74|14[4-9]|150)\b|host-(?:units-fabricmanager|devices-network)\b"
)
"""Rules of the catalogue that are about a link: cards, ports, NVSwitch, NVLink."""
_LINK_ERRORS: Final = re.compile(r"NVLink error|network port failed")
_DATA: Final = re.compile(
    r"DataLoader worker|_MultiProcessingDataLoader|_try_get_data|_next_data|__getitem__|collate"
    r"|worker_loop|UnidentifiedImageError|UnicodeDecodeError|JSONDecodeError|ParserError"
    r"|BadZipFile|ArrowInvalid|zlib\.error|[Tt]runcated|[Dd]ata ?set|shard[-_. ]?\d"
)
"""Names that appear where a sample is read or decoded (torch.utils.data, PIL, pyarrow)."""
_BAD_ACCESS: Final = re.compile(r"illegal memory access|a kernel failed on the device")
"""Errors of the device that a wrong index in a kernel causes far more often than hardware (NVIDIA
Xid catalogue: Xid 13 and 31)."""
_CANCELED: Final = re.compile(r" cancelled it\Z")
"""The end of the signature of Slurm's line after scancel, as in crash_patterns.yaml."""
_PORT: Final = "its port is in use"
"""As in crash_patterns.yaml: another process on the node, in most cases of the run before."""
_ONLY_CODE: Final = re.compile(r"(?:exit \d{1,3}|SIG[A-Z]{2,8}|[A-Z_]{4,20} \d{1,3}:\d{1,3})\Z")
"""The signature of an end that its log does not explain, or that Slurm reports."""
_EVIDENCE: Final = re.compile(r"(?:flight recorder \(|NCCL's RAS: |stacks: )")
"""How the lines of a trouble's evidence begin that `hpctl.jobs.run.timeouts` puts there."""


class _ProbableFailureCause(Struct, frozen=True):
    """A cause, how sure it is, and why where the trouble does not say it."""

    cause: FailureCause
    confidence: VerdictConfidence
    why: str = ""
    node: NodeName | None = None


def build_run_failure_verdict(  # noqa: PLR0913 -- pure: all that decides is an argument
    trouble: Trouble,
    past: Sequence[PastJobFailure],
    nodes: Mapping[NodeName, NodeAssessment],
    policy: RunPolicy,
    now: datetime,
    answer: RunAction | None = None,
) -> FailureVerdict:
    """Return why a run failed.

    `past` are the troubles of the same job before, oldest first. `nodes` are the assessments of the
    nodes that the run had. `answer`: what was decided, None for what `decide` answers by `policy`,
    were every kind of restart possible. `may_retry` of the verdict follows from it.
    """
    faulty = _list_faulty_node_assessments(trouble, nodes)
    same = [one.trouble for one in past if _is_same_failure(one.trouble, trouble)]
    found = _find_probable_cause(trouble, faulty, same)
    if answer is None:
        answer = decide_job_failure_action(policy, past, trouble, _ALL_MEANS, now).action
    reasons = (
        found.why,
        trouble.why or str(trouble.kind),
        *(line for line in trouble.evidence.splitlines() if _EVIDENCE.match(line)),
        *(_describe_node_fault(one) for one in faulty),
        _describe_repeated_failure(trouble, same),
        "" if answer in RESTARTS else f"no retry: the answer is `{answer}`",
    )
    return FailureVerdict(
        found.cause,
        found.confidence,
        trouble.rank,
        found.node or trouble.node,
        _select_verdict_reasons(reasons),
        answer in RESTARTS,
    )


def _find_probable_cause(
    trouble: Trouble, faulty: Sequence[NodeAssessment], same: Sequence[Trouble]
) -> _ProbableFailureCause:
    own = _find_cause_from_failure_alone(trouble)
    if faulty and _is_failure_possibly_node_fault(trouble, own):
        return _make_node_fault_cause(trouble, faulty)
    if not same:
        return own
    places = {one.node for one in (*same, trouble)} - {None}
    if own.cause in (FailureCause.NODE, FailureCause.UNKNOWN, FailureCause.LINK):
        if len(places) > 1 and trouble.kind is not TroubleKind.NODE:
            return _ProbableFailureCause(
                FailureCause.PROGRAM, VerdictConfidence.HIGH, "it follows the program"
            )
        return own
    if own.cause not in (FailureCause.PROGRAM, FailureCause.DATA):
        return own
    # Twice on one node may be that node, unless the program's own code says what is wrong.
    sure = len(places) != 1 or own.confidence is not VerdictConfidence.LOW
    confidence = VerdictConfidence.HIGH if sure else VerdictConfidence.MEDIUM
    return _ProbableFailureCause(own.cause, confidence, own.why, own.node)


def _is_same_failure(before: Trouble, trouble: Trouble) -> bool:
    """Return whether two runs failed in the same way.

    The signature of a hang, a timeout or an exit code is the same for many causes, so that rank and
    step have to agree as well.
    """
    vague = trouble.kind not in _TELLING or bool(_ONLY_CODE.match(trouble.signature))
    return has_same_failed_rank_and_step(before, trouble) or (
        not vague and is_repeated_job_failure(before, trouble)
    )


def _is_failure_possibly_node_fault(trouble: Trouble, own: _ProbableFailureCause) -> bool:
    """Return whether a node's fault may be behind a trouble."""
    if trouble.kind in _CERTAIN_WITHOUT_NODE:
        return False
    explained = own.cause in (FailureCause.PROGRAM, FailureCause.DATA, FailureCause.MEMORY)
    # What the log says of the program's own code stands, as long as that is all that is known.
    return not explained or own.confidence is VerdictConfidence.LOW


def _find_cause_from_failure_alone(trouble: Trouble) -> _ProbableFailureCause:
    """Return what the trouble itself amounts to, without nodes and runs before."""
    cause, confidence = _BY_KIND[trouble.kind]
    match trouble.kind:
        case TroubleKind.CRASH:
            return _find_crash_cause(trouble)
        case TroubleKind.CUDA:
            return _find_device_error_cause(trouble)
        case TroubleKind.HANG:
            return _find_hang_cause(trouble)
        case TroubleKind.NODE if _LINK_RULES.match(trouble.signature.removeprefix("node ")):
            return _ProbableFailureCause(FailureCause.LINK, VerdictConfidence.HIGH)
        case TroubleKind.NETWORK if _is_link_failure_text(trouble.why):
            return _ProbableFailureCause(FailureCause.LINK, VerdictConfidence.MEDIUM)
        case TroubleKind.FINAL if _CANCELED.search(trouble.signature):
            return _ProbableFailureCause(FailureCause.PREEMPTION, VerdictConfidence.HIGH)
        case TroubleKind.KILLED if trouble.signature == "SIGTERM":
            return _ProbableFailureCause(FailureCause.PREEMPTION, VerdictConfidence.LOW)
        case _:
            pass
    return _ProbableFailureCause(cause, confidence)


def _is_link_failure_text(why: str) -> bool:
    """Return whether a sentence says that a link failed, or that a rank was late."""
    return bool(_LINK_ERRORS.search(why)) or " came to collective " in why


def _find_crash_cause(trouble: Trouble) -> _ProbableFailureCause:
    text = f"{trouble.why}\n{trouble.signature}"
    if trouble.signature == _PORT:
        return _ProbableFailureCause(
            FailureCause.UNKNOWN, VerdictConfidence.LOW, "a process on the node still uses the port"
        )
    if trouble.signature in (CALLS_DIFFER, SIZES_DIFFER):
        # The names of the program's functions and files say nothing of the data.
        return _ProbableFailureCause(FailureCause.PROGRAM, VerdictConfidence.MEDIUM)
    if trouble.signature == WORKER_DIED or _DATA.search(text):
        return _ProbableFailureCause(FailureCause.DATA, VerdictConfidence.MEDIUM)
    if _ONLY_CODE.match(trouble.signature):
        return _ProbableFailureCause(
            FailureCause.PROGRAM, VerdictConfidence.LOW, "the log does not explain the end"
        )
    if _has_data_loader_traceback(trouble.evidence):
        return _ProbableFailureCause(FailureCause.DATA, VerdictConfidence.MEDIUM)
    return _ProbableFailureCause(FailureCause.PROGRAM, VerdictConfidence.MEDIUM)


def _has_data_loader_traceback(evidence: str) -> bool:
    """Return whether the traceback in the evidence comes from a worker of a data loader, or goes
    through a data loader's own code."""
    return "in DataLoader worker process" in evidence or "torch/utils/data/" in evidence


def _find_device_error_cause(trouble: Trouble) -> _ProbableFailureCause:
    if _LINK_ERRORS.search(trouble.why):
        return _ProbableFailureCause(FailureCause.LINK, VerdictConfidence.HIGH)
    if _BAD_ACCESS.search(trouble.signature):
        why = "a wrong index in a kernel is the usual cause of this error"
        return _ProbableFailureCause(FailureCause.PROGRAM, VerdictConfidence.LOW, why)
    certain = "ECC" in trouble.signature or "Xid" in trouble.signature
    if trouble.signature == NO_GPU and trouble.node is None:
        return _ProbableFailureCause(FailureCause.PROGRAM, VerdictConfidence.LOW)
    return _ProbableFailureCause(
        FailureCause.NODE, VerdictConfidence.HIGH if certain else VerdictConfidence.MEDIUM
    )


def _find_hang_cause(trouble: Trouble) -> _ProbableFailureCause:
    """Return where a rank is that the others wait for: by its stack, where that was read."""
    match trouble.hang_place:
        case HangPlace.STOPPED:
            # SIGSTOP and SIGTSTP stop a process, and do not say who sent them.
            why = "a signal has stopped the rank"
            return _ProbableFailureCause(FailureCause.UNKNOWN, VerdictConfidence.LOW, why)
        case HangPlace.GONE | HangPlace.SILENT:
            why = "the rank had ended, or ran no Python code"
            return _ProbableFailureCause(FailureCause.UNKNOWN, VerdictConfidence.LOW, why)
        case HangPlace.FILES:
            return _ProbableFailureCause(FailureCause.STORAGE, VerdictConfidence.MEDIUM)
        case HangPlace.LOADER:
            return _ProbableFailureCause(FailureCause.DATA, VerdictConfidence.MEDIUM)
        case _:
            pass
    if trouble.rank is not None and trouble.signature == NOT_COME:
        return _ProbableFailureCause(FailureCause.PROGRAM, VerdictConfidence.LOW)
    return _ProbableFailureCause(*_BY_KIND[TroubleKind.HANG])


def _list_faulty_node_assessments(
    trouble: Trouble, nodes: Mapping[NodeName, NodeAssessment]
) -> list[NodeAssessment]:
    """Return the assessments that call a node of the run faulty at its end: of the trouble's own
    node first."""
    found = [
        (name, one)
        for name, one in nodes.items()
        if one.condition is NodeCondition.FAULTY and one.since <= trouble.at + NEAR
    ]
    found.sort(key=lambda each: (each[0] != trouble.node, each[0]))
    return [one for _, one in found]


def _make_node_fault_cause(
    trouble: Trouble, faulty: Sequence[NodeAssessment]
) -> _ProbableFailureCause:
    worst = faulty[0]
    rule = str(worst.fault.rule) if worst.fault is not None else ""
    cause = FailureCause.LINK if _LINK_RULES.match(rule) else FailureCause.NODE
    node = worst.generation.node
    # A fault on a node that the run's own error does not name may have nothing to do with it.
    sure = trouble.node in (None, node)
    confidence = VerdictConfidence.HIGH if sure else VerdictConfidence.MEDIUM
    return _ProbableFailureCause(cause, confidence, _describe_node_fault(worst), node)


def _describe_node_fault(one: NodeAssessment) -> str:
    rule = one.fault.rule if one.fault is not None else "no rule"
    why = one.why or (one.fault.meaning if one.fault is not None else "")
    return f"node {one.generation.node} is faulty ({rule}): {why}"


def _describe_repeated_failure(trouble: Trouble, same: Sequence[Trouble]) -> str:
    if not same:
        return ""
    where = [
        f"step {trouble.step}" if trouble.step is not None else "",
        f"rank {trouble.rank}" if trouble.rank is not None else "",
    ]
    place = ", ".join(filter(None, where))
    times = "twice" if len(same) == 1 else f"{len(same) + 1} times"
    return f"the same failure {times}" + (f" ({place})" if place else "")


def _select_verdict_reasons(texts: Iterable[str]) -> tuple[str, ...]:
    lines = (" ".join(one.split())[:REASON_CHARS] for one in texts)
    return tuple(dict.fromkeys(filter(None, lines)))[:MOST_REASONS]
