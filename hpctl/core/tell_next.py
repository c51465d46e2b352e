"""What an open recovery waits for, and until when: the last paragraph of its story."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from hpctl.core import job_recovery, node_recovery
from hpctl.core.bounds import later
from hpctl.core.job_advance import deadline_s as job_deadline_s
from hpctl.core.job_recovery import JobRecovery
from hpctl.core.model import Urgency
from hpctl.core.node_actors import unasked
from hpctl.core.node_advance import deadline_of
from hpctl.core.node_recovery import NodeRecovery
from hpctl.core.policy import Mode, Policy
from hpctl.core.tell import REMEDIES


@dataclass(frozen=True, slots=True)
class Awaited:
    """`what` is awaited; where it has not come by `until`, `otherwise` happens."""

    what: str
    until: datetime | None = None
    otherwise: str = ""


def awaited(rec: NodeRecovery | JobRecovery, policy: Policy) -> Awaited:
    """What happens next. For an ended recovery: what, if anything, a person should do."""
    if isinstance(rec, NodeRecovery):
        return _ended_node(rec) if rec.ended else _node(rec, policy)
    return _ended_job(rec) if rec.ended else _job(rec, policy)


def _node(rec: NodeRecovery, policy: Policy) -> Awaited:
    until = deadline_of(rec, policy)
    return Awaited(_node_waits(rec, policy), until, "the recovery is handed to a person")


def _node_waits(rec: NodeRecovery, policy: Policy) -> str:
    if policy.mode is Mode.OBSERVE:
        return "mode observe: decisions are written down and nothing is done"
    remedy = REMEDIES[rec.remedy]
    doubt = [s for s in rec.steps if s.in_doubt]
    if doubt and doubt[-1] is rec.steps[-1]:
        return f"the {doubt[-1].kind} is in doubt: its effect is looked for before it is repeated"
    match rec.phase:
        case node_recovery.Phase.OPEN:
            return "slurmctld to show DRAIN with hpctl's Reason"
        case node_recovery.Phase.CORDONED if rec.urgency is not Urgency.NOW:
            return "the jobs on the node to end by themselves"
        case node_recovery.Phase.CORDONED:
            return "the jobs to leave the node: each is stopped as soon as its recovery is ready"
        case node_recovery.Phase.VACATED if policy.mode is not Mode.OWN:
            return f"mode {policy.mode}: {remedy} is left to HyperPod's own recovery"
        case node_recovery.Phase.VACATED:
            return _remedy(rec, policy)
        case node_recovery.Phase.REMEDYING:
            return "; ".join(
                filter(None, ["a new boot to report under this node's name", unasked(rec, policy)])
            )
        case node_recovery.Phase.REJOINING:
            return "the cloud to say Running, and slurmd to register"
        case _:
            healthy = f"{policy.node.verify_healthy_s:g} s"
            return f"{healthy} of health in a row; then the node is given back to Slurm"


def _remedy(rec: NodeRecovery, policy: Policy) -> str:
    order = f"{REMEDIES[rec.remedy]} instance {rec.generation.instance}"
    if rec.by or rec.remedied:
        return f"the cloud to take the order: {order}"
    ripe = later(rec.opened, policy.node.remedy_after_s)
    return f"{ripe:%H:%M:%S} UTC, time for other nodes to report the same; then: {order}"


def _ended_node(rec: NodeRecovery) -> Awaited:
    if rec.phase is node_recovery.Phase.ESCALATED:
        return Awaited(
            f"a person: mend {rec.node} and give it back with `hpctl return {rec.node}`, "
            f"or order `hpctl replace {rec.node}`"
        )
    return Awaited("nothing: this recovery is over, and you need not do anything")


_JOB_WAITS: Final[dict[job_recovery.Phase, str]] = {
    job_recovery.Phase.HIT: "the bad node to be closed to new work",
    job_recovery.Phase.EXCISING: "slurmctld to take the bad node away from the job",
    job_recovery.Phase.WATCHING: "the job's own supervisor to say that it goes on",
    job_recovery.Phase.SAVING: "the job to save a checkpoint and end, or its grace to pass",
    job_recovery.Phase.STOPPING: "Slurm to finish cleaning up and put the job back in the queue",
    job_recovery.Phase.RELEASED: "slurmctld to drop the begin delay and exclude the bad nodes",
    job_recovery.Phase.STARTING: "Slurm to start the job on healthy nodes",
}


def _job(rec: JobRecovery, policy: Policy) -> Awaited:
    what = _JOB_WAITS.get(rec.phase, f"{policy.job.prove_s:g} s of running")
    if rec.start_at is not None and rec.phase is job_recovery.Phase.STARTING:
        what += f", not before {rec.start_at:%H:%M:%S} UTC: it backs off"
    if policy.mode is Mode.OBSERVE:
        what = "mode observe: decisions are written down and nothing is done"
    return Awaited(
        what,
        later(rec.since, job_deadline_s(rec.phase, policy)),
        "hpctl gives the job up to its owner",
    )


def _ended_job(rec: JobRecovery) -> Awaited:
    job = rec.attempt.job
    match rec.phase:
        case job_recovery.Phase.HELD:
            return Awaited(f"its owner: `scontrol release {job}` runs it again")
        case job_recovery.Phase.GAVE_UP:
            return Awaited(f"its owner: look at the job's log, then `scontrol requeue {job}`")
        case _:
            return Awaited("nothing: this recovery is over, and you need not do anything")
