"""Why a thing was done, or was not done: what `hpctl explain` and the page show, as a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, Final, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.engine.completing import (
    describe_completing_job,
    describe_stuck_completing_fix,
    find_job_stuck_completing_on_node,
    is_job_stuck_completing,
)
from hpctl.engine.gates import GATES
from hpctl.engine.held_jobs import describe_release_command
from hpctl.engine.instance_resolver import make_natural_sort_key as instance_natural
from hpctl.engine.job_deadlines import find_job_phase_deadline_s
from hpctl.engine.journal.events import GateBlocked, JobReported
from hpctl.engine.journal.state import EngineState
from hpctl.engine.maintenance import describe_maintenance_reservation
from hpctl.engine.named_jobs import find_jobs_by_id
from hpctl.engine.node_waits import describe_node_wait_for_job
from hpctl.engine.power_saving import describe_node_power_saving, has_node_failed_to_resume
from hpctl.engine.preemption import (
    SUSPENDED,
    JobPreemption,
    describe_preemption,
    find_preemption_of_job,
    find_suspending_job,
    format_preemptor,
    is_job_possibly_preempted,
)
from hpctl.engine.queue_wait import describe_queue_wait, is_job_queued
from hpctl.engine.remedies import REMEDY_GATES
from hpctl.engine.requests import ORDERS
from hpctl.engine.restart_time import find_user_postponed_begin_time
from hpctl.engine.timeline import (
    POISONS,
    AwaitedEvent,
    RecoveryTimelineLine,
    build_recovery_timeline,
    describe_gate_block_release,
    describe_held_job_release,
    find_earliest_fault_time,
    find_next_awaited_event,
    format_finding,
    format_recovery_or_change_headline,
    format_sentence_with_reason,
    make_job_report_line,
    make_job_resume_command,
)
from hpctl.engine.untreated import (
    NodeWithoutActiveRecovery,
    describe_node_without_active_recovery,
    find_event_resolving_unrecovered_node,
    find_nodes_without_active_recovery,
)
from hpctl.engine.views import (
    JobFailureView,
    list_capacity_changes,
    list_maintenance_windows,
    make_job_failure_view,
)
from hpctl.engine.world import (
    World,
    describe_instance_status_message,
    find_gate_block_of_target,
    list_known_nodes,
)
from hpctl.faults.catalogue import FaultRules
from hpctl.faults.hma_marks import find_hma_reason_mark
from hpctl.faults.slurm_reasons import describe_action_for_drained_node, find_drained_node_fault_row
from hpctl.toolkit.bounds import add_seconds_within_bounds, parse_count
from hpctl.toolkit.durations import format_duration
from hpctl.toolkit.job_ids import format_het_component_id, parse_array_task_ranges, parse_job_id
from hpctl.toolkit.view_copy import build_view_from_source
from hpctl.vocabulary import assessment, identity, model, reason, slurm_facts
from hpctl.vocabulary.change import ClusterChange
from hpctl.vocabulary.failure import FailureVerdict
from hpctl.vocabulary.hang import ENDED_GATE, HANG_GATE, OTHERS_GATE
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoveryPhase
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.pause import find_active_pause_covering_targets
from hpctl.vocabulary.preemption_order import PreemptionOrder
from hpctl.vocabulary.registration import JobRegistration, parse_registration_comment
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import Trouble


class EvidenceView(Struct, frozen=True):
    """One finding: `text` in words, `evidence` the raw line that it comes from."""

    first: datetime
    last: datetime
    check: str
    verdict: str
    device: str
    code: str
    detail: str
    count: int
    text: str
    evidence: str


class RuleView(Struct, frozen=True):
    """The row of the catalogue that decided, and where the row comes from."""

    id: str
    meaning: str
    urgency: str
    ladder: tuple[str, ...]
    source: str


class GateView(Struct, frozen=True):
    """One gate, in order. `result`: `passed`, `waived` (a waiver), `held` or `not_reached`."""

    name: str
    asks: str
    result: str
    why: str


class TaskView(Struct, frozen=True):
    """One task of an array, or those of its tasks that wait together, and what hpctl did about it.

    `id`: as its user writes it, `12_3`; `explain`: what to ask for to read more.
    """

    id: str
    state: str
    nodes: tuple[str, ...]
    text: str
    explain: str


class StandstillView(Struct, frozen=True):
    """Since when nothing of a running job works, and what its processes do instead."""

    since: datetime
    why: str


class FailureView(Struct, frozen=True):
    """Why a run of a job failed. `confidence`: high, medium or low. `may_retry`: whether hpctl
    would start the job again after such a failure."""

    cause: str
    confidence: str
    rank: int | None
    node: identity.NodeName | None
    reasons: tuple[str, ...]
    may_retry: bool


class ExplainView(Struct, frozen=True):
    """What `hpctl explain` shows. `kind`: node_recovery, job_recovery, hold, node, job,
    array, change.

    `trouble`: what went wrong with the run, for a job that no node's fault explains. `tasks`: those
    of an array. `standstill`: of a job that runs and of which nothing works. `fault_at`: when the
    fault of a recovery was first found, from which its timeline counts; null elsewhere. `failure`:
    the verdict on the run that failed, null where none has.
    """

    as_of: datetime
    target: str
    kind: str
    headline: str
    rule: RuleView | None = None
    evidence: tuple[EvidenceView, ...] = ()
    gates: tuple[GateView, ...] = ()
    story: tuple[RecoveryTimelineLine, ...] = ()
    next: AwaitedEvent = field(default_factory=lambda: AwaitedEvent(""))
    related: tuple[str, ...] = ()
    trouble: JobFailureView | None = None
    tasks: tuple[TaskView, ...] = ()
    standstill: StandstillView | None = None
    fault_at: datetime | None = None
    failure: FailureView | None = None


class NamedGate(Protocol):
    """A row of a table of gates; the docstring of `gate` says what it asks."""

    @property
    def name(self) -> str:
        """Return the gate's name in the journal."""

    @property
    def gate(self) -> Callable[..., Any]:
        """Return the check."""


class JobToExplain(Struct, frozen=True):
    """A registered job that is to be explained.

    `policy`: its own run policy. `look`: whether files of the job may be opened, which may be on a
    file system that hangs.
    """

    world: World
    job: slurm_facts.SlurmJob
    registered: JobRegistration
    policy: RunPolicy
    look: bool = True


class FailureToExplain(Struct, frozen=True):
    """A run of a job that failed, by its trouble; None where `recovery` treats a node's fault.

    `hold`: what blocks the job's restart. `policy`: the job's run policy, None where it is not
    known here.
    """

    world: World
    job: identity.JobId
    trouble: Trouble | None
    nodes: tuple[identity.NodeName, ...] = ()
    recovery: JobRecovery | None = None
    hold: GateBlocked | None = None
    policy: RunPolicy | None = None


class ExplainExtensions(Struct, frozen=True, kw_only=True):
    """What the rooms of features add to an explanation; by default nothing.

    `orders`: what operators may order beyond the engine's own orders. `run_gates`: the gates
    between a run that went wrong and its recovery. `on_jobs`: each returns one fact of a
    registered job. `on_crashes`: each returns what happens were a rank of it to crash now.
    `on_ends`: each returns why a registered job that has ended is or is not started again, empty
    where it has nothing to say. `on_failures`: each returns the verdict on a run that failed, None
    where it has none; the first one counts. `look`: whether files of a job may be opened, which may
    be on a file system that hangs.
    """

    orders: Sequence[assessment.FaultClass] = ()
    run_gates: Sequence[NamedGate] = ()
    on_jobs: Sequence[Callable[[JobToExplain], str]] = ()
    on_crashes: Sequence[Callable[[JobToExplain], str]] = ()
    on_ends: Sequence[Callable[[JobToExplain], str]] = ()
    on_failures: Sequence[Callable[[FailureToExplain], FailureVerdict | None]] = ()
    look: bool = True


NO_PARTS: Final = ExplainExtensions()


def find_feature_failure_verdict(
    parts: ExplainExtensions, asked: FailureToExplain
) -> FailureView | None:
    """Return what the features say of a run that failed; None where none has a verdict."""
    for judge in parts.on_failures:
        verdict = judge(asked)
        if verdict is not None:
            return build_view_from_source(FailureView, verdict)
    return None


NO_ORDER: Final = PreemptionOrder()


def build_explain_view(
    w: World,
    rules: FaultRules,
    target: str,
    parts: ExplainExtensions = NO_PARTS,
    order: PreemptionOrder = NO_ORDER,
) -> ExplainView | None:
    """Explain an id, a node, a job or a hold's target. Return None where it is unknown.

    What is open wins over what is held, that over what a node shows by now, and that over what
    has ended.
    """
    rid = identity.RecoveryId(target)
    by_id = w.state.nodes.get(rid) or w.state.jobs.get(rid)
    if by_id is not None:
        return _explain_recovery(w, rules, by_id, parts)
    named = find_jobs_by_id(w, target)
    if _is_job_array_id(w, target, named):
        return _explain_job_array(w, target, named)
    view = _explain_target(w, rules, str(named[0]) if named else target, parts)
    if view is None:
        return None
    lost = find_job_preemption(w, target, order)
    if lost:
        whose = w.slurm.jobs[named[0]].shown if w.slurm is not None else target
        said = format_sentence_with_reason(f"Job {whose} was {describe_preemption(lost)}")
        view = replace(view, headline=f"{view.headline} {said}")
    if named:
        view = _add_job_standstill_details(w, view, named[0])
    return _add_heterogeneous_component_note(view, target)


def _add_job_standstill_details(w: World, view: ExplainView, number: identity.JobId) -> ExplainView:
    """Return the view of a job with since when nothing of it works, whatever is done about that."""
    found = w.still.get(number)
    job = w.slurm.jobs.get(number) if w.slurm is not None else None
    if found is None or job is None or not job.running:
        return view
    for_s = format_duration((w.now - found.since).total_seconds())
    said = format_sentence_with_reason(
        f"Standing still since {found.since:%H:%M:%S} UTC ({for_s})",
        f"hpctl sees none of its processes at work ({found.why})",
    )
    return replace(
        view,
        headline=f"{view.headline} {said}",
        standstill=build_view_from_source(StandstillView, found),
    )


def find_job_preemption(w: World, target: str, order: PreemptionOrder) -> JobPreemption | None:
    """Return how a job lost its nodes to another, where it waits or has ended since."""
    named = find_jobs_by_id(w, target)
    job = w.slurm.jobs.get(named[0]) if w.slurm is not None and len(named) == 1 else None
    if w.slurm is None or job is None or job.id in w.state.open_jobs:
        return None
    attempts = [rec.attempt for rec in w.state.jobs.values() if not rec.note]
    treated = {(attempt.job, attempt.restarts) for attempt in attempts}
    if (job.id, job.restarts - 1) in treated:
        return None
    return find_preemption_of_job(job, w.slurm.jobs.values(), order)


def is_job_suspended(w: World, target: str) -> bool:
    """Return whether a job is suspended, by a person or by a job that preempts it."""
    named = find_jobs_by_id(w, target)
    job = w.slurm.jobs.get(named[0]) if w.slurm is not None and len(named) == 1 else None
    return job is not None and job.state == SUSPENDED


def _explain_target(
    w: World, rules: FaultRules, target: str, parts: ExplainExtensions
) -> ExplainView | None:
    """Return the explanation of one node, group, or job by slurmctld's number of it."""
    of_target = [
        rec
        for rec in _list_target_recoveries(w, target)
        if not _is_recovery_only_preemption_note(w, rec)
    ]
    still_open = [r for r in of_target if not r.ended]
    hold = find_gate_block_of_target(w, target)
    if still_open:
        return _explain_recovery(w, rules, still_open[-1], parts)
    if hold is not None:
        return _explain_blocked_gate(w, rules, hold, parts)
    if of_target and not _has_problem_newer_than_recovery(w, of_target[-1], target):
        return _explain_recovery(w, rules, of_target[-1], parts)
    reports = _list_supervisor_reports_of_target(w, target)
    if reports and not _is_job_without_supervisor(w, reports[-1].report.job):
        return _explain_untreated_job_by_reports(w, target, reports, parts)
    if target in list_known_nodes(w):
        return _explain_node(w, rules, identity.NodeName(target), parts)
    return _explain_capacity_change_of_target(w, target)


def _is_recovery_only_preemption_note(w: World, rec: NodeRecovery | JobRecovery) -> bool:
    """Return whether a recovery is a note of a preemption, which `make_job_explain_view` tells
    among the rest."""
    noted = isinstance(rec, JobRecovery) and rec.ended and bool(rec.note)
    return noted and w.slurm is not None and rec.key in w.slurm.jobs


def _has_problem_newer_than_recovery(
    w: World, last: NodeRecovery | JobRecovery, target: str
) -> bool:
    """Return whether something is the matter with a node that began after its last recovery had
    ended."""
    node = w.slurm.nodes.get(identity.NodeName(target)) if w.slurm else None
    if _find_job_completing_on_node(w, target) is not None or (
        node is not None and describe_node_power_saving(node)
    ):
        return True
    judged = w.assessments.get(identity.NodeName(target))
    return (
        judged is not None
        and judged.condition is not assessment.NodeCondition.HEALTHY
        and judged.since > last.since
    )


def _find_job_completing_on_node(w: World, target: str) -> slurm_facts.SlurmJob | None:
    """Return the job that a node keeps COMPLETING."""
    if w.slurm is None:
        return None
    name, for_s = identity.NodeName(target), w.policy.job.completing_shown_s
    return find_job_stuck_completing_on_node(name, w.slurm, for_s, w.now)


def _list_target_recoveries(w: World, target: str) -> list[NodeRecovery | JobRecovery]:
    """Return the recoveries of a node or of a job, oldest first."""
    found: list[NodeRecovery | JobRecovery] = [
        r
        for r in w.state.nodes.values()
        if r.node == target and not (r.is_for_capacity_change and r.ended)
    ]
    found += [r for r in w.state.jobs.values() if str(r.attempt.job) == target]
    return sorted(found, key=lambda r: (r.opened, r.id))


def _explain_recovery(
    w: World, rules: FaultRules, rec: NodeRecovery | JobRecovery, parts: ExplainExtensions
) -> ExplainView:
    if isinstance(rec, JobRecovery):
        return _explain_job_recovery(w, rules, rec, parts)
    if rec.is_for_capacity_change:
        return _explain_capacity_change(w, rec)
    hold = None if rec.ended else find_gate_block_of_target(w, rec.node)
    untreated = next(
        (one for one in find_nodes_without_active_recovery(w) if one.last.id == rec.id), None
    )
    if untreated is not None:
        return _explain_untreated_node(w, rules, untreated, parts)
    return ExplainView(
        as_of=w.now,
        target=rec.id,
        kind="node_recovery",
        headline=format_recovery_or_change_headline(rec),
        rule=_describe_recovery_fault_rule(rules, rec, parts),
        evidence=list_finding_evidence((*rec.findings, *rec.tests)),
        gates=(
            *list_gates_passed_by_recovery(rec.passed),
            *(_make_blocked_gate_views(hold, _ASKS) if hold else ()),
        ),
        story=build_recovery_timeline(rec, w.state),
        fault_at=find_earliest_fault_time(rec, w.state),
        next=describe_gate_block_release(hold) if hold else _find_awaited_node_event(w, rec),
        related=tuple(j.id for j in w.state.jobs.values() if j.cause == rec.id),
    )


def _explain_untreated_node(
    w: World, rules: FaultRules, one: NodeWithoutActiveRecovery, parts: ExplainExtensions
) -> ExplainView:
    """Return a node that an operator keeps as it is, its fault known or its drain left."""
    rec, now = one.last, one.judged.findings if one.judged is not None else ()
    escalated = rec.phase is NodeRecoveryPhase.ESCALATED
    return ExplainView(
        as_of=w.now,
        target=rec.id,
        kind="node_recovery",
        headline=format_recovery_or_change_headline(rec)
        if escalated
        else f"{describe_node_without_active_recovery(one)}.",
        rule=_describe_recovery_fault_rule(rules, rec, parts),
        evidence=list_finding_evidence((*rec.findings, *(f for f in now if f not in rec.findings))),
        gates=list_gates_passed_by_recovery(rec.passed),
        story=build_recovery_timeline(rec, w.state),
        fault_at=find_earliest_fault_time(rec, w.state),
        next=find_next_awaited_event(rec, w.policy)
        if escalated
        else find_event_resolving_unrecovered_node(one),
        related=tuple(j.id for j in w.state.jobs.values() if j.cause == rec.id),
    )


def _describe_recovery_fault_rule(
    rules: FaultRules, rec: NodeRecovery, parts: ExplainExtensions
) -> RuleView:
    """What was decided then counts, not what the catalogue says by now."""
    row = make_fault_rule_view(rules, rec.rule, parts)
    return build_view_from_source(RuleView, rec, id=rec.rule, source=row.source if row else "")


def _find_awaited_node_event(w: World, rec: NodeRecovery) -> AwaitedEvent:
    """Return what is awaited, and what the cloud says where it is the cloud's turn."""
    found, status = find_next_awaited_event(rec, w.policy), describe_instance_status_message(w, rec)
    waits = describe_node_wait_for_job(rec, w.slurm, w.policy, w.now)
    if waits:
        found = replace(found, what=waits)
    judged = w.assessments.get(rec.node)
    if (
        rec.phase is NodeRecoveryPhase.VERIFYING
        and judged
        and judged.condition is not assessment.NodeCondition.HEALTHY
    ):
        status = f"now it is {judged.condition}: {judged.why}"
    return replace(found, what=f"{found.what}; {status}") if status else found


def _explain_job_recovery(
    w: World, rules: FaultRules, rec: JobRecovery, parts: ExplainExtensions
) -> ExplainView:
    cause = w.state.nodes.get(rec.cause)
    return ExplainView(
        as_of=w.now,
        target=rec.id,
        kind="job_recovery",
        headline=format_recovery_or_change_headline(rec),
        rule=_describe_recovery_fault_rule(rules, cause, parts) if cause else None,
        evidence=list_finding_evidence(cause.findings) if cause else (),
        story=_build_job_timeline_with_reports(rec, w.state),
        fault_at=find_earliest_fault_time(rec, w.state),
        next=_find_awaited_job_event(w, rec),
        related=(*((rec.cause,) if rec.cause else ()), *_list_capacity_change_ids(w, rec.id)),
        trouble=make_job_failure_view(rec.trouble),
        failure=find_feature_failure_verdict(
            parts, FailureToExplain(w, rec.attempt.job, rec.trouble, rec.ran_on, recovery=rec)
        ),
    )


def _find_awaited_job_event(w: World, rec: JobRecovery) -> AwaitedEvent:
    """Return what is awaited, and which nodes keep the job COMPLETING."""
    found, completing = (
        _find_awaited_job_start_event(w, rec),
        _explain_completing_job(w, rec.attempt.job),
    )
    if not completing:
        return found
    if rec.ended:
        return AwaitedEvent(completing)
    until = add_seconds_within_bounds(
        rec.since, find_job_phase_deadline_s(rec.phase, w.policy, completing=True)
    )
    return replace(found, what=f"{found.what}; {completing}", until=until)


def _explain_completing_job(w: World, number: identity.JobId) -> str:
    """Return which nodes keep a job COMPLETING and what ends it; "" where none does for long."""
    job = w.slurm.jobs.get(number) if w.slurm is not None else None
    if (
        w.slurm is None
        or job is None
        or not is_job_stuck_completing(job, w.policy.job.completing_shown_s, w.now)
    ):
        return ""
    release = describe_stuck_completing_fix(job, w.slurm, w.state, w.policy)
    return f"{describe_completing_job(job, w.now)}; {release}"


def _find_awaited_job_start_event(w: World, rec: JobRecovery) -> AwaitedEvent:
    """Return what is awaited, and why Slurm lets the job wait where it is Slurm's turn."""
    found = find_next_awaited_event(rec, w.policy)
    job = w.slurm.jobs.get(rec.attempt.job) if w.slurm is not None else None
    if job is None or rec.phase is not JobRecoveryPhase.STARTING or job.state != "PENDING":
        return found
    if job.reason.startswith("JobHeld"):
        return replace(found, what=describe_held_job_release(rec))
    put_off = find_user_postponed_begin_time(rec, job, w.now)
    if put_off is not None:
        when = f"{put_off:%Y-%m-%d %H:%M:%S} UTC"
        return replace(found, what=f"its begin time: a person has put it off until {when}")
    if w.slurm is not None and is_job_queued(job, w.now):
        return AwaitedEvent(describe_queue_wait(job, w.slurm.jobs.values()))
    named = job.reason not in ("", "None")
    return replace(found, what=f"{found.what} (Slurm: {job.reason})") if named else found


def _build_job_timeline_with_reports(
    rec: JobRecovery, state: EngineState
) -> tuple[RecoveryTimelineLine, ...]:
    """Return the timeline, and the reports of the job's supervisors from the run that was hit
    on."""
    runs = range(rec.attempt.restarts, rec.attempt.restarts + 2)
    reports = state.reports.get(rec.attempt.job, ())
    found = [make_job_report_line(r, rec.shown) for r in reports if r.report.restarts in runs]
    return tuple(sorted([*found, *build_recovery_timeline(rec, state)], key=lambda line: line.at))


def _list_capacity_change_ids(w: World, target: str) -> list[str]:
    """Return the newest changes of capacity that are about a node, or were made for a recovery."""
    return [change.id for change in _list_capacity_changes_of_target(w, target)[-3:]]


def _list_supervisor_reports_of_target(w: World, target: str) -> Sequence[JobReported]:
    """Return what a job's supervisors reported, where the target is a job."""
    return w.state.reports.get(identity.JobId(int(target)), ()) if target.isdecimal() else ()


def _is_job_without_supervisor(w: World, number: identity.JobId) -> bool:
    """Return whether a job is one that Slurm knows and that no supervisor is in: its script
    reports."""
    job = w.slurm.jobs.get(number) if w.slurm is not None else None
    registered = parse_registration_comment(job.comment) if job is not None else None
    return registered is not None and not registered.supervised


def _find_last_run_report_note(reports: Sequence[JobReported], restarts: int) -> str:
    """Return what one run of a job reported last beside troubles, "" where nothing."""
    of_run = (e.report for e in reversed(reports) if e.report.restarts == restarts)
    return next((report.why for report in of_run if report.trouble is None and report.why), "")


def _format_supervisor_report_lines(
    reports: Sequence[JobReported], shown: str
) -> tuple[RecoveryTimelineLine, ...]:
    """Return the reports of a job's supervisors as lines. `shown`: the job's id."""
    return tuple(make_job_report_line(report, shown) for report in reports)


def _is_job_array_id(w: World, target: str, named: Sequence[identity.JobId]) -> bool:
    """Return whether an id stands for several tasks of an array."""
    asked = parse_job_id(target)
    if asked is None or asked.task is not None or asked.component is not None:
        return False
    jobs = w.slurm.jobs if w.slurm is not None else {}
    several = [job for job in named if job in jobs and jobs[job].array_job == asked.number]
    return len(named) > 1 or any(not jobs[job].array_task.isdigit() for job in several)


def _explain_job_array(w: World, target: str, named: Sequence[identity.JobId]) -> ExplainView:
    """Return an array: every task, and what hpctl did about it."""
    tasks = sorted(
        (_describe_array_task(w, job) for job in named), key=lambda task: instance_natural(task.id)
    )
    known = [w.slurm.jobs[job] for job in named if w.slurm is not None and job in w.slurm.jobs]
    whose = f" ({known[0].name}, {known[0].user})" if known else ""
    states = ", ".join(f"{count} {state}" for state, count in _count_array_task_states(known))
    return ExplainView(
        as_of=w.now,
        target=target,
        kind="array",
        headline=f"Job array {target}{whose}: {states or 'Slurm no longer knows a task of it'}.",
        next=AwaitedEvent("nothing: hpctl treats each task as a separate job"),
        tasks=tuple(tasks),
    )


def _count_array_task_states(known: Sequence[slurm_facts.SlurmJob]) -> list[tuple[str, int]]:
    """Return the states of an array's tasks, sorted, each with how many tasks are in it.

    A requeued task has a separate record, and squeue lists it in the record of those that wait
    for their first run, too: it counts where its separate record is.
    """
    own = {parse_count(job.array_task) for job in known if job.array_task.isdigit()}
    counts = Counter[str]()
    for job in known:
        ranges = list(parse_array_task_ranges(job.array_task))
        if job.array_task.isdigit() or not ranges:
            counts[job.state] += 1
            continue
        for tasks in ranges:
            counts[job.state] += len(tasks) - sum(task in tasks for task in own)
    return sorted((state, count) for state, count in counts.items() if count)


def _describe_array_task(w: World, number: identity.JobId) -> TaskView:
    """Return a task, or several that wait in one record."""
    job = w.slurm.jobs.get(number) if w.slurm is not None else None
    recoveries = [r for r in w.state.jobs.values() if r.attempt.job == number]
    hold = find_gate_block_of_target(w, str(number))
    text, explain = "not treated by hpctl", ""
    if recoveries:
        text, explain = format_recovery_or_change_headline(recoveries[-1]), recoveries[-1].id
    if hold is not None:
        by_gate = "" if hold.gate == ENDED_GATE else f"held by the gate {hold.gate}: "
        text, explain = f"{by_gate}{hold.why}", ""
    shown = job.shown if job is not None else recoveries[-1].shown if recoveries else str(number)
    return TaskView(
        id=shown,
        state=job.state if job is not None else "",
        nodes=job.nodes if job is not None else (),
        text=text,
        explain=explain or shown,
    )


def _add_heterogeneous_component_note(view: ExplainView, target: str) -> ExplainView:
    """Say which job it is where a component of a heterogeneous one was asked for."""
    asked = parse_job_id(target)
    if asked is None or asked.component is None:
        return view
    whole = f"{target} is a component of job {asked.number}, which Slurm runs as one. "
    return replace(view, headline=whole + view.headline)


def format_job_id_for_user(job: slurm_facts.SlurmJob, target: str) -> str:
    """Return the id of a job as its user asked for it, and what it belongs to."""
    if job.components:
        parts = ", ".join(format_het_component_id(job.id, i) for i in range(len(job.components)))
        return f"{job.shown}, heterogeneous: {parts}"
    if job.shown != target and not job.array_task.isdigit() and job.array_job:
        return f"{target} of {job.shown}"
    return job.shown


def _explain_untreated_job_by_reports(
    w: World, target: str, reports: Sequence[JobReported], parts: ExplainExtensions
) -> ExplainView:
    """A job that needed nothing of hpctl: what its supervisor reported."""
    last = reports[-1].report
    completing = _explain_completing_job(w, last.job)
    job = w.slurm.jobs.get(last.job) if w.slurm is not None else None
    shown = job.shown if job is not None else target
    what = last.trouble.why if last.trouble else "its supervisor lives"
    note = _find_last_run_report_note(reports, last.restarts)
    return ExplainView(
        as_of=w.now,
        target=target,
        kind="job",
        headline=f"Job {shown} is handled by its own supervisor. Newest report: {what}."
        + "".join(f" {fact[0].upper()}{fact[1:]}." for fact in (note, completing) if fact),
        story=_format_supervisor_report_lines(reports, shown),
        next=AwaitedEvent("nothing, unless its supervisor asks or its run ends"),
        trouble=make_job_failure_view(last.trouble),
        failure=_judge_run_by_supervisor_report(w, last.job, last.trouble, parts),
    )


def _judge_run_by_supervisor_report(
    w: World,
    number: identity.JobId,
    trouble: Trouble | None,
    parts: ExplainExtensions,
    policy: RunPolicy | None = None,
) -> FailureView | None:
    """Return the verdict on a run by what its script or supervisor reported."""
    if trouble is None:
        return None
    job = w.slurm.jobs.get(number) if w.slurm is not None else None
    nodes = job.nodes if job is not None else ()
    return find_feature_failure_verdict(
        parts, FailureToExplain(w, number, trouble, nodes, policy=policy)
    )


def _make_blocked_gate_views(hold: GateBlocked, asks: Mapping[str, str]) -> tuple[GateView, ...]:
    return (GateView(hold.gate, asks.get(hold.gate, ""), "held", hold.why),)


def _describe_gate_block(hold: GateBlocked) -> str:
    if hold.gate == ENDED_GATE:
        return "(a job) was left to end at"
    hangs = hold.gate in (HANG_GATE, OTHERS_GATE)
    return "(a job) was found hanging at" if hangs else "is held back since"


def _explain_blocked_gate(
    w: World, rules: FaultRules, hold: GateBlocked, parts: ExplainExtensions
) -> ExplainView:
    judged = w.assessments.get(identity.NodeName(hold.target))
    return ExplainView(
        as_of=w.now,
        target=hold.target,
        kind="hold",
        headline=f"{hold.shown} {_describe_gate_block(hold)} {hold.at:%Y-%m-%d %H:%M:%S} UTC:"
        f" {hold.why}.",
        rule=make_fault_rule_view(rules, hold.rule, parts),
        evidence=list_finding_evidence(judged.findings) if judged else (),
        gates=list_gates_up_to_blocking_gate(hold, parts),
        next=describe_gate_block_release(hold),
        related=tuple(r.id for r in _list_target_recoveries(w, hold.target)),
        story=_format_supervisor_report_lines(
            _list_supervisor_reports_of_target(w, hold.target), hold.shown
        ),
        fault_at=min((f.first for f in judged.findings), default=None) if judged else None,
        trouble=make_job_failure_view(_find_failure_reported_by_run(w, hold)),
        failure=_judge_gate_blocked_run(w, hold, parts),
    )


def _judge_gate_blocked_run(
    w: World, hold: GateBlocked, parts: ExplainExtensions
) -> FailureView | None:
    """Return the verdict on the run whose restart is blocked; None where a node is held."""
    number = identity.JobId(parse_count(hold.target))
    if not number:
        return None
    job = w.slurm.jobs.get(number) if w.slurm is not None else None
    nodes = job.nodes if job is not None else ()
    asked = FailureToExplain(w, number, _find_failure_reported_by_run(w, hold), nodes, hold=hold)
    return find_feature_failure_verdict(parts, asked)


def _find_failure_reported_by_run(w: World, hold: GateBlocked) -> Trouble | None:
    """Return the failure that an untreated run's script or supervisor reported, if it did."""
    reports = _list_supervisor_reports_of_target(w, hold.target)
    reported = [each.report.trouble for each in reports if each.report.trouble is not None]
    if not reported or reported[-1].why not in hold.why:
        return None
    return reported[-1]


def _explain_node(
    w: World, rules: FaultRules, name: identity.NodeName, parts: ExplainExtensions
) -> ExplainView:
    """Return a node to which nothing is being done: say what is known, and why nothing is done."""
    judged = w.assessments.get(name)
    slurm = w.slurm.nodes.get(name) if w.slurm else None
    treated = _list_target_recoveries(w, name)
    facts = [f"{name} was {f'last treated by {treated[-1].id}' if treated else 'never treated'}"]
    if judged is None:
        facts.append("no agent has reported from it, so its health is unknown")
    else:
        facts.append(f"its health is {judged.condition}" + (f" ({judged.why})" * bool(judged.why)))
    if slurm is not None:
        flags = "".join(f"+{flag}" for flag in sorted(slurm.flags))
        facts.append(f"Slurm calls it {slurm.state}{flags}")
        mark = find_hma_reason_mark(slurm)
        if mark:
            facts.append(f"HyperPod's health agent marked it {mark}")
        elif row := find_drained_node_fault_row(slurm):
            facts.append(f"{row.by} closed it ({slurm.reason!r}): {row.meaning}")
        elif slurm.closed and reason.parse_recovery_id_from_reason(slurm.reason) is None:
            how = "drained it" if slurm.drained else "set it FAIL"
            facts.append(f"another user or tool {how} ({slurm.reason!r}): hpctl does not touch it")
        power = describe_node_power_saving(slurm)
        if power:
            facts.append(f"{power}, and hpctl leaves it alone until it is up")
    elif w.slurm is None:
        facts.append(f"Slurm cannot be read ({w.slurm_error})")
    facts += _list_node_action_block_reasons(w, name)
    job = _find_job_completing_on_node(w, name)
    if job:
        facts.append(_explain_completing_job(w, job.id))
    health = w.health.get(name)
    left_out = [f.detail for f in health.findings if is_skipped_checks_finding(f)] if health else []
    facts += [f"its agent leaves checks out: {detail}" for detail in left_out]
    fault = judged.fault if judged else None
    return ExplainView(
        as_of=w.now,
        target=name,
        kind="node",
        headline="; ".join(facts) + ".",
        rule=make_fault_rule_view(rules, fault.rule, parts) if fault else None,
        evidence=list_finding_evidence(health.findings) if health else (),
        next=AwaitedEvent(
            f"job {job.shown} to finish there"
            if job
            else _describe_untreated_node_outlook(judged, slurm)
        ),
        related=(*(r.id for r in treated), *_list_capacity_change_ids(w, name)),
    )


def _list_node_action_block_reasons(w: World, name: identity.NodeName) -> list[str]:
    """Return the pause and the maintenance reservation that keep hpctl from a node."""
    found = []
    slurm = w.slurm.nodes.get(name) if w.slurm else None
    partitions = slurm.partitions if slurm is not None else ()
    pause = find_active_pause_covering_targets(w.state.pauses, w.now, (name,), partitions)
    if pause is not None:
        found.append(f"{pause.text}, so hpctl does nothing to it (`{pause.lift_command}`)")
    held_by = w.maintenance.get(name)
    if held_by is not None:
        found.append(
            f"{describe_maintenance_reservation(held_by, w.now)}, so hpctl leaves it alone until"
            " then"
        )
    return found


def _describe_untreated_node_outlook(
    judged: assessment.NodeAssessment | None, slurm: slurm_facts.SlurmNode | None
) -> str:
    """Return whether it is over for a node that nothing is done to, and what a person must do."""
    waits = judged is not None and judged.until is not None
    advice = describe_action_for_drained_node(slurm) if slurm is not None else ""
    if advice and not waits:
        return f"a person: {advice}"
    if slurm is not None and slurm.closed and not waits:
        how = (
            "hpctl undrain"
            if reason.parse_recovery_id_from_reason(slurm.reason)
            else "scontrol update State=RESUME"
        )
        return f"a person: it is drained, and hpctl does not resume it automatically (`{how}`)"
    if slurm is not None and has_node_failed_to_resume(slurm):
        return "a person: find out why it did not boot, then `scontrol update` State=RESUME"
    if slurm is not None and describe_node_power_saving(slurm) and not waits:
        return "Slurm to start it for a job; you need do nothing"
    if judged is None:
        return "a person: install or start the agent there (`hpctl doctor`)"
    if judged.condition is assessment.NodeCondition.HEALTHY:
        return "nothing: nothing is wrong, and you need not do anything"
    if waits:
        return f"{judged.until:%H:%M:%S} UTC: what lasts until then is treated; you need do nothing"
    return "nothing of hpctl's: this is shown and not treated; look at it when you have time"


def list_finding_evidence(findings: Iterable[model.Finding]) -> tuple[EvidenceView, ...]:
    """Return what was seen of a node; checks that passed, or that its agent left out, are nothing
    seen."""
    seen = (f for f in findings if _should_show_finding(f) and not is_skipped_checks_finding(f))
    return tuple(build_view_from_source(EvidenceView, f, text=format_finding(f)) for f in seen)


def _should_show_finding(f: model.Finding) -> bool:
    unknown = f.verdict is model.DeviceVerdict.UNKNOWN and not f.check.startswith("agent.")
    return unknown or f.verdict in (
        model.DeviceVerdict.NOTE,
        model.DeviceVerdict.WARN,
        model.DeviceVerdict.FAIL,
    )


def is_skipped_checks_finding(f: model.Finding) -> bool:
    """Return whether a finding says that the agent leaves checks out to save resources."""
    return (f.check, f.code) == ("agent.checks", "shed")


_ORDERS: Final = {order.fault.rule: order.fault for order in ORDERS.values()}


def make_fault_rule_view(
    rules: FaultRules, rule: identity.RuleId, parts: ExplainExtensions = NO_PARTS
) -> RuleView | None:
    """Return a row of the catalogue as shown; None for a rule that no longer exists."""
    ordered = _ORDERS | {fault.rule: fault for fault in parts.orders}
    row = rules.classes.get(rule) or ordered.get(rule)
    if row is None:
        return None
    return build_view_from_source(RuleView, row, id=row.rule)


def _map_gate_names_to_questions(gates: Iterable[NamedGate]) -> dict[str, str]:
    """Return what each gate asks, by its name."""
    return {row.name: (row.gate.__doc__ or "").strip().splitlines()[0] for row in gates}


_ASKS_TO_OPEN: Final = _map_gate_names_to_questions(GATES)
_ASKS: Final = _ASKS_TO_OPEN | _map_gate_names_to_questions(REMEDY_GATES)


def list_gates_passed_by_recovery(passed: tuple[str, ...]) -> tuple[GateView, ...]:
    """Return the gates of a recovery that opened; `name (waived by X)` was not evaluated."""
    views = []
    for entry in passed:
        name, _, note = entry.partition(" (")
        result = "waived" if note else "passed"
        views.append(GateView(name, _ASKS.get(name, ""), result, note.rstrip(")")))
    return tuple(views)


def list_gates_up_to_blocking_gate(
    hold: GateBlocked, parts: ExplainExtensions = NO_PARTS
) -> tuple[GateView, ...]:
    """Return all gates in order, up to and after the one that holds."""
    of_run = hold.rule.startswith("run-")
    asks = _map_gate_names_to_questions(parts.run_gates) if of_run else _ASKS_TO_OPEN
    names = list(asks)
    if hold.gate not in names:
        return _make_blocked_gate_views(hold, _ASKS)
    at = names.index(hold.gate)
    before = tuple(GateView(name, asks[name], "passed", "") for name in names[:at])
    after = tuple(GateView(name, asks[name], "not_reached", "") for name in names[at + 1 :])
    return (*before, *_make_blocked_gate_views(hold, asks), *after)


def list_explainable_names(w: World) -> list[str]:
    """Return every name that can be explained, for the near miss."""
    jobs = [r.shown for r in w.state.jobs.values()]
    jobs += map(str, w.state.reports)
    ids = [*map(str, w.state.nodes), *map(str, w.state.jobs), *map(str, w.state.changes)]
    return sorted({*ids, *jobs, *w.state.holds, *map(str, list_known_nodes(w))})


def _list_capacity_changes_of_target(w: World, target: str) -> list[ClusterChange | NodeRecovery]:
    """Return the changes of a group, of a node, or for a recovery; oldest first."""
    found = [*list_capacity_changes(w.state), *list_maintenance_windows(w.state)]
    return [one for one in found if target in _list_capacity_change_targets(one)]


def _list_capacity_change_targets(change: ClusterChange | NodeRecovery) -> tuple[str | None, ...]:
    """Return the groups, nodes and recoveries that a change of capacity is about."""
    if isinstance(change, NodeRecovery):
        return change.group, change.node
    about = change.opened
    return (about.group, about.node, about.cause, *about.nodes)


def _explain_capacity_change_of_target(w: World, target: str) -> ExplainView | None:
    """Return the story of the change of this id, or of a group's last one; None where there is
    none."""
    change: ClusterChange | NodeRecovery | None = w.state.changes.get(identity.RecoveryId(target))
    if change is None:
        own = [
            c
            for c in _list_capacity_changes_of_target(w, target)
            if target == _list_capacity_change_targets(c)[0]
        ]
        if not own:
            return None
        change = ([c for c in own if not c.ended] or own)[-1]
    return _explain_capacity_change(w, change)


def _explain_capacity_change(w: World, change: ClusterChange | NodeRecovery) -> ExplainView:
    group, node = _list_capacity_change_targets(change)[:2]
    cause = None if isinstance(change, NodeRecovery) else change.opened.cause
    others = [
        c.id for c in _list_capacity_changes_of_target(w, node or group or "") if c.id != change.id
    ]
    return ExplainView(
        as_of=w.now,
        target=change.id,
        kind="change",
        headline=format_recovery_or_change_headline(change),
        story=build_recovery_timeline(change, w.state),
        next=find_next_awaited_event(change, w.policy),
        related=(*((cause,) if cause else ()), *others[-5:]),
    )


def make_job_explain_view(
    w: World,
    policies: Mapping[identity.JobId, RunPolicy],
    target: str,
    parts: ExplainExtensions = NO_PARTS,
    order: PreemptionOrder = NO_ORDER,
) -> ExplainView | None:
    """Return what is known of a job that Slurm knows; None for any other target."""
    named = find_jobs_by_id(w, target)
    job = w.slurm.jobs.get(named[0]) if w.slurm is not None and named else None
    if job is None:
        return None
    registered = parse_registration_comment(job.comment)
    facts = [f"Job {format_job_id_for_user(job, target)} ({job.name}, {job.user}) is {job.state}"]
    facts.append(_explain_completing_job(w, job.id))
    notes = [rec for rec in w.state.jobs.values() if rec.key == job.id and rec.note]
    lost = find_job_preemption(w, target, order)
    if lost:
        facts.append(f"it was {describe_preemption(lost)}")
    elif (
        notes and is_job_possibly_preempted(job) and notes[-1].attempt.restarts >= job.restarts - 1
    ):
        facts.append(notes[-1].why)
    suspender = (
        find_suspending_job(job, w.slurm.jobs.values(), order) if w.slurm is not None else None
    )
    if suspender is not None:
        facts.append(
            f"it is preempted by {format_preemptor(suspender)} and continues once that ends"
        )
    reported = next(
        (
            e.report
            for e in reversed(_list_supervisor_reports_of_target(w, str(job.id)))
            if e.report.trouble
        ),
        None,
    )
    this_run = reported is not None and reported.restarts == job.restarts
    trouble = reported.trouble if reported is not None and this_run else None
    asked = JobToExplain(
        w, job, registered or JobRegistration(), policies.get(job.id, RunPolicy()), parts.look
    )
    if job.state in slurm_facts.ENDED:
        facts += [trouble.why] if trouble is not None else []
        facts += [describe(asked) for describe in parts.on_ends] if registered else []
        text = "nothing: it has ended, and hpctl does not start it again"
        if trouble is not None and trouble.kind in POISONS and registered and registered.ckpt:
            text += f"; `{make_job_resume_command(job.shown)}` resumes from an earlier checkpoint"
        then = AwaitedEvent(text)
    elif not job.recoverable:
        facts.append(_explain_unregistered_job(job))
        then = AwaitedEvent(
            f"nothing of hpctl's. {format_sentence_with_reason(job.unrecoverable_advice)}"
        )
    elif registered is None:
        facts.append(_explain_unregistered_job(job))
        then = AwaitedEvent("nothing of you; to have it treated too, submit it with `hpctl sbatch`")
    else:
        facts += [
            _explain_registered_job(registered),
            *(describe(asked) for describe in parts.on_jobs),
        ]
        facts.append(
            _find_last_run_report_note(
                _list_supervisor_reports_of_target(w, str(job.id)), job.restarts
            )
        )
        facts += [f"one thing is wrong: {registered.flaw}"] if registered.flaw else []
        crash = [f"Were a rank to crash now: {describe(asked)}" for describe in parts.on_crashes]
        then = AwaitedEvent(". ".join(["nothing of you", *crash]))
    held = _explain_slurm_job_hold(job)
    if held:
        facts.append(held)
        then = AwaitedEvent(describe_release_command(job))
    report_lines = _format_supervisor_report_lines(
        _list_supervisor_reports_of_target(w, str(job.id)), job.shown
    )
    noted = chain.from_iterable(build_recovery_timeline(rec, w.state) for rec in notes)
    view = ExplainView(
        as_of=w.now,
        target=target,
        kind="job",
        headline="; ".join(filter(None, facts)) + ".",
        story=tuple(sorted((*report_lines, *noted), key=lambda line: line.at)),
        next=then,
        trouble=make_job_failure_view(trouble),
        failure=_judge_run_by_supervisor_report(w, job.id, trouble, parts, asked.policy),
    )
    return _add_job_standstill_details(w, view, job.id)


def _explain_slurm_job_hold(job: slurm_facts.SlurmJob) -> str:
    """Say why Slurm holds a job; "" where it does not."""
    if job.is_held_after_requeue:
        code = f" with exit code {job.exit_code}" if job.exit_code else ""
        return (
            f"Slurm holds it since its last run ended{code}: as it does with a job of"
            " --requeue=expedite whose program fails, with an exit code of RequeueExitHold, and by"
            " `scontrol requeuehold`; hpctl starts no held job"
        )
    if job.is_held_as_unable_to_start:
        return (
            f"Slurm holds it (Reason {job.reason}, priority 0) because it could not start it as it"
            " is: too few nodes fit it, or the allocation failed, as slurmctld's log says; free"
            " nodes do not start it"
        )
    return ""


def _explain_unregistered_job(job: slurm_facts.SlurmJob) -> str:
    if not job.recoverable:
        why = job.unrecoverable_reason
        return f"it is not protected: Slurm cannot start it again ({why})"
    return (
        "it is protected from faults of its nodes alone: hpctl requeues it away from them; it did"
        " not register, so its own crashes and hangs are its owner's"
    )


def _explain_registered_job(registered: JobRegistration) -> str:
    how = ["requeued away from faulty nodes", "restarted by its policy when it crashes"]
    if registered.supervised:
        how.append("restarted inside its allocation by its own supervisor")
    if registered.spares:
        how.append(f"{registered.spares} spare node(s)")
    return f"it is protected: {', '.join(how)}"
