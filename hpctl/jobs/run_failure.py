"""Join what is known of a failed run: `diagnose_run_failure` finds the rank, the node and the kind.

`classify_crash` and `diagnose_step_end` say what ended a run by its log and exit codes, and a
supervisor sees that a run makes no progress. This module adds what other evidence shows of that
trouble:

| evidence | what it adds |
|---|---|
| flight recorder, NCCL's RAS, stacks | the rank that others await (`add_absent_rank_to_failure`) |
| the ends that srun reports | the rank that left while the others waited |
| the flight recorder | the rank whose tensor has another size |
| the places of the ranks | the node |
| the findings of that node | that the kernel killed the process for its memory |

`hpctl run`, the end of a script, the daemon and the corpus of recorded failures call this function,
and `hpctl.jobs.verdict.build_run_failure_verdict` on what it returns. What one of them cannot know
is empty in its FailedRunContext, or no witnesses. An explained trouble stays as it is when it is
explained again, so the daemon explains what a supervisor has explained, with the findings that only
the daemon has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.jobs.crash import (
    CALLS_DIFFER,
    NOT_COME,
    PEER_LOST,
    SIZES_DIFFER,
    WORKER_DIED,
    classify_uncaught_exception,
    parse_rank_label,
)
from hpctl.jobs.hangs.flight_recorder import FlightRecorderHangCause
from hpctl.jobs.hangs.ras_judge import JobRankResolver
from hpctl.jobs.launchers import find_first_launched_process_end, is_log_of_launcher_started_run
from hpctl.jobs.run.ending import add_node_name_to_failure_text
from hpctl.jobs.run.srun import SrunTaskEnd, find_failed_rank_node
from hpctl.jobs.run.timeouts import CollectiveTimeoutEvidence, add_absent_rank_to_failure
from hpctl.jobs.verdict import NEAR
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.model import Finding, NodeHealth
from hpctl.vocabulary.run_policy import RESTARTS, RunPolicy
from hpctl.vocabulary.trouble import HangPlace, Trouble, TroubleKind

OOM_CHECK: Final = "kernel.oom"
"""The check of a node that reads the kernel's line of each kill for memory."""
_KILLED: Final = "SIGKILL"
"""The signature of a rank that was killed."""
_KILL_CODE: Final = 137
"""What a shell ends with after SIGKILL ended its last program."""
_ABORT_CODE: Final = 134
"""What a shell ends with after SIGABRT ended its last program."""
_LEAST_TO_COMPARE: Final = 3
"""Ranks of which one can differ from the others."""
_LEAST_SIGNAL: Final = 128
"""Exit codes from here on are a shell's for signals."""
_CLOSED: Final = "Connection closed by peer"

AskWitnesses = Callable[[], tuple[CollectiveTimeoutEvidence, JobRankResolver]]
"""Returns what the witnesses say of the ranks that wait. It may take seconds: it reads dumps."""


class FailedRunContext(Struct, frozen=True, kw_only=True):
    """What is known of a failed run besides its trouble; empty where it is not known.

    `tail` are the last lines of the job's log, of all ranks. `ends` are the ranks' ends that srun
    reported, in their order. `world` is the number of ranks, 0 if unknown. `rank_nodes` are the
    nodes of ranks, `task_nodes` those of srun's tasks, which launchers of ranks may be, and `nodes`
    those of the run. `findings` are the findings of its nodes, and
    `job` is its number: what a node says of another job is not about it.
    """

    tail: Sequence[str] = ()
    ends: Sequence[SrunTaskEnd] = ()
    world: int = 0
    rank_nodes: Mapping[int, NodeName] = field(default_factory=dict)
    task_nodes: Mapping[int, NodeName] = field(default_factory=dict)
    nodes: Sequence[NodeName] = ()
    findings: Mapping[NodeName, Sequence[Finding]] = field(default_factory=dict)
    job: str = ""


LocateRank = Callable[[Trouble, FailedRunContext], Trouble]
"""Returns a trouble with the node on which its rank ran."""


def diagnose_run_failure(
    trouble: Trouble,
    facts: FailedRunContext,
    ask: AskWitnesses | None = None,
    locate: LocateRank | None = None,
) -> Trouble:
    """Return the trouble of a run that has ended with the rank, node and kind that all evidence
    shows.

    `ask` is called where ranks waited for others; None: there are no witnesses. `locate` adds the
    node, where a caller has to read it in the log; None: by the places in `facts`.
    """
    trouble = (locate or _add_node_of_failed_rank)(
        _add_responsible_rank_to_failure(trouble, facts, ask), facts
    )
    if facts.tail or facts.ends:
        # Where neither is known, the trouble was reported and keeps the words of its report.
        trouble = add_node_name_to_failure_text(trouble)
    return _mark_kill_as_out_of_memory(trouble, facts)


def diagnose_run_hang(
    hang: Trouble, facts: FailedRunContext, ask: AskWitnesses, policy: RunPolicy
) -> Trouble:
    """Return the trouble of a run that makes no progress, with the rank that the others wait for.

    The words of `hang`, which say for how long nothing moved, stay at the end of the sentence. A
    job whose policy restarts no hang is not restarted for what causes one either: it stays a HANG.
    """
    said, names = ask()
    named = _add_uncaught_exception_to_hang(add_absent_rank_to_failure(hang, said, names), facts)
    if said.flight.world != len(facts.task_nodes):
        facts = replace(facts, task_nodes={})
    if hang.why not in named.why:
        named = replace(named, why=f"{named.why}; {hang.why}")
    if RESTARTS.isdisjoint(policy.treatment(TroubleKind.HANG).ladder):
        named = replace(named, kind=TroubleKind.HANG)
    return add_node_name_to_failure_text(_add_node_of_failed_rank(named, facts))


def _add_uncaught_exception_to_hang(hang: Trouble, facts: FailedRunContext) -> Trouble:
    """Return a hang with the exception that ended the rank, or a thread of it, while its process
    lives on: that is why it does not come."""
    raised = classify_uncaught_exception(hang, facts.tail)
    if raised is None or hang.hang_place is HangPlace.STOPPED:
        return hang
    rank = hang.rank if raised.rank is None else raised.rank
    if hang.rank not in (None, rank):
        return hang
    node = hang.node if rank == hang.rank else None
    begin = "" if raised.rank is not None or rank is None else f"rank {rank}: "
    why = f"{begin}{raised.why}; {hang.why}"
    return replace(
        hang, kind=raised.kind, why=why, signature=raised.signature, rank=rank, node=node
    )


def add_node_findings_to_failure(
    trouble: Trouble, nodes: Sequence[NodeName], health: Mapping[NodeName, NodeHealth], job: JobId
) -> Trouble:
    """Return the trouble of a job's run with what the findings of its nodes show of it."""
    places = {*nodes, *filter(None, (trouble.node,))}
    findings = {name: health[name].findings for name in places if name in health}
    return diagnose_run_failure(
        trouble, FailedRunContext(nodes=nodes, findings=findings, job=str(job))
    )


_ENDED_FROM_OUTSIDE: Final = (TroubleKind.TIME_LIMIT, TroubleKind.PREEMPTED, TroubleKind.FINAL)
"""Ends of a run that Slurm or its owner asked for: launchers then print a signal of some rank."""


def _add_responsible_rank_to_failure(
    trouble: Trouble, facts: FailedRunContext, ask: AskWitnesses | None
) -> Trouble:
    """Return the trouble with the rank behind it, where it is known only from the other ranks, or
    from its number on its node."""
    if trouble.kind in _ENDED_FROM_OUTSIDE:
        return trouble
    if trouble.signature == SIZES_DIFFER:
        sent = _find_oversized_message_sender(trouble, facts)
        return sent or (
            trouble if ask is None else _add_rank_with_mismatched_tensor_size(trouble, ask)
        )
    if trouble.signature == CALLS_DIFFER:
        return (
            trouble
            if ask is None or trouble.rank is not None
            else _add_rank_with_mismatched_collective(trouble, ask)
        )
    if trouble.kind not in (TroubleKind.NETWORK, TroubleKind.HANG):
        return _add_rank_of_killed_process(
            _add_global_rank_from_local_rank(trouble, facts), facts, ask
        )
    left = _add_first_failed_rank_to_failure(trouble, facts) or _add_first_exited_rank_to_failure(
        trouble, facts
    )
    if left is not None:
        return left
    # A network port that failed names its own node: nothing is left to ask.
    if ask is None or trouble.node is not None:
        return trouble
    said, names = ask()
    return _add_rank_that_wrote_no_dump(add_absent_rank_to_failure(trouble, said, names), said)


def _add_rank_that_wrote_no_dump(trouble: Trouble, said: CollectiveTimeoutEvidence) -> Trouble:
    """Return the trouble of ranks that lost a peer with the one rank that wrote no dump, where
    nothing else names a rank: a process that a signal ends writes none."""
    gone = said.flight.only_silent
    if trouble.signature != PEER_LOST or trouble.rank is not None or gone is None:
        return trouble
    why = f"rank {gone}: it ended without a flight recorder dump"
    why = f"{why}; the other ranks report: {trouble.why}"
    return replace(
        trouble,
        kind=TroubleKind.HANG,
        why=why,
        signature=NOT_COME,
        rank=gone,
        node=None,
        hang_place=HangPlace.GONE,
    )


def _add_global_rank_from_local_rank(trouble: Trouble, facts: FailedRunContext) -> Trouble:
    """Return the trouble with the rank that a launcher names by its number on its node, where the
    ranks of that node are known."""
    if trouble.rank is not None:
        return trouble
    end = find_first_launched_process_end(facts.tail)
    if end is None or end.local is None:
        return trouble
    places = {*facts.rank_nodes.values(), *facts.task_nodes.values(), *facts.nodes}
    node = next(iter(places)) if len(places) == 1 else trouble.node
    mine = sorted(rank for rank, place in facts.rank_nodes.items() if place == node)
    if node is None or (not mine and len(places) > 1):
        return trouble
    if mine and end.local >= len(mine):
        return trouble
    rank = mine[end.local] if mine else end.local
    return replace(trouble, why=f"rank {rank}: {trouble.why}", rank=rank, node=node)


def _add_rank_of_killed_process(
    trouble: Trouble, facts: FailedRunContext, ask: AskWitnesses | None
) -> Trouble:
    """Return the trouble of a killed process with its rank, where a launcher does not name it and
    the dumps show one rank that wrote none: a killed rank writes none."""
    if trouble.kind is not TroubleKind.KILLED or trouble.rank is not None or ask is None:
        return trouble
    flight = ask()[0].flight
    if flight.cause is not FlightRecorderHangCause.SILENT or len(flight.ranks) != 1:
        return trouble
    (rank,) = flight.ranks
    place = facts.rank_nodes.get(rank)
    if trouble.node is not None and place not in (None, trouble.node):
        return trouble
    return replace(trouble, why=f"rank {rank}: {trouble.why}", rank=rank)


def _find_oversized_message_sender(trouble: Trouble, facts: FailedRunContext) -> Trouble | None:
    """Return the trouble with the rank whose message was too long for all others; None where that
    is open.

    A rank that gets a longer message than it waits for aborts. Where all ranks but one did, they
    got it from that one. A rank that waits for too little aborts, and is the only one to do so.
    """
    if _has_rank_launchers_as_srun_tasks(facts):
        return None
    aborted = [end for end in facts.ends if end.code == _ABORT_CODE]
    others = [rank for rank in range(facts.world) if not _has_rank_ended(rank, aborted)]
    if len(others) != 1 or facts.world < _LEAST_TO_COMPARE:
        return None
    rank = others[0]
    why = f"rank {rank}: {SIZES_DIFFER}: its message is longer than all other ranks wait for"
    return replace(trouble, why=why, rank=rank, node=None)


def _add_rank_with_mismatched_collective(trouble: Trouble, ask: AskWitnesses) -> Trouble:
    """Return the trouble of ranks that call different collectives with the rank that differs from
    most others, where the dumps show it."""
    said, names = ask()
    if said.flight.cause is not FlightRecorderHangCause.DIFFERENT:
        return trouble
    return add_absent_rank_to_failure(trouble, CollectiveTimeoutEvidence(said.flight), names)


def _add_rank_with_mismatched_tensor_size(trouble: Trouble, ask: AskWitnesses) -> Trouble:
    """Return the trouble with the rank whose tensor has another size than the others', where the
    dumps show it: the rank that reports it may be the one that is right."""
    said, names = ask()
    if said.flight.cause is FlightRecorderHangCause.DIFFERENT:
        return add_absent_rank_to_failure(trouble, CollectiveTimeoutEvidence(said.flight), names)
    odd = _find_rank_with_outlier_tensor_size(trouble.rank, dict(said.flight.last_sizes))
    if odd in (None, trouble.rank):
        return trouble
    why = f"rank {odd}: {SIZES_DIFFER}: that of rank {trouble.rank} and most others is shorter"
    return replace(trouble, why=why, rank=odd, node=None)


def _find_rank_with_outlier_tensor_size(
    reporter: int | None, sizes: Mapping[int, int]
) -> int | None:
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


def _add_first_failed_rank_to_failure(trouble: Trouble, facts: FailedRunContext) -> Trouble | None:
    """Return the trouble of the rank that ended first, by an exit code and without an error of
    Python's, where the other ranks report that it closed its connections; None where there is none.

    torch begins each line of an exception with the rank (c10d's hook for exceptions).
    """
    if trouble.signature != PEER_LOST or _has_rank_launchers_as_srun_tasks(facts) or not facts.ends:
        return None
    first = facts.ends[0]
    closed = {parse_rank_label(line) for line in facts.tail if _CLOSED in line} - {None}
    raised = {parse_rank_label(line) for line in facts.tail if "Traceback" in line}
    if not closed or first.rank in closed | raised or not 0 < first.code < _LEAST_SIGNAL:
        return None
    if any(end.code and end.rank not in closed | {first.rank} for end in facts.ends):
        return None
    why = f"rank {first.rank}: it ended with exit code {first.code}"
    return replace(
        trouble,
        kind=TroubleKind.CRASH,
        why=f"{why}; the other ranks report: {trouble.why}",
        signature=f"exit {first.code}",
        rank=first.rank,
        node=first.node,
    )


def _add_first_exited_rank_to_failure(trouble: Trouble, facts: FailedRunContext) -> Trouble | None:
    """Return the trouble with the rank that ended without an error while the others waited; None
    where there is no such rank.

    A socket closes when its process ends. Where all ranks but one report that a peer closed its
    connection, and srun reports the ends of just those (it reports every end but exit code 0), the
    remaining one has left: its program came to its end before the others'.
    """
    closed = any(_CLOSED in line for line in facts.tail)
    if trouble.signature != PEER_LOST or not closed or _has_rank_launchers_as_srun_tasks(facts):
        return None
    absent = [rank for rank in range(facts.world) if not _has_rank_ended(rank, facts.ends)]
    if len(absent) != 1 or not facts.ends or any(end.code != 1 for end in facts.ends):
        return None
    rank = absent[0]
    why = f"rank {rank}: it ended without an error while the others waited for it"
    return replace(
        trouble, kind=TroubleKind.HANG, why=why, signature=NOT_COME, rank=rank, node=None
    )


def _has_rank_ended(rank: int, ends: Sequence[SrunTaskEnd]) -> bool:
    spans = chain.from_iterable(end.spans or ((end.rank, end.rank),) for end in ends)
    return any(first <= rank <= last for first, last in spans)


def _add_node_of_failed_rank(trouble: Trouble, facts: FailedRunContext) -> Trouble:
    """Return the trouble with the node on which its rank ran, where it names none."""
    if trouble.node is not None or trouble.rank is None:
        return trouble
    node = facts.rank_nodes.get(trouble.rank)
    if node is None and not _has_rank_launchers_as_srun_tasks(facts):
        node = find_node_of_failed_task(trouble, facts)
    return replace(trouble, node=node)


def find_node_of_failed_task(trouble: Trouble, facts: FailedRunContext) -> NodeName | None:
    """Return the node of the task with the number of a trouble's rank; None where that may not be
    the rank's own."""
    if trouble.rank is None:
        return None
    # A task of srun's may start several ranks, unseen: the rank that an error in the log names is
    # the task of that number only where that task was the first to end.
    is_task = _is_failed_rank_inferred_from_peers(trouble) or _has_rank_ended(
        trouble.rank, facts.ends[:1]
    )
    if not is_task:
        return None
    return find_failed_rank_node(trouble.rank, facts.ends) or facts.task_nodes.get(trouble.rank)


def _is_failed_rank_inferred_from_peers(trouble: Trouble) -> bool:
    """Return whether a trouble's rank is known from what the other ranks wait for."""
    compared = trouble.signature in (SIZES_DIFFER, CALLS_DIFFER)
    return compared or trouble.kind in (TroubleKind.HANG, TroubleKind.NETWORK)


def _has_rank_launchers_as_srun_tasks(facts: FailedRunContext) -> bool:
    """Return whether srun's tasks are launchers, whose numbers are not the ranks'.

    A launcher that has said nothing shows by the number of ranks that have reported themselves.
    """
    tasks = len(facts.task_nodes)
    more = max(facts.rank_nodes, default=-1) >= tasks > 0
    return more or is_log_of_launcher_started_run(facts.tail)


def _mark_kill_as_out_of_memory(trouble: Trouble, facts: FailedRunContext) -> Trouble:
    """Return the trouble of a killed process as one of memory, where the kernel of its node killed
    a process for its memory near the run's end (mm/oom_kill.c sends SIGKILL)."""
    if not _is_possible_oom_kill(trouble):
        return trouble
    node = trouble.node
    if node is None and len(facts.nodes) == 1:
        node = facts.nodes[0]
    if node is None:
        return trouble
    for one in facts.findings.get(node, ()):
        another = facts.job and one.job and one.job != facts.job
        if one.check == OOM_CHECK and not another and abs(trouble.at - one.last) <= NEAR:
            why = f"{trouble.why}; the kernel killed a process for its memory"
            return replace(trouble, kind=TroubleKind.HOST_MEMORY, why=why)
    return trouble


def _is_possible_oom_kill(trouble: Trouble) -> bool:
    """Return whether SIGKILL ended a rank, a script's last program or a data loader's worker, or
    may have: of a rank whose process is gone."""
    if trouble.hang_place is HangPlace.GONE:
        return True
    if trouble.kind is TroubleKind.KILLED:
        return trouble.signature == _KILLED or trouble.exit_code == _KILL_CODE
    return (
        trouble.kind is TroubleKind.CRASH
        and trouble.signature == WORKER_DIED
        and "signal: Killed" in trouble.evidence
    )


def remove_findings_from_kill_failure(trouble: Trouble) -> Trouble:
    """Return a trouble without what `diagnose_run_failure` adds to a kill by findings of the
    moment, to tell whether two troubles are the same one."""
    if trouble.signature == WORKER_DIED:
        return replace(trouble, kind=TroubleKind.CRASH, why="")
    killed = trouble.kind in (TroubleKind.KILLED, TroubleKind.HOST_MEMORY)
    if killed and (trouble.signature == _KILLED or trouble.exit_code == _KILL_CODE):
        return replace(trouble, kind=TroubleKind.KILLED, why="")
    return trouble
