"""Nodes that keep a job COMPLETING whose restart waits: drained, then DOWN, then rebooted.

DOWN ends the wait. It ends every job on the node too, so a node with other running jobs is only
drained until they have ended.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Final

from hpctl.engine.completing import (
    describe_completing_job,
    find_stuck_completing_jobs,
    is_job_freed_by_node_down,
    is_restart_waiting_for_completion,
)
from hpctl.engine.requests import find_node_generation_for_order
from hpctl.engine.view import PlanningView, RecoveryCandidate
from hpctl.vocabulary.assessment import FaultClass, Remedy, Urgency
from hpctl.vocabulary.identity import NodeName, RuleId
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SlurmJob

STUCK: Final = FaultClass(
    RuleId("completing-stuck"),
    "a job that waits to restart cannot finish completing here",
    Urgency.AFTER_JOBS,
    (Remedy.REBOOT, Remedy.ASK_HUMAN),
    source="job.completing_deadline_s",
)


def find_stuck_node_candidates(
    view: PlanningView, policy: RecoveryPolicy, treated: Collection[NodeName], now: datetime
) -> list[RecoveryCandidate]:
    """Return the nodes that must be set DOWN so that a job can restart."""
    found: dict[NodeName, RecoveryCandidate] = {}
    for job in find_stuck_completing_jobs(
        view.scheduler.jobs.values(), policy.job.completing_deadline_s, now
    ):
        if not is_restart_waiting_for_completion(job, view.state) or not is_job_freed_by_node_down(
            job, view.scheduler
        ):
            continue
        for name in job.completing_nodes:
            node = view.scheduler.nodes.get(name)
            if node is None or name in treated or name in found or view.is_quarantined(name):
                continue
            if node.down or not node.responding or _has_ended_recovery_for_job(name, job, view):
                continue
            since, why = job.completing_since or now, describe_completing_job(job, now)
            generation = find_node_generation_for_order("reboot", name, view)
            found[name] = RecoveryCandidate(generation, node, STUCK, since, why)
    return list(found.values())


def _has_ended_recovery_for_job(node: NodeName, job: SlurmJob, view: PlanningView) -> bool:
    """Return whether a recovery of the node for this very wait has ended: an operator left it
    so."""
    rid = view.state.last_of_node.get(node)
    last = view.state.nodes[rid] if rid is not None else None
    since = job.completing_since
    return (
        last is not None and last.rule == STUCK.rule and since is not None and last.opened > since
    )
