"""The burn-in of an idle node."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from hpctl.capacity.change_facts import ChangeCase, is_last_change_step_accepted
from hpctl.toolkit.bounds import add_seconds_within_bounds, parse_count
from hpctl.vocabulary.change import ClusterChange, ClusterChangeSignal
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.model import TEST, TEST_SUMMARY, DeviceVerdict
from hpctl.vocabulary.recovery import (
    Next,
    RecheckInterval,
    RecoveryPhaseMove,
    StepKind,
    StepStartDecision,
)
from hpctl.vocabulary.slurm_facts import ENDED

TEST_NAME: Final = "hpctl-burn-in-"
"""How the name of a burn-in's job begins; the change's id follows."""


_SHOWN: Final = 3


def find_burn_in_job(change: ClusterChange) -> JobId | None:
    """Return the id of a burn-in's job, None until slurmctld has reported it."""
    step = next((s for s in reversed(change.steps) if s.kind is StepKind.TEST), None)
    if step is None or step.outcome is None or not step.accepted:
        return None
    return JobId(parse_count(step.outcome.detail))


def plan_burn_in_start(c: ChangeCase) -> Next:
    """Return the step that submits the test, or the move once it was taken."""
    about, idle = c.rec.opened, c.policy.idle
    if is_last_change_step_accepted(c, StepKind.TEST):
        return RecoveryPhaseMove(ClusterChangeSignal.ORDER_TAKEN, f"job {find_burn_in_job(c.rec)}")
    if c.facts.unwanted:
        return RecoveryPhaseMove(ClusterChangeSignal.IN_USE, c.facts.unwanted)
    return c.take(
        StepKind.TEST,
        TEST_NAME + c.rec.id,
        ClusterChangeSignal.REFUSED,
        "slurmctld does not take the test",
        about.why,
        nodes=(about.node,),
        partition=idle.partition or about.group,
        command=f"{c.policy.acceptance.command} --level {idle.level} --id {c.rec.id}",
        limit_s=c.policy.acceptance.limit_s(idle.level),
        idle=True,
        qos=idle.qos,
    )


def evaluate_burn_in_progress(c: ChangeCase) -> Next:
    """Return what the test came to, or wait for it."""
    job, taken = c.facts.job, c.last(StepKind.TEST)
    since = taken.resolved if taken and taken.resolved else c.rec.since
    tests = [f for f in c.facts.results if f.check != TEST_SUMMARY]
    failed = tuple(f for f in tests if f.verdict is DeviceVerdict.FAIL)
    if failed:
        texts = (f"{f.check.removeprefix(TEST)}: {f.detail or 'failed'}" for f in failed[:_SHOWN])
        return RecoveryPhaseMove(ClusterChangeSignal.TESTED, f"failed: {'; '.join(texts)}", failed)
    forgotten = job is None and c.now >= add_seconds_within_bounds(
        since, c.policy.node.step_retry_s
    )
    if forgotten or (job is not None and job.state in ENDED):
        return _handle_burn_in_job_end(c, since)
    if c.facts.unwanted:
        return RecoveryPhaseMove(ClusterChangeSignal.IN_USE, c.facts.unwanted)
    return c.wait(
        f"job {find_burn_in_job(c.rec)} {job.state if job else ''}".strip(), RecheckInterval.OFTEN
    )


def _handle_burn_in_job_end(c: ChangeCase, since: datetime) -> Next:
    """Handle the end of its job: its result may be on its way. A command of the site's may report
    none."""
    job = c.facts.job
    how = f"job {job.id} ended as {job.state}" if job else "slurmctld has forgotten its job"
    if c.facts.results:
        return RecoveryPhaseMove(ClusterChangeSignal.TESTED, f"nothing failed; {how}")
    if job is not None and job.state not in ("COMPLETED", "FAILED"):
        return RecoveryPhaseMove(ClusterChangeSignal.REFUSED, how)
    end = max(since, job.end) if job is not None and job.end is not None else since
    if c.now < add_seconds_within_bounds(end, c.policy.acceptance.result_s):
        return c.wait(f"{how}; its node's agent has reported no result", RecheckInterval.SLOWLY)
    done = job is not None and job.state == "COMPLETED"
    signal = ClusterChangeSignal.TESTED if done else ClusterChangeSignal.REFUSED
    return RecoveryPhaseMove(signal, f"{how}, and its node's agent reported no result")


def plan_burn_in_job_cancellation(c: ChangeCase) -> Next:
    """End a burn-in. Its job is canceled by its name: one that was never answered may be there."""
    job, ended = c.facts.job, c.last(StepKind.END_TEST)
    if ended is not None and ended.accepted and (job is None or job.state in ENDED):
        return RecoveryPhaseMove(ClusterChangeSignal.GONE, "its job has ended")
    name = TEST_NAME + c.rec.id
    if ended is None:
        return StepStartDecision(StepKind.END_TEST, name, 1)
    if c.now < add_seconds_within_bounds(ended.resolved or ended.started, 1.0):
        return c.wait("its job to end", RecheckInterval.SOON)
    return StepStartDecision(StepKind.END_TEST, name, ended.attempt + 1)
