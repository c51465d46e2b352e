"""Which jobs a node under treatment has hit, which runs have failed for another reason, and what
their policy answers: the daemon's half.

A node's fault comes first. Of the other runs only jobs that registered with hpctl
(`vocabulary.registration`) are looked at, and those whose node booted under them. Level-triggered
like all planning: a run that wants something is seen wanting it in every cycle until its attempt
has been treated. Between a run that went wrong and its recovery are RUN_GATES, as `gates.GATES` are
before a node's; the last one combines all the others, as there.

| what is seen | the trouble |
|---|---|
| its supervisor wishes a requeue or a hold | the one that it reported |
| FAILED, OUT_OF_MEMORY, NODE_FAIL, BOOT_FAIL | its script's, else by state and exit code |
| TIMEOUT, with a checkpoint directory | TIME_LIMIT |
| RUNNING without the node of its batch script (25.11, --no-kill) | NODE |
| back in the queue, waiting out Slurm's begin delay | the reported one, or KILLED, or NODE |
| RUNNING without `hpctl run`, and without progress (`jobs.hangs`) | HANG, answered by `hangs` |
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.journal.events import GateBlocked, JobRecoveryOpened
from hpctl.engine.journal.state import EngineState
from hpctl.engine.view import PlanningView
from hpctl.jobs.decide import PastJobFailure, RestartResources, decide_job_failure_action
from hpctl.jobs.exclusions import can_job_start_without_nodes, list_nodes_usable_by_job
from hpctl.jobs.maintenance_hits import MAINTENANCE_SIGNATURE, find_run_failed_during_maintenance
from hpctl.jobs.restart import choose_restart_method
from hpctl.jobs.run_cases import (
    BOOTED_SIGNATURE,
    NODE_KINDS,
    FailedJobRun,
    find_failed_job_run,
    find_failure_treated_by_recovery,
    find_job_recovery_action,
)
from hpctl.jobs.run_failure import add_node_findings_to_failure, remove_findings_from_kill_failure
from hpctl.jobs.run_gates import RUN_GATES, FailedRunDecision
from hpctl.jobs.verdict import build_run_failure_verdict
from hpctl.toolkit.bounds import add_seconds_within_bounds, parse_count
from hpctl.vocabulary.failure import FailureVerdict
from hpctl.vocabulary.hang import ENDED_GATE, HANG_GATE, OTHERS_GATE, JobHang
from hpctl.vocabulary.identity import JobId, NodeName, RecoveryId, RuleId
from hpctl.vocabulary.isolation import ItemProcessingFailure, process_items_capturing_failures
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoveryPhase, RequestedAction
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import make_recovery_id
from hpctl.vocabulary.registration import (
    EffectiveJobPolicy,
    JobRegistration,
    parse_registration_comment,
)
from hpctl.vocabulary.run_policy import STOPS, RunAction, RunActionDecision, RunPolicy
from hpctl.vocabulary.slurm_facts import ENDED_BADLY, SlurmJob
from hpctl.vocabulary.trouble import Trouble, TroubleKind

_OF_NODES: Final = (BOOTED_SIGNATURE, MAINTENANCE_SIGNATURE)
"""What is treated of jobs that did not register, too."""


def list_past_job_failures(
    state: EngineState, job: JobId, *, before: datetime | None = None, now: Trouble | None = None
) -> tuple[PastJobFailure, ...]:
    """Return the troubles of a job that were treated, oldest first; of the reported ones, those
    before `before`. A wish counts once, as the recovery that granted it, and what was reported
    twice, because the answer was lost, counts once. `now`: the trouble that is decided on, which is
    not past."""
    recoveries = [
        r
        for r in state.jobs.values()
        if r.attempt.job == job
        and not r.has_ended_without_stopping_run
        and r.phase is not JobRecoveryPhase.CANCELLED
    ]
    counted = {_remove_failure_details_added_by_daemon(r.trouble) for r in recoveries} | {
        _remove_failure_details_added_by_daemon(now)
    }
    runs = {r.attempt.restarts for r in recoveries}
    found = [
        PastJobFailure(find_failure_treated_by_recovery(r), find_job_recovery_action(r))
        for r in recoveries
    ]
    for event in state.reports.get(job, ()):
        trouble = event.report.trouble
        if event.report.is_cause_only_report and event.report.restarts in runs:
            continue  # the recovery of that run has it, or knows better
        known = _remove_failure_details_added_by_daemon(trouble)
        if trouble is None or known in counted or (before is not None and event.at >= before):
            continue
        counted.add(known)
        found.append(PastJobFailure(trouble, event.report.action))
    return tuple(sorted(found, key=lambda p: p.trouble.at))


def _remove_failure_details_added_by_daemon(trouble: Trouble | None) -> Trouble | None:
    """Return a trouble without what the daemon adds to one that was reported: the progress, and
    what the findings of its node show of a kill."""
    return (
        None
        if trouble is None
        else replace(remove_findings_from_kill_failure(trouble), progress=None)
    )


def plan_failed_run_recoveries(
    view: PlanningView, policy: RecoveryPolicy, taken: Collection[JobId], now: datetime
) -> tuple[list[JobRecoveryOpened | GateBlocked], list[ItemProcessingFailure]]:
    """Return what becomes of every run that went wrong. `taken`: jobs that a node's fault
    explains."""

    def decide_job_recovery(job: SlurmJob) -> JobRecoveryOpened | GateBlocked | None:
        if job.id in taken or job.id in view.state.open_jobs or view.is_quarantined(job.id):
            return None
        registered = parse_registration_comment(job.comment)
        case = find_run_failed_during_maintenance(job, view, policy) or find_failed_job_run(
            job, view, now
        )
        hang = view.hangs.get(job.id)
        if case is None and hang is not None:
            return _decide_hung_job_recovery(job, hang, view, policy, now)
        if case is None or _is_job_attempt_already_handled(case, view):
            return None
        if registered is None and (case.reported or case.trouble.signature not in _OF_NODES):
            return None
        trouble = add_node_findings_to_failure(case.trouble, job.nodes, view.health, job.id)
        case = replace(case, trouble=trouble)
        return _decide_failed_run_recovery(
            _make_failed_run(job, registered, case, view), view, policy, now
        )

    found, flaws = process_items_capturing_failures(
        "plan", view.scheduler.jobs.values(), lambda job: job.id, decide_job_recovery
    )
    return sorted(
        (one for one in found if one is not None), key=get_job_of_recovery_decision
    ), flaws


def get_job_of_recovery_decision(decision: JobRecoveryOpened | GateBlocked) -> JobId:
    """Return the job that a decision about a run is about."""
    if isinstance(decision, GateBlocked):
        return JobId(parse_count(decision.target))
    return decision.attempt.job


def _is_job_attempt_already_handled(case: FailedJobRun, view: PlanningView) -> bool:
    """Return whether this attempt, or a later one of the same submission, was treated before.

    Slurm sets a new submit time at a requeue, so the restart count tells them apart; ids are
    reused, but not within a day of when the former job was last treated. How long ago that was
    submitted says nothing: it may have run for weeks. One trouble is one case, however late the
    submit time was set: a node may have kept the requeued job COMPLETING for days.
    """
    attempt = case.attempt
    reused_before = add_seconds_within_bounds(attempt.submit, -86400)
    for rec in view.state.jobs.values():
        if rec.attempt.job != attempt.job or rec.attempt.restarts < attempt.restarts:
            continue
        if rec.since <= reused_before and rec.trouble != case.trouble:
            continue
        if not rec.has_ended_without_stopping_run and not _is_recovery_canceled_at_time_limit(
            rec, case
        ):
            return True
    return False


def _is_recovery_canceled_at_time_limit(rec: JobRecovery, case: FailedJobRun) -> bool:
    """Return whether a recovery was canceled because the run reached its time limit meanwhile."""
    at_limit = (
        case.trouble.kind is TroubleKind.TIME_LIMIT and rec.phase is JobRecoveryPhase.CANCELLED
    )
    return at_limit and (rec.trouble is None or rec.trouble.kind is not TroubleKind.TIME_LIMIT)


class _JobWithFailedRun(Struct, frozen=True):
    """A job whose run went wrong, and how. `notes`: what of its registration is not used."""

    job: SlurmJob
    case: FailedJobRun
    notes: str = ""


def _make_failed_run(
    job: SlurmJob, registered: JobRegistration | None, case: FailedJobRun, view: PlanningView
) -> _JobWithFailedRun:
    flaw = registered.flaw if registered is not None else ""
    note = view.ruled.get(job.id, EffectiveJobPolicy()).note
    return _JobWithFailedRun(job, case, "; ".join(filter(None, (flaw, note))))


def _decide_failed_run_recovery(
    run: _JobWithFailedRun, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> JobRecoveryOpened | GateBlocked:
    job, case, notes = run.job, run.case, run.notes
    ruled = view.ruled.get(job.id, EffectiveJobPolicy())
    rule = RuleId(f"run-{case.trouble.kind}")

    def make_gate_blocked(gate: str, why: str) -> GateBlocked:
        said = f"{why} ({notes})" if notes else why
        return GateBlocked(now, str(job.id), gate, said, rule, known_as=job.shown)

    code = case.trouble.exit_code
    if code is not None and code in {*ruled.policy.final_exit_codes, *policy.job.final_exit_codes}:
        return make_gate_blocked("asked_not_to", f"exit code {code}: it asked not to be run again")
    if not job.recoverable:
        cannot = f"Slurm cannot start it again ({job.unrecoverable_reason})"
        reason = f"{case.trouble.why}; {cannot}; {job.unrecoverable_advice}"
        return make_gate_blocked("not_recoverable", reason)
    answer = _delay_restart_until_fault_report(
        _choose_job_failure_action(job, case, ruled.policy, view, now), case, policy, now
    )
    if answer.action is RunAction.END and job.state in ENDED_BADLY:
        cause = _make_stopped_run_verdict(run, answer, ruled.policy, view, now).text
        said = f"it is not restarted and stays {job.state}: {answer.why} ({cause})"
        return make_gate_blocked(ENDED_GATE, said)
    if answer.action not in (RunAction.REQUEUE, *STOPS):
        return make_gate_blocked("run_policy", f"{case.trouble.why}: {answer.why or answer.action}")
    for gate in RUN_GATES:
        why = gate.gate(FailedRunDecision(job, answer), view, policy, now)
        if why is not None:
            return make_gate_blocked(gate.name, why)
    cause = ""
    if answer.action is RunAction.HOLD:
        cause = _make_stopped_run_verdict(run, answer, ruled.policy, view, now).text
    return _open_job_recovery(run, answer, view, now, cause)


def _make_stopped_run_verdict(
    run: _JobWithFailedRun,
    answer: RunActionDecision,
    policy: RunPolicy,
    view: PlanningView,
    now: datetime,
) -> FailureVerdict:
    """Return the verdict on a run that is not started again, for its owner."""
    job, trouble = run.job, run.case.trouble
    past = list_past_job_failures(view.state, job.id, now=trouble)
    nodes = {name: view.assessments[name] for name in job.nodes if name in view.assessments}
    before = [one for one in past if one.trouble.at < trouble.at]
    return build_run_failure_verdict(trouble, before, nodes, policy, now, answer.action)


def _open_job_recovery(
    run: _JobWithFailedRun,
    answer: RunActionDecision,
    view: PlanningView,
    now: datetime,
    verdict: str = "",
) -> JobRecoveryOpened:
    job, case, notes = run.job, run.case, run.notes
    # The policy's answer says what went wrong as well; a supervisor's own may not.
    reasons = (case.trouble.why, answer.why)
    why = answer.why if reasons[0] in reasons[1] else "; ".join(text for text in reasons if text)
    return JobRecoveryOpened(
        at=now,
        recovery=make_recovery_id(
            "j", job.id, case.attempt, "run", len(view.state.jobs), known=view.state
        ),
        attempt=case.attempt,
        cause=RecoveryId(""),
        bad_nodes=(),
        why=f"{why} ({notes})" if notes else why,
        name=job.name,
        user=job.user,
        partition=job.partition,
        over_budget=_format_comment_for_job_owner(job, answer, verdict)
        if answer.action is RunAction.HOLD
        else "",
        trouble=case.trouble,
        action=answer.action,
        exclude=_limit_node_exclusions(job, answer.exclude, view),
        start_at=add_seconds_within_bounds(now, answer.after_s) if answer.after_s > 0 else None,
        ran_on=job.nodes,
        nodes=len(job.nodes),
        known_as=job.shown,
    )


def _delay_restart_until_fault_report(
    answer: RunActionDecision, case: FailedJobRun, policy: RecoveryPolicy, now: datetime
) -> RunActionDecision:
    """Delay the restart so that a faulty node is not met again before its fault could be
    reported."""
    of_program = case.trouble.kind not in (*NODE_KINDS, TroubleKind.TIME_LIMIT)
    if case.reported is not None or case.queued or not of_program:
        return answer
    settle = (add_seconds_within_bounds(case.trouble.at, policy.job.settle_s) - now).total_seconds()
    return replace(answer, after_s=max(answer.after_s, settle))


HUNG: Final = RuleId("run-hang")


def is_run_known_to_hang(job: SlurmJob, state: EngineState) -> bool:
    """Return whether this run hung when a daemon last looked: it is treated for that, or held."""
    rec, held = state.get_open_job_recovery(job.id), state.holds.get(str(job.id))
    if rec is not None and rec.hang and rec.attempt == job.attempt:
        return True
    return held is not None and held.rule == HUNG and job.start is not None and job.start < held.at


def _decide_hung_job_recovery(
    job: SlurmJob, hang: JobHang, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> JobRecoveryOpened | GateBlocked | None:
    """Decide on a run that makes no progress: by one recovery at a time, then by what `hangs` says
    of its partition."""

    def make_hung_job_hold(gate: str, why: str) -> GateBlocked:
        said = f"it hangs: {hang.why}; {why}"
        return GateBlocked(now, str(job.id), gate, said, HUNG, known_as=job.shown)

    registered, hangs = parse_registration_comment(job.comment), policy.hangs
    way = choose_restart_method(registered or JobRegistration())
    own = "its own supervisor (hpctl run)" if way.has_supervisor else ""
    other = own or hang.other
    if other:
        return make_hung_job_hold(OTHERS_GATE, f"left to {other}")
    action = hangs.partitions.get(job.partition, hangs.action)
    mine = [
        r
        for r in view.state.jobs.values()
        if r.attempt == job.attempt and _has_executed_hang_action(r)
    ]
    if action == "notify" or mine:
        did = f"`hangs: {mine[-1].hang}` was tried ({mine[-1].id})" if mine else "`hangs: notify`"
        return make_hung_job_hold(HANG_GATE, f"{did}: it is left as it is")
    trouble = Trouble(TroubleKind.HANG, hang.since, hang.why, "makes no progress", node=hang.node)
    case = FailedJobRun(job.attempt, trouble)
    if action == "requeue":
        decided = _decide_failed_run_recovery(
            _make_failed_run(job, registered, case, view), view, policy, now
        )
        if isinstance(decided, GateBlocked):
            return decided
        # A run that makes no progress does not end without help.
        return replace(decided, hang="cancel" if decided.action is RunAction.END else action)
    answer = RunActionDecision(RunAction.NOTIFY, f"`hangs: {action}`: {hang.why}")
    for gate in RUN_GATES:
        why = gate.gate(FailedRunDecision(job, answer), view, policy, now)
        if why:
            return make_hung_job_hold(gate.name, why)
    return replace(_open_job_recovery(_JobWithFailedRun(job, case), answer, view, now), hang=action)


def _has_executed_hang_action(rec: JobRecovery) -> bool:
    """Return whether it did what `hangs` says: one that was called off did nothing, but a dump ends
    so."""
    return bool(rec.hang) and (
        not rec.has_ended_without_stopping_run or (rec.hang == "dump" and bool(rec.steps))
    )


def _format_comment_for_job_owner(job: SlurmJob, answer: RunActionDecision, verdict: str) -> str:
    """Return what the owner of a held job reads in its Comment (`squeue -o %k`)."""
    said = "; ".join(filter(None, (answer.why.removeprefix("hpctl: "), verdict)))
    return f"hpctl: {said}; held for you to look (scontrol release {job.shown} lets it go on)"


def _choose_job_failure_action(
    job: SlurmJob, case: FailedJobRun, policy: RunPolicy, view: PlanningView, now: datetime
) -> RunActionDecision:
    """Return the supervisor's own answer, less the time that has passed; else the policy's.

    The budgets hold for both: a supervisor has forgotten what came before its own start.
    """
    past = list_past_job_failures(
        view.state, job.id, before=case.reported.at if case.reported else None, now=case.trouble
    )
    if case.reported is not None and case.reported.report.action is RunAction.END:
        return RunActionDecision(
            RunAction.END, case.reported.report.why or "its supervisor gave it up"
        )
    answer = decide_job_failure_action(
        policy, past, case.trouble, _find_requeue_resources(job, past, view), now
    )
    if case.queued and case.reported is None and case.trouble.kind in NODE_KINDS:
        answer = replace(answer, after_s=0.0)
    if case.reported is None or answer.action in STOPS:
        return answer
    report = case.reported.report
    if report.wish is RequestedAction.HOLD or report.action is RunAction.HOLD:
        return RunActionDecision(RunAction.HOLD, report.why or "its supervisor asked for a hold")
    left = (add_seconds_within_bounds(case.reported.at, report.after_s) - now).total_seconds()
    why = report.why or "its supervisor asked for a requeue"
    return RunActionDecision(RunAction.REQUEUE, why, max(left, 0.0), report.exclude)


def _find_requeue_resources(
    job: SlurmJob, past: Sequence[PastJobFailure], view: PlanningView
) -> RestartResources:
    """Return what a requeue could get. A node that was lost, or treated, and serves again has
    healed."""
    usable = list_nodes_usable_by_job(job, view)
    healed: set[NodeName] = set()
    for trouble in (one.trouble for one in past):
        node = trouble.node
        if node is None or node not in usable:
            continue
        if trouble.kind in NODE_KINDS or _has_node_returned_to_service_since(
            node, trouble.at, view
        ):
            healed.add(node)
    wanted = max(len(job.nodes), job.wants)
    return RestartResources(wanted=wanted, pool=len(usable), healed=tuple(sorted(healed)))


def _has_node_returned_to_service_since(
    node: NodeName, since: datetime, view: PlanningView
) -> bool:
    rid = view.state.last_of_node.get(node)
    return rid is not None and view.state.nodes[rid].ended and view.state.nodes[rid].opened > since


def _limit_node_exclusions(
    job: SlurmJob, exclude: Sequence[NodeName], view: PlanningView
) -> tuple[NodeName, ...]:
    """Return the nodes to leave; none where the job could not start then.

    A job that never starts is worse off than one that meets a doubtful node again. One that is DOWN
    now is left as well: 22.05 does not end the batch script of a --no-kill job on the host that it
    lost, and a job that comes back there is a duplicate, which drains the node.
    """
    least = max(len(job.nodes), job.wants)
    return tuple(sorted(exclude)) if can_job_start_without_nodes(job, exclude, least, view) else ()
