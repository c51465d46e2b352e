"""Two answers of the RAS service, some time apart: whom do the ranks wait for?

`diagnose_hang_from_ras_samples` is pure. The culprit of a synchronous program is the one who is not
waiting. A process that is behind in one communicator and ahead in another waits itself, and is a
victim. Point-to-point operations are not counted by RAS (as of 2.30): a pipeline stage that waits
for its predecessor looks behind.

`RasHangInvestigation` explains a hang that the ranks' notes show. Its first look is due when half
of the explained silence is over: at the verdict the two are far enough apart, and nothing waits for
them.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from hpctl.jobs.hangs.ras_report import (
    RUNNING,
    NcclCommunicator,
    NcclRankError,
    RankAbsenceReason,
    RasAddress,
    RasCommunicatorRank,
    RasQueryError,
    RasReport,
    query_ras_service,
)
from hpctl.jobs.run.progress import RunProgress, TrackedRankProgress
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.trouble import EVIDENCE_CHARS, Trouble

APART_S = 30.0
"""Counts that did not change for this long are at a stop; in less time a slow step may lie."""
MOST_NAMED = 8
_GONE = (RankAbsenceReason.DEAD, RankAbsenceReason.UNRESPONSIVE)


class RasHangCause(StrEnum):
    """What two answers show."""

    MOVING = "moving"
    """Collectives are launched: whatever is slow, it is no hang."""
    MISSING = "missing"
    """Processes do not answer: dead, stopped, or cut off."""
    FAILED = "failed"
    """Ranks have an error that is their own."""
    BEHIND = "behind"
    """Ranks have launched fewer collectives than others, who wait for them."""
    DIVERGED = "diverged"
    """Ranks launched as many, but not the same: the program's branches differ."""
    EQUAL = "equal"
    """All have launched the same, and none since: no rank to name."""
    NOTHING = "nothing"
    """The answer has no communicator."""


class RasReportSample(Struct, frozen=True):
    """An answer and when it came: seconds of a monotonic clock."""

    report: RasReport
    at: float


class RasHangFinding(Struct, frozen=True):
    """Who it is. `members` are ranks of `communicator`, which may be one of many.

    `sure`: the answers are far enough apart to say that nothing moves.
    """

    cause: RasHangCause
    why: str
    members: tuple[RasCommunicatorRank, ...] = ()
    communicator: NcclCommunicator | None = None
    sure: bool = True


class _LaggingCommunicator(Struct, frozen=True):
    """A communicator whose ranks have launched different numbers of collectives."""

    communicator: NcclCommunicator
    operation: str
    behind: tuple[RasCommunicatorRank, ...]
    ahead: tuple[RasCommunicatorRank, ...]
    counts: tuple[int, int]


Name = Callable[[RasCommunicatorRank, NcclCommunicator | None], str]
_Names = Callable[[Iterable[RasCommunicatorRank], NcclCommunicator | None], str]
"""How a member of a communicator is called."""


def diagnose_hang_from_ras_samples(
    first: RasReportSample, second: RasReportSample, name: Name | None = None
) -> RasHangFinding:
    """Return whom the ranks wait for, by two answers of the same job, `first` the older one."""
    names = _make_rank_names_formatter(name or (lambda member, _: format_nccl_rank(member)))
    sure = second.at - first.at >= APART_S
    if not second.report.communicators:
        return RasHangFinding(RasHangCause.NOTHING, "NCCL reports no communicator", sure=sure)
    twice = _list_ranks_absent_from_report(first.report) & _list_ranks_absent_from_report(
        second.report
    )
    return (
        _find_ranks_missing_from_report(second.report, twice, sure, names)
        or _find_ranks_with_nccl_errors(second.report, names)
        or _detect_collective_progress(first.report, second.report)
        or _find_ranks_missing_from_report(
            second.report, _list_ranks_absent_from_report(second.report), False, names
        )
        or _find_lagging_ranks(second.report, sure, names)
        or _find_ranks_with_diverged_counts(second.report, sure, names)
        or RasHangFinding(
            RasHangCause.EQUAL,
            "all ranks launched the same collectives: no data, or one that does not end",
            sure=sure,
        )
    )


def _list_ranks_absent_from_report(report: RasReport) -> set[tuple[str, int]]:
    """Return the ranks that did not answer, by their communicator's name."""
    absent = set()
    for communicator in report.communicators:
        for missing in communicator.missing:
            if missing.absence in _GONE:
                absent.add((communicator.name, missing.member.rank))
    return absent


def _find_ranks_missing_from_report(
    report: RasReport, absent: set[tuple[str, int]], sure: bool, names: _Names
) -> RasHangFinding | None:
    """Return who of those absent is still not there, and who is given up for dead anyway."""
    for communicator in _sort_communicators_by_size(report):
        gone = tuple(
            missing.member
            for missing in communicator.missing
            if missing.absence is RankAbsenceReason.DEAD
            or (communicator.name, missing.member.rank) in absent
        )
        if gone:
            why = f"the process of {names(gone, communicator)} does not answer NCCL's RAS"
            return RasHangFinding(RasHangCause.MISSING, why, gone, communicator, sure)
    return None


def _find_ranks_with_nccl_errors(report: RasReport, names: _Names) -> RasHangFinding | None:
    for communicator in _sort_communicators_by_size(report):
        own: list[NcclRankError] = [one for one in communicator.failures if not one.remote]
        if own:
            members = tuple(one.member for one in own)
            why = f"{names(members, communicator)} reported: {own[0].error}"
            return RasHangFinding(RasHangCause.FAILED, why, members, communicator)
    return None


def _detect_collective_progress(first: RasReport, second: RasReport) -> RasHangFinding | None:
    """Return whether any rank that reported its counts twice has launched more since.

    Ranks and communicators that are in only one answer prove nothing: a process that was late with
    its answer looks the same.
    """
    after = {one.name: one for one in second.communicators}
    grew = any(
        _has_operation_count_increased(one, after.get(one.name)) for one in first.communicators
    )
    return RasHangFinding(RasHangCause.MOVING, "NCCL launches collectives") if grew else None


def _has_operation_count_increased(before: NcclCommunicator, now: NcclCommunicator | None) -> bool:
    if now is None:
        return False
    known = _map_operation_counts_by_rank(before)
    return any(
        count > known.get(key, count) for key, count in _map_operation_counts_by_rank(now).items()
    )


def _map_operation_counts_by_rank(communicator: NcclCommunicator) -> dict[tuple[str, int], int]:
    counts = {}
    for operation, groups in communicator.counts.items():
        for group in groups:
            for member in group.members:
                counts[operation, member.rank] = group.count
    return counts


def _find_lagging_ranks(report: RasReport, sure: bool, names: _Names) -> RasHangFinding | None:
    """Return the ranks behind others, and ahead of none in any other communicator."""
    lags = [
        lag
        for one in _sort_communicators_by_size(report)
        if (lag := _find_lagging_ranks_in_communicator(one))
    ]
    if not lags:
        return None
    ahead = chain.from_iterable(lag.ahead for lag in lags)
    waiting = {member.process for member in ahead if member.process}

    def has_consistently_lagging_rank(lag: _LaggingCommunicator) -> bool:
        return any(member.process and member.process not in waiting for member in lag.behind)

    lag = next(filter(has_consistently_lagging_rank, lags), lags[0])
    own = tuple(member for member in lag.behind if member.process not in waiting) or lag.behind
    count, front = lag.counts
    others = f"{len(lag.ahead)} other{'s' if len(lag.ahead) > 1 else ''}"
    who = names(own, lag.communicator)
    why = f"{who} launched {_format_operation_count(lag.operation, count)}, {others} {front}"
    return RasHangFinding(RasHangCause.BEHIND, why, own, lag.communicator, sure)


def _find_lagging_ranks_in_communicator(
    communicator: NcclCommunicator,
) -> _LaggingCommunicator | None:
    """Return the ranks behind by the sum of their operations; None where the sums are equal."""
    if communicator.status != RUNNING:
        return None
    sums: dict[RasCommunicatorRank, int] = {}
    for groups in communicator.counts.values():
        for group in groups:
            for member in group.members:
                sums[member] = sums.get(member, 0) + group.count
    if not sums or min(sums.values()) == max(sums.values()):
        return None
    low = min(sums.values())
    behind = tuple(sorted(member for member, count in sums.items() if count == low))
    ahead = tuple(sorted(member for member, count in sums.items() if count > low))
    late = set(behind)
    # Its name is that of the operation in which those behind are behind furthest.
    operation, counts = "", (0, 0)
    for name, groups in communicator.counts.items():
        mine = [g.count for g in groups if late.intersection(g.members)]
        if mine and groups[-1].count - min(mine) > counts[1] - counts[0]:
            operation, counts = name, (min(mine), groups[-1].count)
    return _LaggingCommunicator(communicator, operation, behind, ahead, counts)


def _find_ranks_with_diverged_counts(
    report: RasReport, sure: bool, names: _Names
) -> RasHangFinding | None:
    for communicator in _sort_communicators_by_size(report):
        if communicator.status != RUNNING:
            continue
        for operation, groups in communicator.counts.items():
            if len(groups) > 1:
                odd = min(groups, key=lambda group: len(group.members))
                who = names(odd.members, communicator)
                others = next(group.count for group in groups if group is not odd)
                why = (
                    f"{who} launched {_format_operation_count(operation, odd.count)},"
                    f" others {others},"
                    " and as many collectives in all: the ranks run different branches of the"
                    " program"
                )
                return RasHangFinding(RasHangCause.DIVERGED, why, odd.members, communicator, sure)
    return None


def _sort_communicators_by_size(report: RasReport) -> list[NcclCommunicator]:
    return sorted(report.communicators, key=lambda one: -one.size)


def _format_operation_count(operation: str, count: int) -> str:
    return f"{count} {operation}" if operation else f"{count} operations"


def _make_rank_names_formatter(name: Name) -> _Names:
    def format_rank_names(
        members: Iterable[RasCommunicatorRank], communicator: NcclCommunicator | None
    ) -> str:
        found = sorted(members)
        text = ", ".join(name(member, communicator) for member in found[:MOST_NAMED])
        more = len(found) - MOST_NAMED
        return f"{text} and {more} more" if more > 0 else text

    return format_rank_names


def format_nccl_rank(member: RasCommunicatorRank) -> str:
    """Return `rank 5 (GPU 1 of 10.0.0.2, process 2001)`."""
    place = " of ".join(part for part in (format_gpu_number(member), member.host) if part)
    place += f", process {member.pid}" if member.pid is not None else ""
    return f"rank {member.rank} ({place})" if place else f"rank {member.rank}"


def format_gpu_number(member: RasCommunicatorRank) -> str:
    """Return `GPU 1`, as nvidia-smi counts; empty where it is not given."""
    gpu = member.cuda_dev if member.nvml_dev is None else member.nvml_dev
    return f"GPU {gpu}" if gpu is not None else ""


class JobRankResolver(Struct, frozen=True):
    """The job's own ranks and nodes of the processes that NCCL names.

    `ranks` are those that reported themselves. `hosts` maps addresses, as digits, to nodes. `world`
    is the number of ranks of the job, 0 if unknown: a communicator of that size numbers its ranks
    as the job does.
    """

    ranks: Mapping[int, TrackedRankProgress]
    hosts: Mapping[str, NodeName]
    world: int = 0

    def rank(
        self, member: RasCommunicatorRank, communicator: NcclCommunicator | None
    ) -> TrackedRankProgress | None:
        """Return the rank by which the job itself knows this process; None where it is not
        known."""
        same = [rank for rank in self.ranks.values() if rank.pid and rank.pid == member.pid]
        node = self.hosts.get(member.host)
        if len(same) > 1 and node:
            same = [rank for rank in same if rank.node == node]
        if len(same) == 1:
            return same[0]
        size = communicator.size if communicator else 0
        if size and size == self.world:
            return self.ranks.get(member.rank) or TrackedRankProgress(member.rank, 0.0, node)
        return None

    def node(
        self, member: RasCommunicatorRank, rank: TrackedRankProgress | None
    ) -> NodeName | None:
        """Return the node of a process; None where it is not known."""
        return (rank.node if rank else None) or self.hosts.get(member.host)

    def name(self, member: RasCommunicatorRank, communicator: NcclCommunicator | None) -> str:
        """Name a process as the job does, where the job knows it."""
        rank = self.rank(member, communicator)
        node = self.node(member, rank)
        if rank is None:
            own = format_nccl_rank(member)
            return f"{own} on {node}" if node else own
        gpu = f" ({format_gpu_number(member)})" if format_gpu_number(member) else ""
        return f"rank {rank.rank}{f' on {node}' if node else ''}{gpu}"


class HangWithRasEvidence(Struct, frozen=True):
    """A hang with NCCL's answer in its evidence. `finding` is whom NCCL names; None: no rank."""

    trouble: Trouble
    finding: RasHangFinding | None = None


LAST_LOOK_S = 12.0
"""What the look at the verdict may take: RAS itself ends a query after 10 s."""


class RasHangInvestigation:
    """The inquiry of one job's RAS service while its ranks are silent. No method raises."""

    def __init__(
        self,
        where: RasAddress,
        hosts: Mapping[str, NodeName] | None = None,
        *,
        apart_s: float = APART_S,
    ) -> None:
        """`where`: on this node. `hosts`: addresses, as digits, to node names."""
        self._where, self._hosts, self._apart = where, dict(hosts or {}), apart_s
        self._moved: float | None = None
        self._first: RasReportSample | None = None
        self._second: RasReportSample | None = None
        self._error = ""
        self._thread: threading.Thread | None = None

    def watch(self, progress: RunProgress, now: float) -> None:
        """Take a look where one is due; call it every second or so. Returns at once: the look runs
        in a thread."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._discard_outdated_samples(progress)
        if not progress.suspect(now) or self._error:
            return
        newest = self._second or self._first
        if newest is None or now - newest.at >= self._apart:
            self._thread = threading.Thread(target=self._sample_ras_status, name="ras", daemon=True)
            self._thread.start()

    def explain(self, progress: RunProgress, trouble: Trouble) -> HangWithRasEvidence | None:
        """Return the hang `trouble` of `progress` with what NCCL says of it, None where NCCL shows
        that there is none.

        Waits until the two looks are `APART_S` apart, but never longer than half of the silence
        that the policy calls a hang: who asks for a short one gets a less certain answer. Without
        a RAS service it answers at once, with the trouble as it is.
        """
        if self._thread is not None:
            self._thread.join(timeout=LAST_LOOK_S)
        self._discard_outdated_samples(progress)
        if self._first is None and not self._error:
            self._sample_ras_status()
        if self._first is not None and self._second is None:
            apart = min(self._apart, progress.bound(time.monotonic()) / 2)
            time.sleep(max(0.0, self._first.at + apart - time.monotonic()))
            self._sample_ras_status()
        if self._first is None or self._second is None:
            answer = _append_evidence_to_hang(trouble, f"NCCL RAS: {self._error}")
            return HangWithRasEvidence(replace(trouble, evidence=answer))
        finding = diagnose_hang_from_ras_samples(
            self._first, self._second, self._make_job_rank_resolver(progress).name
        )
        if finding.cause is RasHangCause.MOVING:
            return self._explain_collectives_without_training_steps(progress, trouble, finding)
        return self._add_ras_evidence_to_hang(progress, trouble, finding, self._second.report)

    def _make_job_rank_resolver(self, progress: RunProgress) -> JobRankResolver:
        return JobRankResolver(progress.ranks, self._hosts, len(progress.ranks))

    def _discard_outdated_samples(self, progress: RunProgress) -> None:
        """Forget the looks at a silence that is over."""
        if self._moved != progress.last_progress_at:
            self._moved, self._first, self._second, self._error = (
                progress.last_progress_at,
                None,
                None,
                "",
            )

    def _sample_ras_status(self) -> None:
        try:
            sample = RasReportSample(query_ras_service(self._where, LAST_LOOK_S), time.monotonic())
        except RasQueryError as error:
            self._error = str(error)
            return
        if self._first is None:
            self._first = sample
        else:
            self._second = sample

    def _explain_collectives_without_training_steps(
        self, progress: RunProgress, trouble: Trouble, finding: RasHangFinding
    ) -> HangWithRasEvidence | None:
        """Return None, or the hang where the run has not made a step for as long as its start may
        take."""
        now = time.monotonic()
        if now - progress.last_step_at > progress.policy.hang_start_s:
            why = f"{trouble.why}; {finding.why}, but without steps"
            signature = "hang: collectives without steps"
            return HangWithRasEvidence(replace(trouble, why=why, signature=signature))
        progress.alive(now)
        return None

    def _add_ras_evidence_to_hang(
        self, progress: RunProgress, trouble: Trouble, finding: RasHangFinding, report: RasReport
    ) -> HangWithRasEvidence:
        evidence = _append_evidence_to_hang(
            trouble, f"NCCL {report.nccl_version} RAS:\n{report.text}"
        )
        trouble = replace(trouble, evidence=evidence)
        if finding.cause in (RasHangCause.NOTHING, RasHangCause.EQUAL):
            # NCCL names no rank; the ranks' own notes may.
            return HangWithRasEvidence(replace(trouble, why=f"{trouble.why}; {finding.why}"))
        unsure = "" if finding.sure else " (two looks only a short time apart)"
        # NCCL counts collectives, the notes count steps: whom it names, it knows better.
        bare = replace(
            trouble, why=progress.silence(time.monotonic()), rank=None, node=None, device=""
        )
        return HangWithRasEvidence(bare, replace(finding, why=f"{finding.why}{unsure}"))


def _append_evidence_to_hang(trouble: Trouble, more: str) -> str:
    return "\n".join(part for part in (trouble.evidence, more) if part)[:EVIDENCE_CHARS]
