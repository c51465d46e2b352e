"""Judge a run by what it left behind: dumps, output, exit codes, and the findings of its nodes.

It joins what `hpctl run` learns while a step runs with the same functions: `judge_end` for the log
and the exit codes, `name_absent` for who did not come to a collective, and `judge_failure` for the
component. It is for runs that have ended, whose log and dumps may be of any user.

`hpctl sbatch` calls `find_trouble` at the end of a script. Only the corpus of recorded failures
calls `judge_run`, which adds hung runs and the kernel's kills for memory: `hpctl run` and the
daemon join the same evidence in steps of their own, without these two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.faults.assess import SETTLED, assess_health
from hpctl.faults.catalogue import build_rules
from hpctl.jobs.crash import (
    NOT_COME,
    PEER_LOST,
    SIZES_DIFFER,
    WORKER_DIED,
    GpuGrant,
    classify_crash,
)
from hpctl.jobs.decide import PastTrouble
from hpctl.jobs.hangs.flight_files import read_verdict
from hpctl.jobs.hangs.flight_recorder import FlightCause, FlightVerdict
from hpctl.jobs.hangs.ras_judge import RankNames
from hpctl.jobs.hangs.ras_report import RasReport, read_json
from hpctl.jobs.hangs.stack_groups import StackVerdict
from hpctl.jobs.run import ending
from hpctl.jobs.run.srun import NotLaunched, TaskEnd, node_of
from hpctl.jobs.run.timeouts import Witnesses, judge_ras, name_absent
from hpctl.jobs.verdict import NEAR, judge_failure
from hpctl.toolkit.bounds import LATEST
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.assessment import Assessment
from hpctl.vocabulary.failure import FailureVerdict
from hpctl.vocabulary.identity import BootId, Generation, InstanceId, NodeName
from hpctl.vocabulary.model import Finding, Health
from hpctl.vocabulary.run_policy import Action, RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind

OOM_CHECK = "kernel.oom"
"""The check of a node that reads the kernel's line of each kill for memory."""
NO_STEP_MADE = "no progress"
"""The signature of a run that was ended because it made no progress."""


class RunRemains(Struct, frozen=True, kw_only=True):
    """What a run left behind.

    `exit_code` is srun's or the script's, as a shell has it. `tail` are the last lines of the job's
    log, of all ranks; `rank_stderr` are those of each rank, used where `tail` is empty. `ends` are
    the ranks' ends in their order. `flight_prefix` is where each rank dumped its flight recorder,
    less the rank; dumps before `flight_since` (POSIX s) are ignored. `world` is how many ranks
    there were, 0 if unknown. `ras` is the JSON of NCCL's RAS service from before the end. `past`
    are the troubles of the job's runs before. `hung`: the run was ended because it made no
    progress. `failed`, `again` and `gpus` are as in `hpctl.jobs.run.ending.Evidence`.
    """

    exit_code: int
    tail: Sequence[str] = ()
    rank_stderr: Mapping[int, Sequence[str]] = field(default_factory=dict)
    ends: Sequence[TaskEnd] = ()
    flight_prefix: str = ""
    flight_since: float = 0.0
    world: int = 0
    rank_nodes: Mapping[int, NodeName] = field(default_factory=dict)
    ras: bytes = b""
    stacks: StackVerdict | None = None
    findings: Mapping[NodeName, Sequence[Finding]] = field(default_factory=dict)
    past: Sequence[Trouble] = ()
    step: int | None = None
    hung: bool = False
    failed: Sequence[NotLaunched] = ()
    again: bool = False
    gpus: GpuGrant = GpuGrant()


class PostMortem(Struct, frozen=True):
    """What ended a run, and the verdict on it; None where the run is done."""

    trouble: Trouble | None
    verdict: FailureVerdict | None


def judge_run(remains: RunRemains, policy: RunPolicy, now: datetime) -> PostMortem:
    """Judge a run that has ended. Reads dumps in a bounded process; raises nothing."""
    trouble = find_trouble(remains, policy, now)
    if trouble is None:
        return PostMortem(None, None)
    trouble = ending.name_node(_with_node(trouble, remains))
    trouble = _explain_kill(trouble, remains.findings, now)
    nodes = {name: assess_findings(name, found) for name, found in remains.findings.items()}
    past = [PastTrouble(one, Action.STEP) for one in remains.past]
    return PostMortem(trouble, judge_failure(trouble, past, nodes, policy, now))


def find_trouble(remains: RunRemains, policy: RunPolicy, now: datetime) -> Trouble | None:
    """Return what ended a run, with whom its ranks waited for; None where the run is done."""
    tail = list(remains.tail)
    if not tail:
        lines = sorted(remains.rank_stderr.items())
        tail = [_label_line(rank, line) for rank, said in lines for line in said]
    if remains.hung:
        hang = Trouble(TroubleKind.HANG, now, "it made no progress", NO_STEP_MADE)
        excerpt = ending.cut_excerpt(tail)
        hang = replace(hang, step=remains.step, evidence=excerpt, exit_code=remains.exit_code)
        return _ask_witnesses(hang, remains)
    evidence = ending.Evidence(
        remains.exit_code,
        ends=remains.ends,
        failed=remains.failed,
        tail=tail,
        step=remains.step,
        again=remains.again or bool(remains.past),
        gpus=remains.gpus,
    )
    trouble = ending.judge_end(evidence, policy, now, classify_crash)
    if trouble is not None and trouble.signature == SIZES_DIFFER:
        return _compare_sizes(trouble, remains)
    if trouble is None or trouble.kind not in (TroubleKind.NETWORK, TroubleKind.HANG):
        return trouble
    left = _find_rank_that_left(trouble, remains)
    if left is not None:
        return left
    return _ask_witnesses(trouble, remains)


def _compare_sizes(trouble: Trouble, remains: RunRemains) -> Trouble:
    """Return the trouble with the rank whose tensor has another size than the others', where the
    dumps show it: the rank that reports it may be the one that is right."""
    prefix = remains.flight_prefix
    flight = read_verdict(prefix, remains.flight_since) if prefix else FlightVerdict()
    if flight.cause is not FlightCause.DIFFERENT:
        odd = _find_odd_size(trouble.rank, dict(flight.last_sizes))
        if odd in (None, trouble.rank):
            return trouble
        why = f"rank {odd}: {SIZES_DIFFER}: that of rank {trouble.rank} and most others is shorter"
        return replace(trouble, why=why, rank=odd, node=None)
    return name_absent(trouble, Witnesses(flight), RankNames({}, {}, remains.world or flight.world))


def _find_odd_size(reporter: int | None, sizes: Mapping[int, int]) -> int | None:
    """Return the rank whose tensor has another size than those of most others; None where that is
    open.

    The rank that reports has got more than it waits for, and may have ended without a dump: its
    tensor is not the longest. Where the others' have two sizes it has the shorter one.
    """
    known = dict(sizes)
    if reporter is not None and reporter not in known and len(set(known.values())) == 2:
        known[reporter] = min(known.values())
    counts = Counter(known.values()).most_common()
    if len(counts) != 2 or counts[1][1] != 1 or counts[0][1] < 2:
        return None
    return next(rank for rank, size in known.items() if size == counts[1][0])


def _find_rank_that_left(trouble: Trouble, remains: RunRemains) -> Trouble | None:
    """Return the trouble with the rank that ended without an error while the others waited; None
    where there is no such rank.

    A socket closes when its process ends. Where all ranks but one report that a peer closed its
    connection, and srun reports the ends of just those (it reports every end but exit code 0), the
    remaining one has left: its program came to its end before the others'.
    """
    launched = any("torch.distributed.elastic" in line for line in remains.tail)
    closed = any("Connection closed by peer" in line for line in remains.tail)
    if trouble.signature != PEER_LOST or launched or not closed:
        return None
    absent = [rank for rank in range(remains.world) if not _has_ended(rank, remains.ends)]
    if len(absent) != 1 or not remains.ends or any(end.code != 1 for end in remains.ends):
        return None
    rank = absent[0]
    why = f"rank {rank}: it ended without an error while the others waited for it"
    return replace(
        trouble, kind=TroubleKind.HANG, why=why, signature=NOT_COME, rank=rank, node=None
    )


def _has_ended(rank: int, ends: Sequence[TaskEnd]) -> bool:
    return any(
        first <= rank <= last
        for end in ends
        for first, last in end.spans or ((end.rank, end.rank),)
    )


def _explain_kill(
    trouble: Trouble, findings: Mapping[NodeName, Sequence[Finding]], now: datetime
) -> Trouble:
    """Return the trouble of a killed process as one of memory, where the kernel of its node killed
    a process for its memory near the run's end (mm/oom_kill.c sends SIGKILL)."""
    killed = trouble.kind is TroubleKind.KILLED and trouble.signature == "SIGKILL"
    loader = trouble.signature == WORKER_DIED and "signal: Killed" in trouble.evidence
    if not (killed or loader) or trouble.node is None:
        return trouble
    for one in findings.get(trouble.node, ()):
        if one.check == OOM_CHECK and abs(now - one.last) <= NEAR:
            why = f"{trouble.why}; the kernel killed a process for its memory"
            return replace(trouble, kind=TroubleKind.HOST_MEMORY, why=why)
    return trouble


def _label_line(rank: int, line: str) -> str:
    """Return a rank's line as `srun --label` prints it."""
    return f"{rank}: {line}"


def _ask_witnesses(trouble: Trouble, remains: RunRemains) -> Trouble:
    prefix = remains.flight_prefix
    flight = read_verdict(prefix, remains.flight_since) if prefix else FlightVerdict()
    names = RankNames({}, {}, remains.world or flight.world)
    report = _read_report(remains.ras)
    ras = judge_ras(report, names) if report is not None else None
    return name_absent(trouble, Witnesses(flight, ras, remains.stacks), names)


def _read_report(raw: bytes) -> RasReport | None:
    """Return what the RAS service said; None where that cannot be read."""
    try:
        return read_json(raw) if raw else None
    except HpctlError:
        return None


def _with_node(trouble: Trouble, remains: RunRemains) -> Trouble:
    """Return the trouble with the node on which its rank ran, where it names none."""
    if trouble.node is not None or trouble.rank is None:
        return trouble
    node = remains.rank_nodes.get(trouble.rank) or node_of(trouble.rank, remains.ends)
    return replace(trouble, node=node)


def assess_findings(node: NodeName, findings: Sequence[Finding]) -> Assessment:
    """Return what a node's findings amount to once no rule waits for companions any longer."""
    last = max((one.last for one in findings), default=LATEST)
    here = Generation(node, InstanceId(""), BootId(""))
    known = Health(here, last, tuple(findings))
    return assess_health(known, build_rules(), last + SETTLED if findings else last)
