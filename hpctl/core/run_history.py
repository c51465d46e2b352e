"""What went wrong with a job before, as its policy's budgets count it."""

from __future__ import annotations

from datetime import datetime

from hpctl.core.job_recovery import JobRecovery, Phase
from hpctl.core.journal import State
from hpctl.core.model import JobId
from hpctl.core.run_policy import Action, Past
from hpctl.core.trouble import Kind, Trouble


def history(
    state: State, job: JobId, *, before: datetime | None = None, now: Trouble | None = None
) -> tuple[Past, ...]:
    """The troubles of a job that were treated, oldest first; of those told, the ones before
    `before`. A wish counts once, as the recovery that granted it, and what was told twice, because
    the answer was lost, counts once. `now`: the trouble that is decided on, which is not past."""
    recoveries = [
        r
        for r in state.jobs.values()
        if r.attempt.job == job and not r.let_run and r.phase is not Phase.CANCELLED
    ]
    counted = {r.trouble for r in recoveries if r.trouble is not None} | {now}
    found = [Past(_trouble(r), _action(r)) for r in recoveries]
    for told in state.reports.get(job, ()):
        trouble = told.report.trouble
        if trouble is None or trouble in counted or (before is not None and told.at >= before):
            continue
        counted.add(trouble)
        found.append(Past(trouble, told.report.action))
    return tuple(sorted(found, key=lambda p: p.trouble.at))


def _action(rec: JobRecovery) -> Action:
    if rec.trouble is not None:
        return rec.action
    return Action.HOLD if rec.over_budget else Action.REQUEUE


def _trouble(rec: JobRecovery) -> Trouble:
    """What went wrong; for a node's fault, as the run felt it."""
    if rec.trouble is not None:
        return rec.trouble
    node = rec.bad_nodes[0] if rec.bad_nodes else None
    return Trouble(Kind.NODE, rec.opened, rec.why, f"node {rec.cause}", node=node)
