"""Which jobs a node under treatment has hit, which runs have gone wrong by themselves, and what
their policy answers: the daemon's half.

A node's fault comes first. Of the other runs only jobs that registered with hpctl
(`run_policy.registration`) are looked at, and those whose node booted under them. Level-triggered
like all planning: a run that wants something is seen wanting it in every cycle until its attempt
has been treated. Between a run that went wrong and its recovery stand RUN_GATES, as `gates.GATES`
stand before a node's; the last speaks for all the others, as there.

| what is seen | the trouble |
|---|---|
| its supervisor wishes a requeue or a hold | the one that it told |
| FAILED, OUT_OF_MEMORY, NODE_FAIL, BOOT_FAIL | read from state and exit code |
| RUNNING without the node of its batch script (25.11, --no-kill) | NODE |
| back in the queue, waiting out Slurm's begin delay | the one told, or KILLED, or NODE |
| RUNNING, wrapped by nobody, and standing still (`core.hangs`) | HANG, answered by `hangs` |
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hpctl.core.acceptance import is_test
from hpctl.core.bounds import later, natural
from hpctl.core.hangs import Hang
from hpctl.core.job_recovery import JobPhase, JobRecovery, Wish
from hpctl.core.journal import HoldNoted, JobRecoveryOpened, JobReported, State
from hpctl.core.model import (
    ENDED_BADLY,
    Attempt,
    JobId,
    NodeName,
    RecoveryId,
    RuleId,
    SlurmJob,
    SlurmNode,
    Urgency,
)
from hpctl.core.node_recovery import NodePhase, NodeRecovery, goes_anyway
from hpctl.core.policy import Mode, Policy
from hpctl.core.recovery import recovery_id
from hpctl.core.run_policy import (
    Action,
    Means,
    Past,
    Registration,
    Ruled,
    RunDecision,
    RunPolicy,
    decide,
    registration,
)
from hpctl.core.trouble import UNSTARTED, Kind, Trouble, unstarted
from hpctl.core.view import View, fresh, headless, last_report, urgent
from hpctl.core.walls import Flaw, each, walled


def history(
    state: State, job: JobId, *, before: datetime | None = None, now: Trouble | None = None
) -> tuple[Past, ...]:
    """The troubles of a job that were treated, oldest first; of those told, the ones before
    `before`. A wish counts once, as the recovery that granted it, and what was told twice, because
    the answer was lost, counts once. `now`: the trouble that is decided on, which is not past."""
    recoveries = [
        r
        for r in state.jobs.values()
        if r.attempt.job == job and not r.let_run and r.phase is not JobPhase.CANCELLED
    ]
    counted = {r.trouble for r in recoveries if r.trouble is not None} | {now}
    found = [Past(_trouble(r), _action(r)) for r in recoveries]
    for event in state.reports.get(job, ()):
        trouble = event.report.trouble
        if trouble is None or trouble in counted or (before is not None and event.at >= before):
            continue
        counted.add(trouble)
        found.append(Past(trouble, event.report.action))
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


_DELAY_REASONS: Final = ("BeginTime", "None", "", "NonZeroExitCode")
_BOOTED: Final = "node booted"
_BOOTS_S, _REGISTERS_S = 900.0, 120.0
"""A boot, and a slurmd's start, are at most so long before the requeue that they cause."""
_NODES: Final = (Kind.NODE, Kind.PREEMPTED)
_FROM_OUTSIDE: Final = frozenset({1, 2, 3, 9, 15})
"""HUP, INT, QUIT, KILL, TERM: a shell ends with 128 more where its last program was so ended. Of
the others (SEGV, ABRT) a program dies by its own fault."""


class _Case(Struct, frozen=True):
    """A run that went wrong: which one, how, and what its supervisor has answered, if it has."""

    attempt: Attempt
    trouble: Trouble
    reported: JobReported | None = None
    queued: bool = False
    """It is back in the queue already: it starts by itself, and it is asked only when."""


def run_decisions(
    view: View, policy: Policy, taken: Collection[JobId], now: datetime
) -> tuple[list[JobRecoveryOpened | HoldNoted], list[Flaw]]:
    """What becomes of every run that went wrong. `taken`: jobs that a node's fault explains."""

    def one(job: SlurmJob) -> JobRecoveryOpened | HoldNoted | None:
        if job.id in taken or job.id in view.state.open_jobs or view.aside(job.id):
            return None
        registered = registration(job.comment)
        case = _case(job, view, now)
        hang = view.hangs.get(job.id)
        if case is None and hang is not None:
            return _hung(job, hang, view, policy, now)
        if case is None or _treated(case, view):
            return None
        if registered is None and (case.reported or case.trouble.signature != _BOOTED):
            return None
        return _decision(job, registered or Registration(), case, view, policy, now)

    found, flaws = each("plan", view.scheduler.jobs.values(), lambda job: job.id, one)
    return sorted((one for one in found if one is not None), key=job_of), flaws


def job_of(decision: JobRecoveryOpened | HoldNoted) -> JobId:
    """The job that a decision about a run is about."""
    if isinstance(decision, HoldNoted):
        return JobId(natural(decision.target))
    return decision.attempt.job


def _treated(case: _Case, view: View) -> bool:
    """Whether this attempt, or a later one of the same submission, was treated before.

    Slurm sets the submit time anew at a requeue, so the restart count tells them apart; ids come
    round again, but not within a day of when the former job was last looked after. How long ago
    that was submitted says nothing: it may have run for weeks. One trouble is one case, however
    late the submit time was set: a node may have kept the requeued job COMPLETING for days.
    """
    attempt = case.attempt
    return any(
        r.attempt.job == attempt.job
        and r.attempt.restarts >= attempt.restarts
        and (r.since > later(attempt.submit, -86400) or r.trouble == case.trouble)
        and not r.let_run
        for r in view.state.jobs.values()
    )


# --- what went wrong ------------------------------------------------------------------------------


def _case(job: SlurmJob, view: View, now: datetime) -> _Case | None:
    wish = _wish(job, view)
    if job.state == "PENDING":
        return _requeued(job, view, now)
    if job.running or job.state in ENDED_BADLY:
        if wish is not None:
            return _Case(job.attempt, _reported_trouble(wish), wish)
        if job.state in ENDED_BADLY:
            return _Case(job.attempt, _ended_badly(job, view, now))
        if headless(job, view):
            why = f"the node of its batch script, {job.batch_host}, is lost"
            trouble = Trouble(Kind.NODE, now, why, "batch host lost", node=job.batch_host)
            return _Case(job.attempt, trouble)
    return None


def _wish(job: SlurmJob, view: View) -> JobReported | None:
    """The newest word of this run, where it is a wish: a later word takes an older wish back."""
    event = last_report(job.id, job.restarts, view)
    return event if event is not None and event.report.wish is not Wish.NONE else None


def _reported_trouble(event: JobReported) -> Trouble:
    """What it told of; a wish without a trouble is planned, as growing back is."""
    report = event.report
    why = report.why or "its supervisor gives its nodes back"
    return report.trouble or Trouble(Kind.PREEMPTED, event.at, why, progress=report.progress)


def _requeued(job: SlurmJob, view: View, now: datetime) -> _Case | None:
    """A job that somebody else put back in the queue, and that sits out Slurm's begin delay."""
    delayed = job.eligible is not None and now < job.eligible and not put_off(job)
    if job.restarts == 0 or job.completing or not delayed or job.reason not in _DELAY_REASONS:
        return None
    attempt = Attempt(job.id, job.submit, job.restarts - 1)
    event = last_report(job.id, attempt.restarts, view)
    if event is not None and event.report.action in (Action.REQUEUE, Action.HOLD):
        return _Case(attempt, _reported_trouble(event), event, queued=True)
    lost = [n for n in job.nodes if (node := view.scheduler.nodes.get(n)) and node.down]
    booted = [n for n in job.nodes if _booted_under(job, view.scheduler.nodes.get(n))]
    if lost:
        why = f"Slurm took it off {','.join(sorted(lost))}, which is DOWN"
        trouble = Trouble(Kind.NODE, now, why, "node down", node=min(lost))
    elif booted:
        why = f"Slurm took it off {','.join(sorted(booted))}, which had booted"
        trouble = Trouble(Kind.NODE, now, why, _BOOTED, node=min(booted))
    else:
        why = "somebody put it back in the queue, and told nothing"
        trouble = Trouble(Kind.KILLED, now, why, "requeued")
    return _Case(attempt, replace(trouble, progress=_progress(job, view)), queued=True)


def _booted_under(job: SlurmJob, node: SlurmNode | None) -> bool:
    """Whether a node came back without the job before slurmctld had called it DOWN: the slurmd
    registers after a boot, and slurmctld requeues at once what it no longer runs.

    The requeue sets the submit time anew.
    """
    if node is None or node.boot_time is None or node.slurmd_start is None:
        return False
    since, till = later(job.submit, -_REGISTERS_S), later(job.submit, 1)
    booted = later(job.submit, -_BOOTS_S) < node.boot_time <= till
    return booted and since < node.slurmd_start <= till


def _ended_badly(job: SlurmJob, view: View, now: datetime) -> Trouble:
    """What Slurm's state and exit code say of a run that ended."""
    policy = view.ruled.get(job.id, Ruled()).policy
    code, _, number = job.exit_code.partition(":")
    signalled = natural(number)
    exit_code = 128 + signalled if signalled else natural(code) if code.isdigit() else None
    node: NodeName | None = None
    progress = _progress(job, view)
    if job.state == "OUT_OF_MEMORY":
        kind, why = Kind.HOST_MEMORY, "Slurm killed it for its memory"
    elif job.state in ("NODE_FAIL", "BOOT_FAIL"):
        kind, why = Kind.NODE, f"Slurm ended it as {job.state}"
    elif job.reason == "JobLaunchFailure" or _batch_host_lost(job, view, exit_code):
        kind, why = Kind.NODE, f"the node of its batch script, {job.batch_host}, was lost"
        node = job.batch_host
    elif exit_code in policy.corruption_exit_codes:
        kind, why = Kind.CORRUPTION, f"exit code {exit_code} is evidence of silent corruption"
    elif signalled:
        kind, why = Kind.KILLED, f"its script was ended by signal {signalled}"
    elif exit_code is not None and exit_code - 128 in _FROM_OUTSIDE:
        why = f"its script ended with exit code {exit_code}: signal {exit_code - 128} from outside"
        kind = Kind.KILLED
    elif exit_code is not None and exit_code in UNSTARTED:
        # bash's own word, too, for the last command of a script that is there.
        again = job.restarts > 0 or progress is not None
        kind, why = unstarted(f"{UNSTARTED[exit_code]} (exit code {exit_code})", again)
    else:
        kind, why = Kind.CRASH, f"its script ended with exit code {exit_code}"
    return Trouble(
        kind,
        job.end or now,
        why,
        signature=f"{job.state} {job.exit_code}".strip(),
        node=node,
        exit_code=exit_code,
        progress=progress,
    )


def _batch_host_lost(job: SlurmJob, view: View, exit_code: int | None) -> bool:
    """Whether the node of the batch script is DOWN, or was about to be.

    Nodes and jobs are read side by side: a script that was killed on a closed node may be seen
    before the DOWN that killed it.
    """
    host = view.scheduler.nodes.get(job.batch_host) if job.batch_host else None
    killed = exit_code is not None and exit_code - 128 in _FROM_OUTSIDE
    return host is not None and (host.down or (host.closed and killed))


def _progress(job: SlurmJob, view: View) -> int | None:
    """The newest checkpoint that anybody told of; None where nobody did."""
    for event in reversed(view.state.reports.get(job.id, ())):
        found = event.report.progress
        if found is None and event.report.trouble is not None:
            found = event.report.trouble.progress
        if found is not None:
            return found
    return None


# --- what is done about it ------------------------------------------------------------------------


def _decision(
    job: SlurmJob, registered: Registration, case: _Case, view: View, policy: Policy, now: datetime
) -> JobRecoveryOpened | HoldNoted:
    ruled = view.ruled.get(job.id, Ruled())
    notes = "; ".join(n for n in (registered.flaw, ruled.note) if n)
    rule = RuleId(f"run-{case.trouble.kind}")

    def hold(gate: str, why: str) -> HoldNoted:
        return HoldNoted(now, str(job.id), gate, f"{why} ({notes})" if notes else why, rule)

    code = case.trouble.exit_code
    if code is not None and code in {*ruled.policy.final_exit_codes, *policy.job.final_exit_codes}:
        return hold("asked_not_to", f"exit code {code}: it asked not to be run again")
    if not job.recoverable:
        reason = "Requeue=0" if job.batch else "not a batch job"
        return hold("not_recoverable", f"Slurm cannot start it again ({reason})")
    answer = _settled(_answer(job, case, ruled.policy, view, now), case, policy, now)
    if answer.action not in (Action.REQUEUE, Action.HOLD):
        return hold("run_policy", f"{case.trouble.why}: {answer.why or answer.action}")
    for gate in RUN_GATES:
        why = gate.gate(Run(job, answer), view, policy, now)
        if why is not None:
            return hold(gate.name, why)
    return _opened(job, case, answer, view, now, notes)


def _opened(
    job: SlurmJob, case: _Case, answer: RunDecision, view: View, now: datetime, notes: str = ""
) -> JobRecoveryOpened:
    # The policy's answer says what went wrong as well; a supervisor's own may not.
    reasons = (case.trouble.why, answer.why)
    why = answer.why if reasons[0] in reasons[1] else "; ".join(text for text in reasons if text)
    return JobRecoveryOpened(
        at=now,
        recovery=recovery_id(
            "j", job.id, case.attempt, "run", len(view.state.jobs), known=view.state
        ),
        attempt=case.attempt,
        cause=RecoveryId(""),
        bad_nodes=(),
        why=f"{why} ({notes})" if notes else why,
        name=job.name,
        user=job.user,
        partition=job.partition,
        over_budget=_owner_comment(job, answer) if answer.action is Action.HOLD else "",
        trouble=case.trouble,
        action=answer.action,
        exclude=_affordable(job, answer.exclude, view),
        start_at=later(now, answer.after_s) if answer.after_s > 0 else None,
        ran_on=job.nodes,
        nodes=len(job.nodes),
    )


def _settled(answer: RunDecision, case: _Case, policy: Policy, now: datetime) -> RunDecision:
    """Not so soon that a faulty node is met again before anybody could report its fault."""
    if case.reported is not None or case.queued or case.trouble.kind in _NODES:
        return answer
    settle = (later(case.trouble.at, policy.job.settle_s) - now).total_seconds()
    return replace(answer, after_s=max(answer.after_s, settle))


HUNG: Final = RuleId("run-hang")
HANG_GATE: Final = "hang"
OTHERS_GATE: Final = "hang_of_others"


def found_hanging(job: SlurmJob, state: State) -> bool:
    """Whether this run hung when a daemon last looked: it is treated for that, or held."""
    rec, held = state.job_recovery(job.id), state.holds.get(str(job.id))
    if rec is not None and rec.hang and rec.attempt == job.attempt:
        return True
    return held is not None and held.rule == HUNG and job.start is not None and job.start < held.at


def _hung(
    job: SlurmJob, hang: Hang, view: View, policy: Policy, now: datetime
) -> JobRecoveryOpened | HoldNoted | None:
    """A run that stands still: one doctor at a time, then what `hangs` says of its partition."""

    def hold(gate: str, why: str) -> HoldNoted:
        return HoldNoted(now, str(job.id), gate, f"it hangs: {hang.why}; {why}", HUNG)

    registered, hangs = registration(job.comment), policy.hangs
    own = "its own supervisor (hpctl run)" if registered and registered.supervised else ""
    if other := own or hang.other:
        return hold(OTHERS_GATE, f"left to {other}")
    action = hangs.partitions.get(job.partition, hangs.action)
    mine = [r for r in view.state.jobs.values() if r.attempt == job.attempt and _tried(r)]
    if action == "notify" or mine:
        did = f"`hangs: {mine[-1].hang}` was tried ({mine[-1].id})" if mine else "`hangs: notify`"
        return hold(HANG_GATE, f"{did}: it is left as it is")
    trouble = Trouble(Kind.HANG, hang.since, hang.why, "stands still", node=hang.node)
    case = _Case(job.attempt, trouble)
    if action == "requeue":
        decided = _decision(job, registered or Registration(), case, view, policy, now)
        return replace(decided, hang=action) if isinstance(decided, JobRecoveryOpened) else decided
    answer = RunDecision(Action.NOTIFY, f"`hangs: {action}`: {hang.why}")
    for gate in RUN_GATES:
        if why := gate.gate(Run(job, answer), view, policy, now):
            return hold(gate.name, why)
    return replace(_opened(job, case, answer, view, now), hang=action)


def _tried(rec: JobRecovery) -> bool:
    """Whether it did what `hangs` says: one that was called off did nothing, but a dump ends so."""
    return bool(rec.hang) and (not rec.let_run or (rec.hang == "dump" and bool(rec.steps)))


def _owner_comment(job: SlurmJob, answer: RunDecision) -> str:
    """What the owner of a held job reads in its Comment (`squeue -o %k`)."""
    why = answer.why.removeprefix("hpctl: ")
    return f"hpctl: {why}; held for you to look (scontrol release {job.id} lets it go on)"


def _answer(
    job: SlurmJob, case: _Case, policy: RunPolicy, view: View, now: datetime
) -> RunDecision:
    """The supervisor's own answer, less the time that has passed; else the policy's.

    The budgets hold for both: a supervisor has forgotten what came before its own start.
    """
    past = history(
        view.state, job.id, before=case.reported.at if case.reported else None, now=case.trouble
    )
    answer = decide(policy, past, case.trouble, _means(job, past, view), now)
    if case.queued and case.reported is None and case.trouble.kind in _NODES:
        answer = replace(answer, after_s=0.0)
    if case.reported is None or answer.action is Action.HOLD:
        return answer
    report = case.reported.report
    if report.wish is Wish.HOLD or report.action is Action.HOLD:
        return RunDecision(Action.HOLD, report.why or "its supervisor asked for a hold")
    left = (later(case.reported.at, report.after_s) - now).total_seconds()
    why = report.why or "its supervisor asked for a requeue"
    return RunDecision(Action.REQUEUE, why, max(left, 0.0), report.exclude)


def _usable(job: SlurmJob, view: View) -> frozenset[NodeName]:
    """The nodes of its partition that Slurm gives away now, to this job or another."""
    return frozenset(
        node.name
        for node in view.scheduler.nodes.values()
        if job.partition in node.partitions and node.in_service
    )


def _means(job: SlurmJob, past: Sequence[Past], view: View) -> Means:
    """What a requeue could get. A node that was lost, or treated, and serves again has healed."""
    usable = _usable(job, view)
    healed = {
        p.trouble.node
        for p in past
        if p.trouble.node in usable
        and (p.trouble.kind in _NODES or _returned(p.trouble.node, p.trouble.at, view))
    }
    names = tuple(sorted(name for name in healed if name is not None))
    return Means(wanted=len(job.nodes), pool=len(usable), healed=names)


def _returned(node: NodeName | None, since: datetime, view: View) -> bool:
    rid = view.state.last_of_node.get(node) if node is not None else None
    return rid is not None and view.state.nodes[rid].ended and view.state.nodes[rid].opened > since


def _affordable(job: SlurmJob, exclude: Sequence[NodeName], view: View) -> tuple[NodeName, ...]:
    """The nodes to leave; none where it could not start then.

    A job that waits for ever is worse off than one that meets a doubtful node again. One that is
    DOWN now is left as well: 22.05 does not end the batch script of a --no-kill job on the host
    that it lost, and a job that comes back there is a duplicate, which drains the node.
    """
    usable = _usable(job, view)
    enough = len(usable.difference(exclude, job.excluded)) >= max(len(job.nodes), 1)
    return tuple(sorted(exclude)) if enough else ()


SLURMS_DELAY: Final = timedelta(minutes=15)
"""A begin delay that Slurm itself sets is `cred_expire` long: two minutes, ten with long prologs.
A job that is to begin later than that was put off by a person, and is left to wait."""


def put_off(job: SlurmJob) -> bool:
    """Whether a person has set when the job may begin."""
    return job.eligible is not None and job.eligible > job.submit + SLURMS_DELAY


def job_decisions(
    view: View, policy: Policy, here: Mapping[NodeName, Sequence[SlurmJob]], now: datetime
) -> tuple[list[JobRecoveryOpened | HoldNoted], list[Flaw]]:
    """The jobs hit by a node under treatment: recovered, or held because Slurm cannot."""
    decisions: dict[int, JobRecoveryOpened | HoldNoted] = {}
    flaws: dict[int, Flaw] = {}
    for node in sorted(here):
        cause = view.state.node_recovery(node)
        if cause is None:
            continue
        for job in here[node]:
            if job.id in decisions or job.id in view.state.open_jobs or view.aside(job.id):
                continue
            decide = partial(_job_decision, cause=cause, view=view, policy=policy, now=now)
            decision = walled("plan", job.id, decide, job)
            if isinstance(decision, Flaw):
                flaws[job.id] = decision
            elif decision is not None:
                decisions[job.id] = decision
    return [decisions[i] for i in sorted(decisions)], list(flaws.values())


def _job_decision(
    job: SlurmJob, cause: NodeRecovery, view: View, policy: Policy, now: datetime
) -> JobRecoveryOpened | HoldNoted | None:
    attempt = hit_attempt(job, cause, view, policy)
    if is_test(cause, job.name):
        return None
    if attempt is None or _already(attempt, cause, view, policy, now):
        return None
    code = job.exit_code.partition(":")[0]
    if not job.running and code in {str(c) for c in policy.job.final_exit_codes}:
        text = f"job {job.id} ended with exit code {code}: it asked not to be run again"
        return HoldNoted(now, str(job.id), "asked_not_to", text, cause.rule)
    if not job.recoverable:
        why = "Requeue=0" if job.batch else "not a batch job"
        text = f"job {job.id} cannot be started again by Slurm ({why}); submit with --requeue"
        return HoldNoted(now, str(job.id), "not_recoverable", text, cause.rule)
    bad = tuple(sorted(n for n in set(job.nodes) if n in view.state.open_nodes))
    # A notice comes minutes before the instance goes: until then its jobs can save.
    well = cause.urgency is not Urgency.NOW or goes_anyway(cause.ladder)
    alive = job.running and (bool(cause.by) or well)
    registered = registration(job.comment) or Registration()
    return JobRecoveryOpened(
        at=now,
        recovery=recovery_id("j", job.id, attempt, cause.id, known=view.state),
        attempt=attempt,
        cause=cause.id,
        bad_nodes=bad,
        why=f"its node {cause.node}: {cause.meaning}",
        name=job.name,
        user=job.user,
        partition=job.partition,
        save_signal=registered.save_signal if alive else "",
        over_budget=_over_budget(job, view, policy, now),
        supervised=registered.supervised and job.running,
        nodes=len(job.nodes),
    )


def _already(
    attempt: Attempt, cause: NodeRecovery, view: View, policy: Policy, now: datetime
) -> bool:
    """Whether this attempt, or a later one of the same job, was treated before.

    Slurm sets the submit time anew when it requeues, so the restart count tells the attempts
    apart; ids come round again, but not within a day.
    """
    window = policy.job.restart_window_s
    return any(
        r.attempt.job == attempt.job
        and (
            r.attempt == attempt
            or (
                r.attempt.restarts >= attempt.restarts
                and (r.cause == cause.id or now < later(r.opened, window))
            )
        )
        # What its own supervisor fixed was no end of the run: the next node hits it again.
        and not (r.let_run and r.cause != cause.id)
        for r in view.state.jobs.values()
    )


def hit_attempt(job: SlurmJob, cause: NodeRecovery, view: View, policy: Policy) -> Attempt | None:
    """The attempt of a job that a node's fault hit, or None where it hit none."""
    if job.running:
        may_run_on = not urgent(cause, view) or cause.phase not in (
            NodePhase.OPEN,
            NodePhase.CORDONED,
        )
        return None if may_run_on else job.attempt
    first = min((f.first for f in cause.findings), default=cause.opened)
    slack = policy.job.ended_before_fault_s
    if job.state in ENDED_BADLY:
        hit = job.end is None or later(job.end, slack) >= first
        return job.attempt if hit else None
    if (
        job.state == "PENDING"
        and job.restarts > 0
        and job.reason in ("BeginTime", "None", "", "NonZeroExitCode")
        and not put_off(job)
    ):
        # Slurm requeued it before we came: the run that was hit is the one before.
        return Attempt(job.id, job.submit, job.restarts - 1)
    return None


def _over_budget(job: SlurmJob, view: View, policy: Policy, now: datetime) -> str:
    limit, window = policy.job.max_restarts, policy.job.restart_window_s
    recent = sum(
        1
        for r in view.state.jobs.values()
        if r.attempt.job == job.id and not r.let_run and now < later(r.opened, window)
    )
    if recent < limit:
        return ""
    return (
        f"hpctl: restarted {recent} times in {window / 3600:g} h, its budget; held for you to look"
        f" (scontrol release {job.id} lets it go on)"
    )


class Run(Struct, frozen=True):
    """A run that went wrong, and what is to be done about it."""

    job: SlurmJob
    answer: RunDecision


RunGate = Callable[[Run, View, Policy, datetime], str | None]


def kill_switch(run: Run, view: View, policy: Policy, now: datetime) -> str | None:
    """The kill-switch file exists."""
    return view.stopped or None


def paused(run: Run, view: View, policy: Policy, now: datetime) -> str | None:
    """An operator has paused hpctl."""
    return f"paused by {view.state.paused_by}" if view.state.paused_by else None


def stale_facts(run: Run, view: View, policy: Policy, now: datetime) -> str | None:
    """Slurm, the cloud or the node's agent has not been read lately."""
    if view.current and fresh(view.scheduler.as_of, policy.ages.scheduler_s, now):
        return None
    return f"Slurm was last read at {view.scheduler.as_of:%H:%M:%S}"


def not_allowed(run: Run, view: View, policy: Policy, now: datetime) -> str | None:
    """The job is in none of the partitions where hpctl may act."""
    return _outside(run.job, policy) or None


def observing(run: Run, view: View, policy: Policy, now: datetime) -> str | None:
    """Mode observe only journals. Last: what passes the others shows here."""
    if policy.mode is not Mode.OBSERVE:
        return None
    answer = run.answer
    would = {Action.HOLD: "hold", Action.NOTIFY: "treat"}.get(answer.action, "start")
    after = f" after {answer.after_s:.0f} s" if answer.after_s > 0 else ""
    without = f" away from {','.join(answer.exclude)}" if answer.exclude else ""
    return f"mode observe: would {would} job {run.job.id}{after}{without}: {answer.why}"


class RunGateRow(Struct, frozen=True):
    """A gate and its name."""

    name: str
    gate: RunGate


RUN_GATES: Final = (
    RunGateRow("kill_switch", kill_switch),
    RunGateRow("paused", paused),
    RunGateRow("stale_facts", stale_facts),
    RunGateRow("not_allowed", not_allowed),
    RunGateRow("observing", observing),
)


def shut_now(job: SlurmJob, policy: Policy, stopped: str, paused_by: str) -> str:
    """Why hpctl would not act on this job now, as its supervisor is told; empty where it may."""
    if stopped or paused_by:
        return stopped or f"paused by {paused_by}"
    if policy.mode is Mode.OBSERVE:
        return "mode observe: decisions are written down and nothing is done"
    return _outside(job, policy)


def _outside(job: SlurmJob, policy: Policy) -> str:
    if not policy.partitions or job.partition in policy.partitions:
        return ""
    return f"partition {job.partition} is none that the configuration allows"
