"""Hangs of jobs without `hpctl run`, from what the agents count of each job's processes and GPUs.

A run makes no progress while on no node a process of it works (`detection.checks.job_activity`) nor
a GPU draws WORKS of the power that the run's GPUs have drawn, and one of them waits as in a
collective: a CPU rank on a futex, a GPU busy for (nearly) all of the time, or a process in D.
Without such a sign it is idle: a notebook, a server without requests. Traffic of the node may
belong to any job: once, it counts for nothing, and where it lasts the run no longer counts as
stopped, but its pause has not ended before a rank works again.

It hangs when it has made no progress for longer than `factor` times its longest pause that ended
without help (an evaluation, a checkpoint, a data stall), at least `floor_s`, at most `cap_s`; the
cap never falls below what this run has already survived. A run that has not worked for half of
`floor_s` yet is given `start_s`: its pauses are unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from hpctl.toolkit.bounds import add_seconds_within_bounds, parse_count
from hpctl.vocabulary.hang import JobHang, StalledJobRun
from hpctl.vocabulary.identity import JobAttempt, JobId, NodeName
from hpctl.vocabulary.policy import JobHangPolicy
from hpctl.vocabulary.slurm_facts import SlurmJob

PREFIX, COUNT = "job.", "jobs"


WORKS = 0.6
"""Training draws 60 to 100 % of a GPU's limit; ranks that poll in NCCL draw 20 to 40 %."""


POLLS = 0.9
"""So much of the time a GPU is busy whose ranks are in a collective of NCCL."""


LEAST_RANKS = 2


GAP_SHARE = 0.5
"""Of `floor_s`: a longer time without a look is not counted, neither as work nor as a pause."""


class JobNodeActivity(Struct, frozen=True):
    """What the agent of one node counts of one job: processes by what they do, `ranks` in all;
    `traffic`: 0.5 for one sample, 1 for several in a row that showed some over the node's cards or
    disks, or processes at work that are no ranks; `gpu_busy` 0 to 1 and `gpu_w` watts, means of its
    GPUs; `other`: 1 where HyperPod's hung-job agent looks after it."""

    ranks: float = 0.0
    working: float = 0.0
    spinning: float = 0.0
    blocked: float = 0.0
    waiting: float = 0.0
    asleep: float = 0.0
    traffic: float = 0.0
    gpu_busy: float = 0.0
    gpu_w: float = 0.0
    other: float = 0.0


_NAMES = frozenset(JobNodeActivity.__struct_fields__)


_WORK = ("working", "traffic", "gpu_w")


class NodeActivityReport(Struct, frozen=True):
    """What one node's agent said of its jobs. `whole`: a job that is not there has no process."""

    jobs: Mapping[JobId, JobNodeActivity]
    whole: bool = False

    def get(self, job: JobId) -> JobNodeActivity | None:
        """Return what is known of one job; None where nothing is."""
        return self.jobs.get(job) or (JobNodeActivity() if self.whole else None)


def merge_node_activity_samples(samples: Iterable[Mapping[str, float]]) -> NodeActivityReport:
    """Return what an agent said since the last look, oldest first: the newest, but the most of what
    shows work. Names that are not of a job are ignored."""
    whole = False
    found: dict[JobId, dict[str, float]] = {}
    for gauges in samples:
        whole = COUNT in gauges
        fresh: dict[JobId, dict[str, float]] = {}
        for gauge, value in gauges.items():
            _, job, name, *more = (*gauge.split("."), "", "")
            if gauge.startswith(PREFIX) and name in _NAMES and job.isdecimal() and not any(more):
                fresh.setdefault(JobId(parse_count(job)), {})[name] = value
        for number, now in fresh.items():
            before = found.get(number, {})
            most = {n: max(now.get(n, 0.0), before.get(n, 0.0)) for n in _WORK}
            found[number] = {**now, **most}
    return NodeActivityReport(
        {job: JobNodeActivity(**values) for job, values in found.items()}, whole
    )


class JobHangHistory(Struct, frozen=True):
    """What is remembered of one run. `worked_s`: for how long it was seen at work. `longest_s`: its
    longest pause so far that ended without help. `paused_s`: its longest since it last worked.
    `watts`: the most that its GPUs drew. `still`: since when it makes no progress. `worked`: when
    it was last seen at work. `found`: a daemon before this one found it hanging. `idle`: since when
    nothing of it works, whether that is a hang or not; `doing`: what its processes do then."""

    attempt: JobAttempt
    seen: datetime
    found: bool = False
    worked: datetime | None = None
    worked_s: float = 0.0
    longest_s: float = 0.0
    watts: float = 0.0
    paused_s: float = 0.0
    still: datetime | None = None
    idle: datetime | None = None
    doing: str = ""
    hang: JobHang | None = None


def update_job_hang_history(  # noqa: PLR0913 -- pure: all that decides is an argument
    job: SlurmJob,
    nodes: Mapping[NodeName, JobNodeActivity],
    known: JobHangHistory | None,
    policy: JobHangPolicy,
    now: datetime,
    found: bool = False,
) -> JobHangHistory:
    """Judge one running job in one look. `nodes`: what their agents said since the last look.
    `found`: the journal says that it hangs."""
    if known is None or known.attempt != job.attempt:
        return JobHangHistory(job.attempt, now, found)
    passed_s = (now - known.seen).total_seconds()
    mine = {name: nodes[name] for name in job.nodes if name in nodes}
    if passed_s < 0 or passed_s > GAP_SHARE * policy.floor_s or job.state != "RUNNING":
        return replace(known, seen=now, still=None, idle=None, hang=None)
    if len(mine) < len(job.nodes):
        # A node that does not report may be at work: the time counts for nothing.
        still = known.still and add_seconds_within_bounds(known.still, passed_s)
        idle = known.idle and add_seconds_within_bounds(known.idle, passed_s)
        return replace(known, seen=now, still=still, idle=idle)
    watts = [a.gpu_w for a in mine.values() if a.gpu_w]
    drawn = sum(watts) / len(watts) if watts else 0.0
    busy = max((a.gpu_busy for a in mine.values()), default=0.0)
    most = max(known.watts, drawn) if busy > 0 else known.watts
    # It may have begun right after the look before, and ended right before this one.
    paused_s = (now - known.still).total_seconds() + passed_s if known.still else 0.0
    paused_s, traffic = (
        max(known.paused_s, paused_s),
        max((a.traffic for a in mine.values()), default=0.0),
    )
    if any(a.working for a in mine.values()) or (busy > 0 and drawn >= WORKS * most):
        longest_s, worked_s = max(known.longest_s, paused_s), known.worked_s + passed_s
        return JobHangHistory(job.attempt, now, False, now, worked_s, longest_s, most)
    track = replace(known, seen=now, watts=most)
    if traffic >= 1:
        return replace(track, still=None, idle=None, hang=None, paused_s=paused_s)
    ranks, waits = sum(a.ranks for a in mine.values()), _has_waiting_ranks(mine, busy, watts)
    no_work = bool(ranks) and (waits or _is_job_idle(mine, busy))
    since = (known.idle or known.seen) if no_work else None
    track = replace(track, idle=since, doing=_describe_process_activity(mine))
    if ranks < LEAST_RANKS or not waits:
        return replace(track, still=None, hang=None)
    track = replace(track, still=known.still or known.seen)
    # The next look will show whether the traffic lasts.
    spare_s = passed_s if traffic and not known.hang else 0.0
    return replace(
        track, hang=_detect_hang(track, mine, policy, add_seconds_within_bounds(now, -spare_s))
    )


def _has_waiting_ranks(
    mine: Mapping[NodeName, JobNodeActivity], busy: float, watts: list[float]
) -> bool:
    blocked = any(a.blocked for a in mine.values())
    return blocked or (busy >= POLLS if watts else any(a.waiting for a in mine.values()))


def _is_job_idle(mine: Mapping[NodeName, JobNodeActivity], busy: float) -> bool:
    """Return whether no process uses a core and no GPU is busy. One that spins may compute."""
    return busy == 0 and not any(a.spinning for a in mine.values())


def find_stalled_run(
    track: JobHangHistory, policy: JobHangPolicy, job: JobId
) -> StalledJobRun | None:
    """Return what is shown of a run of which nothing works; None where it works, or did lately."""
    if track.idle is None or (track.seen - track.idle).total_seconds() < policy.shown_s:
        return None
    return StalledJobRun(job, track.idle, track.doing)


def compute_hang_timeout(track: JobHangHistory, policy: JobHangPolicy) -> float:
    """Return for how many seconds this run may make no progress."""
    if track.worked_s < policy.floor_s / 2:
        return policy.floor_s if track.found else policy.start_s
    cap_s = max(policy.cap_s, 1.5 * track.longest_s)
    return min(max(policy.floor_s, policy.factor * track.longest_s), cap_s)


def _detect_hang(
    track: JobHangHistory,
    mine: Mapping[NodeName, JobNodeActivity],
    policy: JobHangPolicy,
    now: datetime,
) -> JobHang | None:
    since = track.still
    if since is None or (now - since).total_seconds() < compute_hang_timeout(track, policy):
        return None
    what = _describe_process_activity(mine)
    node, before = (
        _find_node_with_differing_activity(mine),
        f"its longest pause before was {track.longest_s:.0f} s",
    )
    why = (
        f"no process of it has made progress since {since:%H:%M:%S} UTC ({what}); {before}"
        f"{f'; {node} is the odd one' if node else ''}"
    )
    other = "HyperPod's hung-job agent (HYPERPOD_HANG_RULES)"
    return JobHang(since, why, node, other if any(a.other for a in mine.values()) else "")


def _describe_process_activity(mine: Mapping[NodeName, JobNodeActivity]) -> str:
    """Return what the processes do, and the GPUs where they only look busy."""
    several = sum(a.ranks for a in mine.values()) >= LEAST_RANKS
    shown = {
        "waiting in a collective" if several else "waiting": sum(a.waiting for a in mine.values()),
        "spinning": sum(a.spinning for a in mine.values()),
        "blocked in the kernel (D)": sum(a.blocked for a in mine.values()),
        "asleep": sum(a.asleep for a in mine.values()),
    }
    what = ", ".join(f"{count:.0f} {name}" for name, count in shown.items() if count)
    if any(a.gpu_w for a in mine.values()):
        what += "; GPUs busy at low power" * any(a.gpu_busy >= POLLS for a in mine.values())
    return what


def _find_node_with_differing_activity(mine: Mapping[NodeName, JobNodeActivity]) -> NodeName | None:
    """Return the one node whose ranks do something else than wait with the others."""
    if len(mine) < LEAST_RANKS:
        return None
    if any(a.gpu_busy >= POLLS for a in mine.values()):
        odd = [name for name, a in mine.items() if a.gpu_busy < POLLS]
    else:
        odd = [name for name, a in mine.items() if a.spinning or a.blocked]
    return odd[0] if len(odd) == 1 else None
