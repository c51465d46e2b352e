"""Which nodes the verdicts on several failed jobs name. Pure: a view and a time in, nodes out."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct

from hpctl.engine.view import PlanningView
from hpctl.jobs.decide import PastJobFailure
from hpctl.jobs.run_cases import NODE_KINDS
from hpctl.jobs.verdict import build_run_failure_verdict
from hpctl.nodes.testing import SuspectedNode
from hpctl.vocabulary.failure import FailureCause, FailureVerdict
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.run_policy import RunAction, RunPolicy
from hpctl.vocabulary.trouble import Trouble

LEAST_JOBS: Final = 2
"""How many jobs must name a node."""
WINDOW_S: Final = 86400.0
"""Seconds for which a failure counts: the default `window_s` of a run policy."""
MOST_NAMED: Final = 4
"""Jobs that the text of a suspicion quotes."""
LONGEST_QUOTE: Final = 160
"""Characters of a trouble, and of its verdict, that the text quotes: a job's output can be part of
both, and the reason of a recovery goes to notices, pages and the journal."""
_OF_NODE: Final = (FailureCause.NODE, FailureCause.LINK)


class _NodeBlamingFailureVerdict(Struct, frozen=True):
    """The verdict on one failure of a job that names a node."""

    job: JobId
    at: datetime
    text: str


def find_nodes_suspected_by_job_failures(
    view: PlanningView, now: datetime
) -> Iterator[SuspectedNode]:
    """Yield each node that the verdicts on LEAST_JOBS jobs name as the place of a fault of the node
    or of its links, within WINDOW_S.

    A job counts once for a node. One that fails in the same way on two nodes names none of them:
    its verdict is then a fault of the program. What hpctl saw of a node itself (`NODE_KINDS`) does
    not count, because its findings are treated as such.
    """
    named: dict[NodeName, dict[JobId, _NodeBlamingFailureVerdict]] = defaultdict(dict)
    for job, troubles in _group_recent_failures_by_job(view, now).items():
        for node, verdict in _list_nodes_blamed_for_failures(job, troubles, now):
            named[node][job] = verdict
    for node, by_job in named.items():
        if len(by_job) >= LEAST_JOBS:
            newest = max(verdict.at for verdict in by_job.values())
            yield SuspectedNode(node, newest, _describe_failed_jobs(list(by_job.values())))


def _group_recent_failures_by_job(
    view: PlanningView, now: datetime
) -> Mapping[JobId, Sequence[Trouble]]:
    """Return what went wrong recently with each job on a node that it had, oldest first."""
    troubles: dict[JobId, list[Trouble]] = defaultdict(list)
    for rec in view.state.jobs.values():
        if rec.trouble is not None and _is_recent_failure_on_job_node(rec.trouble, rec.ran_on, now):
            troubles[rec.attempt.job].append(rec.trouble)
    for job, events in view.state.reports.items():
        known = view.scheduler.jobs.get(job)
        nodes = known.nodes if known is not None else ()
        for event in events:
            trouble = event.report.trouble
            if trouble is not None and _is_recent_failure_on_job_node(trouble, nodes, now):
                troubles[job].append(trouble)
    return {job: sorted(found, key=lambda one: one.at) for job, found in troubles.items()}


def _is_recent_failure_on_job_node(
    trouble: Trouble, nodes: Sequence[NodeName], now: datetime
) -> bool:
    """Return whether a trouble is recent and names a node that the job had."""
    recent = 0 <= (now - trouble.at).total_seconds() < WINDOW_S
    return recent and trouble.node in nodes and trouble.kind not in NODE_KINDS


def _list_nodes_blamed_for_failures(
    job: JobId, troubles: Sequence[Trouble], now: datetime
) -> Iterator[tuple[NodeName, _NodeBlamingFailureVerdict]]:
    past: list[PastJobFailure] = []
    verdicts: list[tuple[Trouble, FailureVerdict]] = []
    for trouble in troubles:
        verdict = build_run_failure_verdict(trouble, past, {}, RunPolicy(), now, RunAction.REQUEUE)
        past.append(PastJobFailure(trouble, RunAction.REQUEUE))
        verdicts.append((trouble, verdict))
    # The newest verdict knows all failures: what follows the program is no node's.
    if not verdicts or verdicts[-1][1].cause not in _OF_NODE:
        return
    for trouble, verdict in verdicts:
        if verdict.cause in _OF_NODE and verdict.node is not None:
            text = f"{_shorten_quoted_text(trouble.why)} ({_shorten_quoted_text(verdict.text)})"
            yield verdict.node, _NodeBlamingFailureVerdict(job, trouble.at, text)


def _shorten_quoted_text(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_QUOTE else f"{line[:LONGEST_QUOTE]} […]"


def _describe_failed_jobs(verdicts: Sequence[_NodeBlamingFailureVerdict]) -> str:
    newest = sorted(verdicts, key=lambda one: one.at, reverse=True)
    quoted = [f"job {one.job}: {one.text}" for one in newest[:MOST_NAMED]]
    more = len(newest) - len(quoted)
    rest = [f"{more} more"] if more > 0 else []
    return f"{len(newest)} jobs failed on it: {'; '.join((*quoted, *rest))}"
