"""Nodes and jobs that wait for a person: hpctl has ended its treatment, and nothing happens
without one. Pure: a state, Slurm's nodes and jobs and a time in, values out.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct

from hpctl.engine.journal.state import EngineState
from hpctl.faults.hma_marks import find_hma_reason_mark
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoveryPhase
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode

GAVE_UP_SHOWN_S: Final = 86400.0
"""For so long a job that was given up counts as one that waits: Slurm forgets it within minutes,
and hpctl does not learn whether its owner has seen it."""


class JobAwaitingOperator(Struct, frozen=True):
    """A job that is not started again automatically, since when, and by which recovery's end."""

    job: JobId
    since: datetime
    end: JobRecoveryPhase


def find_nodes_awaiting_operator(
    state: EngineState, nodes: Mapping[NodeName, SlurmNode] | None
) -> list[NodeRecovery]:
    """Return the escalated recoveries whose node no operator has taken up since, the oldest first.

    `nodes` None: Slurm could not be read, and every escalated node counts.
    """
    found = []
    for rid in state.last_of_node.values():
        rec = state.nodes[rid]
        if rec.phase is not NodeRecoveryPhase.ESCALATED:
            continue
        node = nodes.get(rec.node) if nodes is not None else None
        if (
            node is None
            or find_hma_reason_mark(node)
            or parse_recovery_id_from_reason(node.reason) == rec.id
        ):
            found.append(rec)
    return sorted(found, key=lambda rec: (rec.since, rec.id))


def find_jobs_awaiting_operator(
    state: EngineState, jobs: Mapping[JobId, SlurmJob], now: datetime
) -> list[JobAwaitingOperator]:
    """Return the jobs that hpctl holds until a person releases them, and those that it gave up
    within a day; the oldest first. A job that runs, or is treated again, does not wait."""
    last: dict[JobId, JobRecovery] = {}
    for rec in state.jobs.values():
        last[rec.attempt.job] = rec
    found = []
    for number, rec in last.items():
        job = jobs.get(number)
        if number in state.open_jobs or (job is not None and job.running):
            continue
        held = rec.phase is JobRecoveryPhase.HELD and job is not None and _is_job_held(job)
        expires = add_seconds_within_bounds(rec.since, GAVE_UP_SHOWN_S)
        if held or (rec.phase is JobRecoveryPhase.GAVE_UP and now < expires):
            found.append(JobAwaitingOperator(number, rec.since, rec.phase))
    return sorted(found, key=lambda one: (one.since, one.job))


def _is_job_held(job: SlurmJob) -> bool:
    held = job.is_held
    return job.state == "PENDING" and held
