"""Jobs whose launch failed: which of them a node under treatment explains, and which a person has.

A Prolog that fails ends the run within a second: it is seen on no node, and slurmctld names the
node nowhere. It does set a new submit time when it requeues, and drains the node in the same
second. So a job is attributed to a node of its partition that failed its launch at that time.

A job that no treated node explains stays as slurmctld left it: a Prolog that fails everywhere would
drain one more node for each release.
"""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Final

from hpctl.engine.journal.events import GateBlocked
from hpctl.engine.view import PlanningView
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.identity import JobId, NodeName, RuleId
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.recovery import StepKind, find_last_step_attempt
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode

GATE: Final = "launch_failed"
RULE: Final = RuleId("run-launch-failed")
_SOON_S: Final = 10.0
"""Seconds that the other nodes of the job may take to clean up after the Prolog has failed."""
_SLOW_S: Final = 60.0
"""Seconds after a drain in which a Prolog that began before it may fail."""
_RACE_S: Final = 30.0
"""Seconds before hpctl's drain in which its own Prolog may have failed, by the same fault."""
_DELAYED: Final = ("BeginTime", "None", "")


def find_jobs_with_failed_launch(view: PlanningView) -> dict[NodeName, list[SlurmJob]]:
    """Find the jobs whose launch a node under treatment failed, and that were not seen there."""
    found: dict[NodeName, list[SlurmJob]] = {}
    treated = [
        (view.state.nodes[rid], node)
        for name, rid in view.state.open_nodes.items()
        if (node := view.scheduler.nodes.get(name)) is not None
    ]
    if not treated:
        return found
    for job in view.scheduler.jobs.values():
        if not _is_job_waiting_for_launch(job, view):
            continue
        for rec, node in treated:
            if _is_job_requeued_by_failed_launch(job, rec, node, view):
                found.setdefault(rec.node, []).append(job)
    return found


def add_jobs_with_failed_launch(
    here: Mapping[NodeName, Collection[SlurmJob]], launches: Mapping[NodeName, list[SlurmJob]]
) -> dict[NodeName, list[SlurmJob]]:
    """Return the jobs on each node, those included whose launch it failed."""
    return {node: [*here.get(node, ()), *launches.get(node, ())] for node in {**here, **launches}}


def report_jobs_held_after_launch_failure(
    view: PlanningView, explained: Collection[JobId], now: datetime
) -> Iterator[GateBlocked]:
    """Note each job that slurmctld holds for its launch and that nothing of hpctl's starts."""
    for job in view.scheduler.jobs.values():
        if not job.is_held_at_launch or job.id in explained or job.id in view.state.open_jobs:
            continue
        if view.is_quarantined(job.id):
            continue
        reason = job.reason.replace("_", " ")
        why = f"slurmctld holds it ({reason}): no node under treatment explains that"
        yield GateBlocked(now, str(job.id), GATE, why, RULE, known_as=job.shown)


def _is_job_waiting_for_launch(job: SlurmJob, view: PlanningView) -> bool:
    """Return whether a job waits that slurmctld may have requeued for its launch, seen on no
    node."""
    if job.state != "PENDING" or job.restarts == 0 or job.nodes or job.is_start_postponed:
        return False
    if job.id in view.state.open_jobs or view.is_quarantined(job.id):
        return False
    return job.has_launch_failed or job.reason in _DELAYED


def _is_job_requeued_by_failed_launch(
    job: SlurmJob, rec: NodeRecovery, node: SlurmNode, view: PlanningView
) -> bool:
    """Return whether the time at which a job was requeued is that of a launch that a node
    failed."""
    if not set(job.partition.split(",")) & set(node.partitions):
        return False
    drain = find_last_step_attempt(rec.steps, StepKind.DRAIN)
    closed = drain.resolved or drain.started if drain is not None else view.scheduler.as_of
    prologs = [f.first for f in rec.findings if (f.check, f.code) == ("slurm", "prolog")]
    if job.has_launch_failed:
        early = min((f.first for f in rec.findings), default=rec.opened)
        late = add_seconds_within_bounds(closed, _SLOW_S)
    else:
        early = min(prologs, default=add_seconds_within_bounds(closed, -_RACE_S))
        late = add_seconds_within_bounds(max(prologs, default=closed), _SOON_S)
    return add_seconds_within_bounds(early, -1) <= job.submit <= late
