"""Two answers of the RAS service, some time apart: whom do the ranks wait for? Pure.

The culprit of a synchronous program is the one who is not waiting. A process that is behind in one
communicator and ahead in another waits itself, and is a victim. Point-to-point operations are not
counted by RAS (as of 2.30): a pipeline stage that waits for its predecessor looks behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hpctl.core.compat import StrEnum
from hpctl.jobs.ras.report import RUNNING, Absence, Communicator, RankError, RasMember, RasReport

APART_S = 30.0
"""Counts that did not change for so long stand still; in less time a slow step may lie."""
MOST_NAMED = 8
_GONE = (Absence.DEAD, Absence.UNRESPONSIVE)


class HangCause(StrEnum):
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
    """All have launched the same, and none since: nobody to name."""
    NOTHING = "nothing"
    """The answer has no communicator."""


@dataclass(frozen=True, slots=True)
class RasSample:
    """An answer and when it came: seconds of a monotonic clock."""

    report: RasReport
    at: float


@dataclass(frozen=True, slots=True)
class RasFinding:
    """Who it is. `members` are ranks of `communicator`, which may be one of many.

    `sure`: the answers are far enough apart to say that nothing moves.
    """

    cause: HangCause
    why: str
    members: tuple[RasMember, ...] = ()
    communicator: Communicator | None = None
    sure: bool = True


@dataclass(frozen=True, slots=True)
class _Lag:
    """A communicator whose ranks have launched different numbers of collectives."""

    communicator: Communicator
    operation: str
    behind: tuple[RasMember, ...]
    ahead: tuple[RasMember, ...]
    counts: tuple[int, int]
    sizes: tuple[int, int]


Name = Callable[[RasMember, Communicator | None], str]
"""How a member of a communicator is called."""


def culprits(first: RasSample, second: RasSample, name: Name | None = None) -> RasFinding:
    """Whom the ranks wait for, by two answers of the same job, `first` the older one."""
    names = _Names(name or (lambda member, _: nccl_name(member)))
    sure = second.at - first.at >= APART_S
    if not second.report.communicators and not second.report.dead:
        return RasFinding(HangCause.NOTHING, "NCCL tells of no communicator", sure=sure)
    twice = _absent(first.report) & _absent(second.report)
    return (
        _missing(second.report, twice, sure, names)
        or _failed(second.report, names)
        or _moving(first.report, second.report)
        or _missing(second.report, _absent(second.report), False, names)
        or _behind(second.report, sure, names)
        or _diverged(second.report, sure, names)
        or RasFinding(
            HangCause.EQUAL,
            "all ranks launched the same collectives: no data, or one that does not end",
            sure=sure,
        )
    )


def _absent(report: RasReport) -> set[tuple[str, int]]:
    """The ranks that did not answer, by their communicator's name."""
    return {
        (communicator.name, missing.member.rank)
        for communicator in report.communicators
        for missing in communicator.missing
        if missing.absence in _GONE
    }


def _missing(
    report: RasReport, absent: set[tuple[str, int]], sure: bool, names: _Names
) -> RasFinding | None:
    """Who of those absent is still not there, and who is given up for dead anyway."""
    dead = {(member.host, member.pid) for member in report.dead}
    for communicator in _largest_first(report):
        gone = tuple(
            missing.member
            for missing in communicator.missing
            if missing.absence is Absence.DEAD
            or (missing.member.host, missing.member.pid) in dead
            or (communicator.name, missing.member.rank) in absent
        )
        if gone:
            why = f"the process of {names(gone, communicator)} does not answer NCCL's RAS"
            return RasFinding(HangCause.MISSING, why, gone, communicator, sure)
    if report.dead:
        why = f"NCCL's RAS gave up for dead: {names(report.dead, None)}"
        return RasFinding(HangCause.MISSING, why, report.dead, None, sure)
    return None


def _failed(report: RasReport, names: _Names) -> RasFinding | None:
    for communicator in _largest_first(report):
        own: list[RankError] = [one for one in communicator.failures if not one.remote]
        if own:
            members = tuple(one.member for one in own)
            why = f"{names(members, communicator)} reported: {own[0].error}"
            return RasFinding(HangCause.FAILED, why, members, communicator)
    return None


def _moving(first: RasReport, second: RasReport) -> RasFinding | None:
    """Whether any rank that reported its counts twice has launched more since.

    Ranks and communicators that are in one answer alone prove nothing: a process that
    was late with its answer looks the same.
    """
    after = {one.name: one for one in second.communicators}
    grew = any(_grew(one, after.get(one.name)) for one in first.communicators)
    return (
        RasFinding(HangCause.MOVING, "NCCL launches collectives: the run goes on") if grew else None
    )


def _grew(before: Communicator, now: Communicator | None) -> bool:
    if before.whole:
        known = _by_member(before)
        after = _by_member(now) if now else {}
        return any(count > known.get(key, count) for key, count in after.items())
    if now is None:
        # The text has only communicators with a difference or a rank missing: it is gone.
        return bool(before.counts)
    return any(
        groups[-1].count > before.counts[operation][-1].count
        for operation, groups in now.counts.items()
        if operation in before.counts
    )


def _by_member(communicator: Communicator) -> dict[tuple[str, int], int]:
    return {
        (operation, member.rank): group.count
        for operation, groups in communicator.counts.items()
        for group in groups
        for member in group.members
    }


def _behind(report: RasReport, sure: bool, names: _Names) -> RasFinding | None:
    """The ranks behind others, and ahead of none in any other communicator."""
    lags = [lag for one in _largest_first(report) if (lag := _lag(one))]
    if not lags:
        return None
    waiting = {member.process for lag in lags for member in lag.ahead if member.process}
    lag = next(
        (lag for lag in lags if any(m.process and m.process not in waiting for m in lag.behind)),
        lags[0],
    )
    own = tuple(member for member in lag.behind if member.process not in waiting) or lag.behind
    count, front = lag.counts
    others = f"{lag.sizes[1]} other{'s' if lag.sizes[1] > 1 else ''}"
    who = names(own, lag.communicator) if own else f"{lag.sizes[0]} ranks"
    why = f"{who} launched {_operations(lag.operation, count)}, {others} {front}"
    return RasFinding(HangCause.BEHIND, why, own, lag.communicator, sure)


def _lag(communicator: Communicator) -> _Lag | None:
    """By the sum over all operations where it is known; else by the first that differs."""
    if communicator.status != RUNNING:
        return None
    if communicator.whole:
        return _whole_lag(communicator)
    for operation, groups in communicator.counts.items():
        low, high = groups[0], groups[-1]
        if low.count < high.count:
            ahead = tuple(member for group in groups[1:] for member in group.members)
            rest = sum(group.size for group in groups[1:])
            counts, sizes = (low.count, high.count), (low.size, rest)
            return _Lag(communicator, operation, low.members, ahead, counts, sizes)
    return None


def _whole_lag(communicator: Communicator) -> _Lag | None:
    sums: dict[RasMember, int] = {}
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
    return _Lag(communicator, operation, behind, ahead, counts, (len(behind), len(ahead)))


def _diverged(report: RasReport, sure: bool, names: _Names) -> RasFinding | None:
    for communicator in _largest_first(report):
        if communicator.status != RUNNING:
            continue
        for operation, groups in communicator.counts.items():
            if len(groups) > 1:
                odd = min(groups, key=lambda group: group.size)
                who = names(odd.members, communicator) if odd.members else f"{odd.size} ranks"
                others = next(group.count for group in groups if group is not odd)
                why = (
                    f"{who} launched {_operations(operation, odd.count)}, others {others}, and as"
                    " many collectives in all: the ranks run different branches of the program"
                )
                return RasFinding(HangCause.DIVERGED, why, odd.members, communicator, sure)
    return None


def _largest_first(report: RasReport) -> list[Communicator]:
    return sorted(report.communicators, key=lambda one: -(one.size or 0))


def _operations(operation: str, count: int) -> str:
    return f"{count} {operation}" if operation else f"{count} operations"


class _Names:
    """Members as text, the first few of many."""

    def __init__(self, name: Name) -> None:
        self._name = name

    def __call__(self, members: Iterable[RasMember], communicator: Communicator | None) -> str:
        found = sorted(members)
        text = ", ".join(self._name(member, communicator) for member in found[:MOST_NAMED])
        more = len(found) - MOST_NAMED
        return f"{text} and {more} more" if more > 0 else text


def nccl_name(member: RasMember) -> str:
    """`rank 5 (GPU 1 of 10.0.0.2, process 2001)`."""
    place = " of ".join(part for part in (device(member), member.host) if part)
    place += f", process {member.pid}" if member.pid is not None else ""
    rank = f"rank {member.rank}" if member.rank >= 0 else "a rank"
    return f"{rank} ({place})" if place else rank


def device(member: RasMember) -> str:
    """`GPU 1`, as nvidia-smi counts; empty where it is not given."""
    gpu = member.cuda_dev if member.nvml_dev is None else member.nvml_dev
    return f"GPU {gpu}" if gpu is not None else ""
