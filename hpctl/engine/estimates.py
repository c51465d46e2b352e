"""When a recovery is over: by what was measured of those like it, else by the policy's bound."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from statistics import median
from typing import Final

from msgspec import Struct

from hpctl.engine.job_deadlines import find_job_phase_deadline_s
from hpctl.engine.queue_wait import is_job_queued
from hpctl.engine.world import World
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.toolkit.durations import format_duration
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoveryPhase, JobRecoverySignal
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.recovery import RecoveryTransitionRecord

NEWEST: Final = 200
"""So many of the newest recoveries are measured."""
ENOUGH: Final = 3
"""So many recoveries make a measurement."""

_Kind = tuple[str, str]
"""The remedy of a node's recovery, or "job", and the phase from which the time is measured."""
_JOB: Final = "job"
_LEFT: Final[Mapping[JobRecoveryPhase, tuple[JobRecoveryPhase, ...]]] = {
    JobRecoveryPhase.SAVING: (
        JobRecoveryPhase.STOPPING,
        JobRecoveryPhase.RELEASED,
        JobRecoveryPhase.STARTING,
    ),
    JobRecoveryPhase.EXCISING: (
        JobRecoveryPhase.WATCHING,
        JobRecoveryPhase.STOPPING,
        JobRecoveryPhase.RELEASED,
        JobRecoveryPhase.STARTING,
    ),
    JobRecoveryPhase.WATCHING: (
        JobRecoveryPhase.STOPPING,
        JobRecoveryPhase.RELEASED,
        JobRecoveryPhase.STARTING,
    ),
    JobRecoveryPhase.STOPPING: (JobRecoveryPhase.RELEASED, JobRecoveryPhase.STARTING),
    JobRecoveryPhase.RELEASED: (JobRecoveryPhase.STARTING,),
    JobRecoveryPhase.STARTING: (),
}
"""The phases that a job may still pass before it runs, at most."""


class RecoveryEndTimeEstimate(Struct, frozen=True):
    """When it is over. `measured`: the median of so many recoveries; 0: `at` is a bound, by which
    hpctl gives up at the latest."""

    at: datetime
    measured: int = 0

    def text(self, now: datetime) -> str:
        """`about 1 min 20 s`, or `at most 25 min` for a bound, rounded up: how long it takes."""
        left_s = max(0.0, (self.at - now).total_seconds())
        if self.measured:
            return f"about {format_duration(left_s)}"
        return f"at most {_format_rounded_duration(left_s)}"

    @property
    def basis(self) -> str:
        """Return what it rests on."""
        if self.measured:
            return f"the median of {self.measured} recoveries"
        return "by the deadlines of the policy"


class RecoveryTimeEstimator:
    """How long recoveries took from each phase on, measured once for a whole view."""

    def __init__(self, world: World) -> None:
        self._world, state = world, world.state
        self._left_s: dict[_Kind, list[float]] = {}
        open_ids = {*state.open_jobs.values(), *state.open_nodes.values()}
        if not open_ids:
            return
        for rec in islice(_find_resumed_job_recoveries(state.jobs.values()), NEWEST):
            self._record_phase_durations(
                _JOB, JobRecoveryPhase.HIT, rec, _find_job_resume_time(rec)
            )
        for node in islice(_find_returned_node_recoveries(state.nodes.values()), NEWEST):
            self._record_phase_durations(str(node.remedy), NodeRecoveryPhase.OPEN, node, node.since)

    def _record_phase_durations(
        self, kind: str, first: str, rec: JobRecovery | NodeRecovery, end: datetime | None
    ) -> None:
        """Note how long an ended recovery still took when it came into each phase."""
        if end is None:
            return
        entered = [(str(first), rec.opened), *((str(move.phase), move.at) for move in rec.trail)]
        for phase, at in dict(reversed(entered)).items():
            if at < end:
                left_s = (end - at).total_seconds()
                self._left_s.setdefault((kind, phase), []).append(left_s)

    def estimate_job_restart_time(self, rec: JobRecovery) -> RecoveryEndTimeEstimate | None:
        """Return when a job runs again; None where it runs, where hpctl does not restart it, where
        it waits its turn in Slurm's queue, and where even the bound has passed."""
        w = self._world
        if (
            rec.ended
            or rec.phase is JobRecoveryPhase.PROVING
            or w.policy.mode is OperatingMode.OBSERVE
        ):
            return None
        job = w.slurm.jobs.get(rec.attempt.job) if w.slurm is not None else None
        if job is not None and job.reason.startswith("JobHeld"):
            return None
        if job is not None and rec.phase is JobRecoveryPhase.STARTING and is_job_queued(job, w.now):
            return None
        completing = job is not None and job.completing
        begin = max(rec.since, rec.start_at) if rec.start_at is not None else rec.since
        measured = (
            None
            if completing
            else self._estimate_end_from_measurements((_JOB, str(rec.phase)), begin)
        )
        if measured is not None:
            return measured
        bound = add_seconds_within_bounds(
            rec.since, _sum_remaining_job_phase_deadlines_s(rec, w.policy, completing)
        )
        return RecoveryEndTimeEstimate(bound) if bound > w.now else None

    def estimate_node_return_time(self, rec: NodeRecovery) -> RecoveryEndTimeEstimate | None:
        """Return when a node is back in service; None where too few were measured.

        No bound is given: a node whose remedy fails gets the next one.
        """
        return (
            None
            if rec.ended
            else self._estimate_end_from_measurements((str(rec.remedy), str(rec.phase)), rec.since)
        )

    def _estimate_end_from_measurements(
        self, kind: _Kind, begin: datetime
    ) -> RecoveryEndTimeEstimate | None:
        """Return the measured end, unless too few were measured or it has passed."""
        found: Sequence[float] = self._left_s.get(kind, ())
        if len(found) < ENOUGH:
            return None
        end = add_seconds_within_bounds(begin, median(found))
        return RecoveryEndTimeEstimate(end, len(found)) if end > self._world.now else None


def _format_rounded_duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds > size:
            return f"{math.ceil(seconds / size)} {unit}"
    return f"{math.ceil(seconds)} s"


def _find_resumed_job_recoveries(recs: Iterable[JobRecovery]) -> Iterator[JobRecovery]:
    """Yield the newest recoveries of jobs that ran again, without those that a backoff put off."""
    for rec in reversed([*recs]):
        if rec.ended and rec.start_at is None and not rec.is_without_fault:
            yield rec


def _find_returned_node_recoveries(recs: Iterable[NodeRecovery]) -> Iterator[NodeRecovery]:
    """Yield the newest recoveries of nodes that are back in service."""
    for rec in reversed([*recs]):
        if rec.phase is NodeRecoveryPhase.RETURNED and not rec.is_for_capacity_change:
            yield rec


def _find_job_resume_time(rec: JobRecovery) -> datetime | None:
    ran = (JobRecoverySignal.RUNNING_SEEN, JobRecoverySignal.WENT_ON)
    moves: Iterable[RecoveryTransitionRecord] = rec.trail
    return next((move.at for move in moves if JobRecoverySignal(move.signal) in ran), None)


def _sum_remaining_job_phase_deadlines_s(
    rec: JobRecovery, policy: RecoveryPolicy, completing: bool
) -> float:
    """Return the deadlines of the phase that a job is in and of all that may follow, in seconds."""
    left = _LEFT.get(rec.phase, ())
    if rec.phase is JobRecoveryPhase.HIT:
        first = JobRecoveryPhase.EXCISING if rec.supervised else JobRecoveryPhase.SAVING
        left = (first, *_LEFT[first])
    first_s = find_job_phase_deadline_s(rec.phase, policy, completing=completing)
    return first_s + sum(find_job_phase_deadline_s(phase, policy) for phase in left)
