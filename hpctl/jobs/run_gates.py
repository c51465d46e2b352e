"""The safety checks between a run that went wrong and its recovery, in one ordered tuple."""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from msgspec import Struct

from hpctl.engine.view import PlanningView, is_timestamp_fresh
from hpctl.vocabulary.pause import Pause, find_active_pause_covering_targets
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.run_policy import RunAction, RunActionDecision
from hpctl.vocabulary.slurm_facts import SlurmJob


class FailedRunDecision(Struct, frozen=True):
    """A run that went wrong, and what is to be done about it."""

    job: SlurmJob
    answer: RunActionDecision


RunGate = Callable[[FailedRunDecision, PlanningView, RecoveryPolicy, datetime], str | None]


def explain_run_block_by_kill_switch(
    run: FailedRunDecision, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> str | None:
    """The kill-switch file exists."""
    return view.stopped or None


def explain_run_block_by_pause(
    run: FailedRunDecision, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> str | None:
    """An operator has paused hpctl, for the cluster, the job's partition or a node of it."""
    pause = find_active_pause_covering_targets(
        view.state.pauses, now, run.job.nodes, run.job.partition.split(",")
    )
    return None if pause is None else pause.text


def explain_run_block_by_stale_readings(
    run: FailedRunDecision, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> str | None:
    """Slurm, the cloud or the node's agent has not been read lately."""
    if view.current and is_timestamp_fresh(view.scheduler.valid_at, policy.ages.scheduler_s, now):
        return None
    return f"Slurm was last read at {view.scheduler.valid_at:%H:%M:%S}"


def explain_run_block_by_partition(
    run: FailedRunDecision, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> str | None:
    """The job is in none of the partitions where hpctl may act."""
    return _explain_disallowed_partition(run.job, policy) or None


def explain_run_block_by_observe_mode(
    run: FailedRunDecision, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> str | None:
    """Mode observe only journals. Last: what passes the others shows here."""
    if policy.mode is not OperatingMode.OBSERVE:
        return None
    answer = run.answer
    verbs = {RunAction.HOLD: "hold", RunAction.END: "end", RunAction.NOTIFY: "treat"}
    would = verbs.get(answer.action, "start")
    after = f" after {answer.after_s:.0f} s" if answer.after_s > 0 else ""
    without = f" away from {','.join(answer.exclude)}" if answer.exclude else ""
    return f"mode observe: would {would} job {run.job.shown}{after}{without}: {answer.why}"


class NamedRunGate(Struct, frozen=True):
    """A gate and its name."""

    name: str
    gate: RunGate


RUN_GATES: Final = (
    NamedRunGate("kill_switch", explain_run_block_by_kill_switch),
    NamedRunGate("paused", explain_run_block_by_pause),
    NamedRunGate("stale_facts", explain_run_block_by_stale_readings),
    NamedRunGate("not_allowed", explain_run_block_by_partition),
    NamedRunGate("observing", explain_run_block_by_observe_mode),
)


def explain_job_gate_block(
    job: SlurmJob, policy: RecoveryPolicy, stopped: str, pause: Pause | None
) -> str:
    """Return why hpctl would not act on this job now, in the words sent to its supervisor; empty
    where it may."""
    if stopped:
        return stopped
    if pause is not None:
        return pause.text
    if policy.mode is OperatingMode.OBSERVE:
        return "mode observe: decisions are written down and nothing is done"
    return _explain_disallowed_partition(job, policy)


def _explain_disallowed_partition(job: SlurmJob, policy: RecoveryPolicy) -> str:
    if not policy.partitions or job.partition in policy.partitions:
        return ""
    return f"partition {job.partition} is none that the configuration allows"
