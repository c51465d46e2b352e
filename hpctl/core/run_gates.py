"""The safety checks between a run that went wrong and its recovery: the node's gates, for a job.

A node's fault has passed `gates.GATES` before it touches a job; a run's own trouble passes these.
The last speaks for all the others, as there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from hpctl.core.model import SlurmJob
from hpctl.core.policy import Mode, Policy
from hpctl.core.run_policy import Action, Answer
from hpctl.core.view import View, fresh

RunGate = Callable[[SlurmJob, Answer, View, Policy, datetime], str | None]


def kill_switch(
    job: SlurmJob, answer: Answer, view: View, policy: Policy, now: datetime
) -> str | None:
    """Somebody has pulled the switch: the file exists."""
    return view.stopped or None


def paused(job: SlurmJob, answer: Answer, view: View, policy: Policy, now: datetime) -> str | None:
    """An operator has stopped everything."""
    return f"paused by {view.state.paused_by}" if view.state.paused_by else None


def stale_facts(
    job: SlurmJob, answer: Answer, view: View, policy: Policy, now: datetime
) -> str | None:
    """Nothing is begun on old news, nor while Slurm cannot be read to go on with it."""
    if view.current and fresh(view.scheduler.as_of, policy.ages.scheduler_s, now):
        return None
    return f"Slurm was last read at {view.scheduler.as_of:%H:%M:%S}"


def not_allowed(
    job: SlurmJob, answer: Answer, view: View, policy: Policy, now: datetime
) -> str | None:
    """The configuration lists the partitions where hpctl may act."""
    return _outside(job, policy) or None


def observing(
    job: SlurmJob, answer: Answer, view: View, policy: Policy, now: datetime
) -> str | None:
    """The default mode only says what it would do. Last, so that it speaks for all the others."""
    if policy.mode is not Mode.OBSERVE:
        return None
    would = "hold" if answer.action is Action.HOLD else "start"
    after = f" after {answer.after_s:.0f} s" if answer.after_s > 0 else ""
    without = f" away from {','.join(answer.exclude)}" if answer.exclude else ""
    return f"mode observe: would {would} job {job.id}{after}{without}: {answer.why}"


@dataclass(frozen=True, slots=True)
class RunGateRow:
    """A gate and its name."""

    name: str
    gate: RunGate


RUN_GATES: Final = (
    RunGateRow("kill_switch", kill_switch),
    RunGateRow("paused", paused),
    RunGateRow("stale_facts", stale_facts),
    RunGateRow("not_allowed", not_allowed),
    RunGateRow("observing", observing),
)


def shut_now(job: SlurmJob, policy: Policy, stopped: str, paused_by: str) -> str:
    """Why hpctl would not act on this job now, as its supervisor is told; empty where it may."""
    if stopped or paused_by:
        return stopped or f"paused by {paused_by}"
    if policy.mode is Mode.OBSERVE:
        return "mode observe: decisions are written down and nothing is done"
    return _outside(job, policy)


def _outside(job: SlurmJob, policy: Policy) -> str:
    if not policy.partitions or job.partition in policy.partitions:
        return ""
    return f"partition {job.partition} is none that the configuration allows"
