"""A recovery or a change of capacity as an incident timeline: lines with times, and what is next.

One wording for `hpctl explain`, a live narration and the comment that a job's owner reads. Pure:
what happened comes from the journal's values, what is awaited from the policy.
"""

from datetime import datetime
from typing import Final

from msgspec import Struct

from hpctl.engine.change_deadlines import find_cluster_change_deadline
from hpctl.engine.job_deadlines import find_job_phase_deadline_s as job_deadline_s
from hpctl.engine.journal.events import (
    COMMANDS,
    PAUSE_ENDED,
    ClockSet,
    ConfigurationTaken,
    DaemonStarted,
    Event,
    GateBlocked,
    HoldLifted,
    JobRecoveryOpened,
    JobReported,
    NodeRecoveryOpened,
    RequestTaken,
    SignalSeen,
    StepResolved,
    StepStarted,
)
from hpctl.engine.journal.state import EngineState
from hpctl.engine.node_deadlines import find_node_recovery_phase_deadline
from hpctl.engine.node_history import suggest_hyperpod_remedy_command
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.toolkit.compat import StrEnum
from hpctl.toolkit.durations import format_duration
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.vocabulary import change as vocabulary_change
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.change import (
    ChangeOpened,
    ClusterChange,
    ClusterChangePhase,
    ClusterChangeSignal,
    find_node_removal_phase,
)
from hpctl.vocabulary.identity import RecoveryId
from hpctl.vocabulary.job_recovery import (
    REQUEUED_BEFORE_PROOF,
    JobRecovery,
    JobRecoveryPhase,
    JobRecoverySignal,
)
from hpctl.vocabulary.model import Finding
from hpctl.vocabulary.node_recovery import (
    SCALE_DOWN,
    NodeRecovery,
    NodeRecoveryPhase,
    NodeRecoverySignal,
)
from hpctl.vocabulary.outcome import HELD, Outcome, OutcomeKind
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.recovery import RecoveryStepRecord, RecoveryTransitionRecord, StepKind
from hpctl.vocabulary.trouble import TroubleKind

Subject = NodeRecovery | JobRecovery | ClusterChange
"""What has a timeline."""


class RecoveryTimelineLineKind(StrEnum):
    """What kind of line it is, for the code that colors it."""

    DECIDED = "decided"
    DID = "did"
    SAW = "saw"
    WAITS = "waits"
    TROUBLE = "trouble"
    DONE = "done"


class RecoveryTimelineLine(Struct, frozen=True):
    """One sentence and when it became true."""

    at: datetime
    text: str
    mark: RecoveryTimelineLineKind


class AwaitedEvent(Struct, frozen=True):
    """`what` is awaited; where it has not come by `until`, `otherwise` happens."""

    what: str
    until: datetime | None = None
    otherwise: str = ""


NODE_TEXTS: Final[dict[NodeRecoverySignal, tuple[str, RecoveryTimelineLineKind]]] = {
    NodeRecoverySignal.CORDON_SEEN: ("Drained {node}", RecoveryTimelineLineKind.SAW),
    NodeRecoverySignal.JOBS_GONE: ("No jobs left on {node}", RecoveryTimelineLineKind.SAW),
    NodeRecoverySignal.REMEDY_ALLOWED: ("Remedy may begin", RecoveryTimelineLineKind.DECIDED),
    NodeRecoverySignal.EVIDENCE_KEPT: ("Evidence of {node} kept", RecoveryTimelineLineKind.SAW),
    NodeRecoverySignal.NO_EVIDENCE: (
        "No evidence of {node} kept",
        RecoveryTimelineLineKind.TROUBLE,
    ),
    NodeRecoverySignal.REMEDY_ACCEPTED: ("Remedy started", RecoveryTimelineLineKind.SAW),
    NodeRecoverySignal.NOTHING_TO_REMEDY: ("No remedy needed", RecoveryTimelineLineKind.SAW),
    NodeRecoverySignal.NEW_GENERATION_SEEN: ("{node} booted", RecoveryTimelineLineKind.SAW),
    NodeRecoverySignal.REJOINED: ("{node} rejoined the cluster", RecoveryTimelineLineKind.SAW),
    NodeRecoverySignal.INSTANCE_GONE: (
        "The instance of {node} was deleted",
        RecoveryTimelineLineKind.DONE,
    ),
    NodeRecoverySignal.FAULT_AGAIN: ("Fault recurred on {node}", RecoveryTimelineLineKind.TROUBLE),
    NodeRecoverySignal.RESET_SEEN: ("GPU of {node} reset", RecoveryTimelineLineKind.SAW),
    NodeRecoverySignal.RESET_IN_VAIN: (
        "GPU reset did not fix {node}",
        RecoveryTimelineLineKind.TROUBLE,
    ),
    NodeRecoverySignal.ACCEPTANCE_DUE: ("Testing {node}", RecoveryTimelineLineKind.DECIDED),
    NodeRecoverySignal.TEST_PASSED: ("{node} passed its test", RecoveryTimelineLineKind.SAW),
    NodeRecoverySignal.TEST_FAILED: ("{node} failed its test", RecoveryTimelineLineKind.TROUBLE),
    NodeRecoverySignal.TEST_ASKS_RESET: (
        "{node} failed its test, needs a reset",
        RecoveryTimelineLineKind.TROUBLE,
    ),
    NodeRecoverySignal.TEST_ASKS_REBOOT: (
        "{node} failed its test, needs a reboot",
        RecoveryTimelineLineKind.TROUBLE,
    ),
    NodeRecoverySignal.TEST_ASKS_REPLACE: (
        "{node} failed its test, needs a replacement",
        RecoveryTimelineLineKind.TROUBLE,
    ),
    NodeRecoverySignal.UNTESTED: (
        "The test of {node} came to no result",
        RecoveryTimelineLineKind.TROUBLE,
    ),
    NodeRecoverySignal.UNRESERVED: (
        "{node} left its test's reservation",
        RecoveryTimelineLineKind.SAW,
    ),
    NodeRecoverySignal.REBOOT_IN_VAIN: (
        "Reboot did not fix {node}",
        RecoveryTimelineLineKind.TROUBLE,
    ),
    NodeRecoverySignal.RETURN_SEEN: ("Resumed {node}", RecoveryTimelineLineKind.DONE),
    NodeRecoverySignal.MAINTENANCE_BEGAN: (
        "Maintenance of {node}, the recovery waits",
        RecoveryTimelineLineKind.WAITS,
    ),
    NodeRecoverySignal.MAINTENANCE_ENDED: (
        "End of the maintenance of {node}",
        RecoveryTimelineLineKind.SAW,
    ),
    NodeRecoverySignal.FAULT_FOUND: (
        "{node} is faulty after the maintenance",
        RecoveryTimelineLineKind.TROUBLE,
    ),
    NodeRecoverySignal.MARKED: (
        "HyperPod's health agent marked {node}",
        RecoveryTimelineLineKind.SAW,
    ),
    NodeRecoverySignal.REPLACE_ASKED: (
        "HyperPod's health agent requested replacement of {node}",
        RecoveryTimelineLineKind.DECIDED,
    ),
    NodeRecoverySignal.WITHDRAWN: (
        "Resumed {node} without a remedy",
        RecoveryTimelineLineKind.DONE,
    ),
    NodeRecoverySignal.NEEDS_HUMAN: (
        "Escalated {node} to on-call",
        RecoveryTimelineLineKind.TROUBLE,
    ),
    NodeRecoverySignal.DEADLINE: (
        "Timed out, escalated to on-call",
        RecoveryTimelineLineKind.TROUBLE,
    ),
    NodeRecoverySignal.NODE_GONE: (
        "Slurm no longer has node {node}",
        RecoveryTimelineLineKind.DONE,
    ),
    NodeRecoverySignal.OPERATOR_TOOK_OVER: (
        "Operator took over {node}",
        RecoveryTimelineLineKind.DONE,
    ),
    NodeRecoverySignal.OPERATOR_CANCELLED: (
        "Operator canceled the recovery",
        RecoveryTimelineLineKind.DONE,
    ),
}


JOB_TEXTS: Final[dict[JobRecoverySignal, tuple[str, RecoveryTimelineLineKind]]] = {
    JobRecoverySignal.SUPERVISED: (
        "Left {job} to its supervisor",
        RecoveryTimelineLineKind.DECIDED,
    ),
    JobRecoverySignal.EXCISED: (
        "{job} continues without the bad node",
        RecoveryTimelineLineKind.SAW,
    ),
    JobRecoverySignal.WENT_ON: ("{job} recovered without a restart", RecoveryTimelineLineKind.DONE),
    JobRecoverySignal.SAVE_WANTED: (
        "Grace period for {job} to save began",
        RecoveryTimelineLineKind.DECIDED,
    ),
    JobRecoverySignal.STOP_WANTED: ("Stopping {job}", RecoveryTimelineLineKind.DECIDED),
    JobRecoverySignal.SAVE_OVER: ("Grace period to save ended", RecoveryTimelineLineKind.SAW),
    JobRecoverySignal.QUEUED: ("Requeued {job}", RecoveryTimelineLineKind.SAW),
    JobRecoverySignal.STARTED: ("Released {job} to start", RecoveryTimelineLineKind.SAW),
    JobRecoverySignal.RUNNING_SEEN: ("{job} restarted", RecoveryTimelineLineKind.SAW),
    JobRecoverySignal.PROVED: ("{job} resumed", RecoveryTimelineLineKind.DONE),
    JobRecoverySignal.FINISHED: ("{job} completed", RecoveryTimelineLineKind.DONE),
    JobRecoverySignal.HELD: ("Held {job} for its owner", RecoveryTimelineLineKind.TROUBLE),
    JobRecoverySignal.FAILED_AGAIN: ("{job} failed again", RecoveryTimelineLineKind.TROUBLE),
    JobRecoverySignal.REQUEUED_AGAIN: ("Slurm requeued {job} again", RecoveryTimelineLineKind.SAW),
    JobRecoverySignal.REFUSED: ("{job} cannot be restarted", RecoveryTimelineLineKind.TROUBLE),
    JobRecoverySignal.GONE: ("Recovery of {job} canceled", RecoveryTimelineLineKind.DONE),
    JobRecoverySignal.CALLED_OFF: (
        "{job} keeps running, recovery canceled",
        RecoveryTimelineLineKind.DONE,
    ),
    JobRecoverySignal.DEADLINE: (
        "Timed out, left to the job's owner",
        RecoveryTimelineLineKind.TROUBLE,
    ),
    JobRecoverySignal.OPERATOR_CANCELLED: (
        "Operator canceled the recovery",
        RecoveryTimelineLineKind.DONE,
    ),
}


CHANGE_TEXTS: Final[dict[ClusterChangeSignal, str]] = {
    ClusterChangeSignal.ORDER_TAKEN: "Order for {what} accepted",
    ClusterChangeSignal.ARRIVED: "New instances of {what} are in service",
    ClusterChangeSignal.GONE: "The test of {what} was canceled",
    ClusterChangeSignal.SET_SEEN: "Spares of {what} are reserved",
    ClusterChangeSignal.IN_USE: "{what} is in use again",
    ClusterChangeSignal.REFUSED: "Change of {what} rejected",
    ClusterChangeSignal.TESTED: "Burn-in of {what} ended",
    ClusterChangeSignal.DEADLINE: "Change of {what} timed out",
    ClusterChangeSignal.RESERVED: "slurmctld has the reservation of {what}",
    ClusterChangeSignal.BEGAN: "{what} began",
    ClusterChangeSignal.CHANGED: "An admin changed {what}",
    ClusterChangeSignal.END_ASKED: "End of {what} requested",
}


STEP_TEXTS: Final[dict[StepKind, str]] = {
    StepKind.DRAIN: "Draining {target}",
    StepKind.DOWN: "Setting {target} DOWN, which makes Slurm requeue its jobs",
    StepKind.SIGNAL: "Sending {target} to the job",
    StepKind.REQUEUE: "Requeuing job {target}",
    StepKind.START_NOW: "Starting job {target} now, without the bad nodes",
    StepKind.HOLD: "Holding job {target}",
    StepKind.CANCEL: "Cancelling job {target}",
    StepKind.LIFT: "Letting job {target} have the healed nodes again",
    StepKind.NOTE: "Writing it into the Comment of job {target}",
    StepKind.EVIDENCE: "Keeping the evidence of {target}",
    StepKind.RESET: "Resetting GPUs of {target}",
    StepKind.REBOOT: "Rebooting instance {target}",
    StepKind.REPLACE: "Replacing instance {target}",
    StepKind.RETURN: "Resuming {target}",
    StepKind.ADD: "Adding instances to group {target}",
    StepKind.REMOVE: "Deleting instance {target}",
    StepKind.RESERVE: "Updating reservation {target}",
    StepKind.MAINTAIN: "Creating the maintenance reservation {target}",
    StepKind.STACKS: "Reading the stacks of job {target}'s ranks",
    StepKind.ISOLATE: "Reserving the node for its test ({target})",
    StepKind.RESUME: "Resuming {target} inside that reservation",
    StepKind.TEST: "Submitting the test {target}",
    StepKind.END_TEST: "Ending the test {target}",
    StepKind.UNRESERVE: "Deleting reservation {target}",
}


REMEDIES: Final[dict[Remedy, str]] = {
    Remedy.NONE: "nothing",
    Remedy.RESTART_JOB: "restart the job",
    Remedy.RESET_GPU: "reset the GPU",
    Remedy.REBOOT: "reboot",
    Remedy.REPLACE: "replace",
    Remedy.DELETE: "delete",
    Remedy.AWAIT: "wait for the replacement",
    Remedy.ASK_HUMAN: "escalate to on-call",
}


_SELF_EVIDENT: Final = frozenset({"jobs_gone", "queued", "finished"})
"""Signals whose reason only repeats the text."""


_OBSERVED: Final = "nothing, mode observe records decisions and takes no action"


_CLOSED: Final = "nothing, this recovery is closed"


def format_sentence_with_reason(start: str, why: str = "") -> str:
    """`start: why.`, with one full stop."""
    text = f"{start}: {why}" if why else start
    return text if text.endswith((".", "!", "?")) else text + "."


def describe_step_outcome(outcome: Outcome | None) -> str:
    """Return what a port answered to a step, or that it did not."""
    if outcome is None:
        return "no answer on record, checked before it is retried"
    answer = " ".join(part for part in (outcome.code, outcome.detail) if part)
    match outcome.kind:
        case OutcomeKind.ACCEPTED:
            return f"accepted ({answer})" if answer else "accepted"
        case OutcomeKind.REJECTED:
            return f"rejected{', to be retried' if outcome.transient else ''} ({answer})"
        case OutcomeKind.AMBIGUOUS:
            return f"outcome unknown ({answer})"


def format_finding(finding: Finding) -> str:
    """Return a finding in one line: what was seen, where, how often; not the raw evidence."""
    where = f" on {finding.device}" if finding.device else ""
    code = f" {finding.code}" if finding.code else ""
    detail = f" ({finding.detail})" if finding.detail else ""
    often = f", {finding.count} times" if finding.count > 1 else ""
    return f"{finding.check}{code}{where}: {finding.verdict}{detail}{often}"


def format_remedy_ladder(ladder: tuple[Remedy, ...]) -> str:
    """`reboot, then replace`."""
    return ", then ".join(REMEDIES[rung] for rung in ladder)


def build_recovery_timeline(
    subject: Subject, state: EngineState
) -> tuple[RecoveryTimelineLine, ...]:
    """Return the whole timeline, oldest first; on equal times, steps before what they caused."""
    steps = [_make_recovery_step_line(step, subject) for step in subject.steps]
    moves = [_make_recovery_phase_change_line(subject, move, state) for move in subject.trail]
    rest = [*moves, *steps] if isinstance(subject, ClusterChange) else [*steps, *moves]
    return (_make_timeline_opening_line(subject), *sorted(rest, key=lambda line: line.at))


def _make_timeline_opening_line(subject: Subject) -> RecoveryTimelineLine:
    if isinstance(subject, ClusterChange):
        about = subject.opened
        return RecoveryTimelineLine(
            about.at,
            format_sentence_with_reason(describe_capacity_change(about), about.why),
            RecoveryTimelineLineKind.DECIDED,
        )
    if isinstance(subject, NodeRecovery) and subject.is_for_capacity_change:
        return RecoveryTimelineLine(
            subject.opened,
            format_sentence_with_reason(describe_node_removal(subject), subject.why),
            RecoveryTimelineLineKind.DECIDED,
        )
    if isinstance(subject, NodeRecovery):
        asked = f", requested by {subject.by}" if subject.by else ""
        ladder = format_remedy_ladder(subject.ladder[subject.rung :])
        plan = f"opened recovery of {subject.node} ({subject.rule}{asked}): {ladder}"
        text = f"{subject.meaning}; {plan}" if subject.meaning else plan
        # The findings have lines of their own; what hpctl concludes without any has none.
        why = "" if subject.findings or subject.by != "hpctl" else subject.why
        return RecoveryTimelineLine(
            subject.opened,
            format_sentence_with_reason(text[0].upper() + text[1:], why),
            RecoveryTimelineLineKind.DECIDED,
        )
    job = f"Job {subject.shown}"
    job += f" ({subject.name}, {subject.user})" if subject.name else ""
    start = f"{job} affected by {subject.cause}" if subject.cause else f"{job} failed"
    start = job if subject.is_without_fault or _has_job_reached_time_limit(subject) else start
    return RecoveryTimelineLine(
        subject.opened,
        format_sentence_with_reason(start, subject.why),
        RecoveryTimelineLineKind.DECIDED,
    )


def _has_job_reached_time_limit(rec: JobRecovery) -> bool:
    """Return whether its run reached its time limit, which is no failure."""
    return rec.trouble is not None and rec.trouble.kind is TroubleKind.TIME_LIMIT


def _make_recovery_phase_change_line(
    subject: Subject, move: RecoveryTransitionRecord, state: EngineState
) -> RecoveryTimelineLine:
    """Return a move into another phase."""
    if isinstance(subject, ClusterChange):
        about = subject.opened
        what = about.node or f"group {about.group}"
        if vocabulary_change.is_maintenance_window(subject):
            what = f"maintenance window {about.group}"
            if move.signal == ClusterChangeSignal.GONE:
                return RecoveryTimelineLine(
                    move.at,
                    format_sentence_with_reason(f"End of {what}", move.why),
                    RecoveryTimelineLineKind.DONE,
                )
        text = CHANGE_TEXTS[ClusterChangeSignal(move.signal)].format(what=what)
        ends = {
            "done": RecoveryTimelineLineKind.DONE,
            "cancelled": RecoveryTimelineLineKind.DONE,
            "failed": RecoveryTimelineLineKind.TROUBLE,
        }
        return RecoveryTimelineLine(
            move.at,
            format_sentence_with_reason(text, move.why),
            ends.get(move.phase, RecoveryTimelineLineKind.SAW),
        )
    if isinstance(subject, NodeRecovery):
        text, mark = NODE_TEXTS[NodeRecoverySignal(move.signal)]
        if move.signal == NodeRecoverySignal.JOBS_GONE:
            text = _describe_job_eviction(subject, state)
        text = text.format(node=subject.node)
    else:
        text, mark = JOB_TEXTS[JobRecoverySignal(move.signal)]
        if move.signal == JobRecoverySignal.STOP_WANTED and move.why.startswith(
            "its run has ended"
        ):
            text = "Restart of {job} decided"
        text = text.format(job=f"job {subject.shown}")
        text = text[0].upper() + text[1:]
    why = "" if move.signal in _SELF_EVIDENT else move.why
    return RecoveryTimelineLine(move.at, format_sentence_with_reason(text, why), mark)


def _describe_job_eviction(rec: NodeRecovery, state: EngineState) -> str:
    count = sum(
        j.cause == rec.id and not j.has_ended_without_stopping_run for j in state.jobs.values()
    )
    if not count:
        return NODE_TEXTS[NodeRecoverySignal.JOBS_GONE][0]
    return f"Evicted {count} job{'s' if count > 1 else ''} from {{node}}"


def _describe_step(kind: StepKind, target: str, attempt: int) -> str:
    again = f" (attempt {attempt})" if attempt > 1 else ""
    return STEP_TEXTS[kind].format(target=target) + again


def _format_recovery_step_target(step: RecoveryStepRecord | StepStarted, subject: Subject) -> str:
    """Return what a step is done to, as people write it."""
    if isinstance(subject, JobRecovery) and step.target == str(subject.attempt.job):
        return subject.shown
    return step.target


def _make_recovery_step_line(step: RecoveryStepRecord, subject: Subject) -> RecoveryTimelineLine:
    """Return a step and its outcome."""
    after = ""
    if step.resolved is not None:
        after = f" after {(step.resolved - step.started).total_seconds():.2f} s"
    mark = RecoveryTimelineLineKind.DID
    if step.in_doubt or (step.outcome and step.outcome.kind is OutcomeKind.REJECTED):
        mark = RecoveryTimelineLineKind.TROUBLE
    order = _describe_step(step.kind, _format_recovery_step_target(step, subject), step.attempt)
    return RecoveryTimelineLine(
        step.started, f"{order}: {describe_step_outcome(step.outcome)}{after}.", mark
    )


def make_job_report_line(event: JobReported, shown: str = "") -> RecoveryTimelineLine:
    """Return a report of a job's supervisor or script. `shown`: the job's id as its owner writes
    it."""
    report = event.report
    job = f"Job {shown or report.job}"
    who = f"Supervisor of job {shown or report.job}"
    if report.trouble is None and report.why:
        return RecoveryTimelineLine(
            event.at,
            format_sentence_with_reason(f"{job} reported", report.why),
            RecoveryTimelineLineKind.SAW,
        )
    if report.trouble is None:
        return RecoveryTimelineLine(
            event.at, f"{job} reported that it runs.", RecoveryTimelineLineKind.SAW
        )
    if report.is_cause_only_report:
        text = format_sentence_with_reason(
            f"{job} reported {report.trouble.kind}", report.trouble.why
        )
        return RecoveryTimelineLine(event.at, text, RecoveryTimelineLineKind.TROUBLE)
    did = f"requests a {report.wish}" if report.wish else f"took action {report.action}"
    what = f"{report.trouble.why}; {did}" + (f" ({report.why})" if report.why else "")
    text = format_sentence_with_reason(f"{who} reported {report.trouble.kind}", what)
    return RecoveryTimelineLine(event.at, text, RecoveryTimelineLineKind.TROUBLE)


def describe_capacity_change(event: ChangeOpened) -> str:
    """Return what a change of capacity was decided to be."""
    match event.kind:
        case vocabulary_change.ChangeKind.ADD:
            return f"Growing group {event.group} by {event.count} to {event.size}"
        case vocabulary_change.ChangeKind.BURN_IN:
            return f"Testing idle {event.node}"
        case vocabulary_change.ChangeKind.MAINTENANCE:
            return _describe_maintenance_window(event)
        case _:
            return f"Spares of group {event.group}: {','.join(event.nodes) or 'none'}"


def _describe_maintenance_window(event: ChangeOpened) -> str:
    times = [f"{at:%Y-%m-%d %H:%M:%S} UTC" for at in (event.start, event.end) if at is not None]
    by = f" by {event.by}" if event.by else ""
    nodes = fold_hostlist(event.nodes)
    return f"Maintenance window {event.group}{by} of {nodes}, {' to '.join(times)}"


def describe_node_removal(rec: NodeRecovery) -> str:
    """Return what a recovery changes of the size of its node's group."""
    if rec.rule == SCALE_DOWN:
        return f"Removing {rec.node} from group {rec.group}"
    return f"Resuming {rec.node}, which was drained for a removal"


def make_journal_event_line(  # noqa: C901, PLR0912 -- one case for each event
    event: Event, state: EngineState
) -> RecoveryTimelineLine | None:
    """Return one journal event as a line, for a live narration; `state` has the event folded in.

    A step is shown when it starts and again only where its outcome is not a plain acceptance.
    """
    match event:
        case NodeRecoveryOpened() | JobRecoveryOpened() | ChangeOpened():
            return _make_timeline_opening_line(
                find_recovery_or_capacity_change(event.recovery, state)
            )
        case SignalSeen():
            subject = find_recovery_or_capacity_change(event.recovery, state)
            return _make_recovery_phase_change_line(subject, subject.trail[-1], state)
        case StepStarted():
            target = _format_recovery_step_target(
                event, find_recovery_or_capacity_change(event.recovery, state)
            )
            text = _describe_step(event.step, target, event.attempt)
            return RecoveryTimelineLine(event.at, text + ".", RecoveryTimelineLineKind.DID)
        case StepResolved():
            if event.outcome.kind is OutcomeKind.ACCEPTED:
                return None
            text = f"Outcome of {event.step}: {describe_step_outcome(event.outcome)}"
            return RecoveryTimelineLine(
                event.at, format_sentence_with_reason(text), RecoveryTimelineLineKind.TROUBLE
            )
        case GateBlocked():
            start = f"Blocked {event.shown} ({event.rule}) by gate {event.gate}"
            return RecoveryTimelineLine(
                event.at,
                format_sentence_with_reason(start, event.why),
                RecoveryTimelineLineKind.WAITS,
            )
        case HoldLifted():
            return RecoveryTimelineLine(
                event.at, f"No longer blocked: {event.target}.", RecoveryTimelineLineKind.SAW
            )
        case RequestTaken():
            command = COMMANDS.get(event.verb, event.verb)
            asked = f"{event.by or 'An operator'} requested {command} {event.target}".rstrip()
            mark = RecoveryTimelineLineKind.DID if event.ok else RecoveryTimelineLineKind.TROUBLE
            why = f" ({event.why})" if event.why else ""
            if event.verb == PAUSE_ENDED:
                return RecoveryTimelineLine(
                    event.at,
                    format_sentence_with_reason(event.answer),
                    RecoveryTimelineLineKind.SAW,
                )
            return RecoveryTimelineLine(
                event.at, format_sentence_with_reason(asked, event.answer + why), mark
            )
        case JobReported():
            return make_job_report_line(event)
        case ConfigurationTaken():
            return RecoveryTimelineLine(
                event.at,
                f"Configuration loaded from {event.by}'s file.",
                RecoveryTimelineLineKind.SAW,
            )
        case ClockSet():
            way = "forward" if event.by_s > 0 else "back"
            text = f"The clock was set {way} by {abs(event.by_s):.0f} s; open recoveries follow it."
            return RecoveryTimelineLine(event.at, text, RecoveryTimelineLineKind.SAW)
        case DaemonStarted():
            started = f"Daemon {event.version} started on {event.host}, mode {event.mode}."
            return RecoveryTimelineLine(event.at, started, RecoveryTimelineLineKind.SAW)


def find_recovery_or_capacity_change(recovery: RecoveryId, state: EngineState) -> Subject:
    """Return the recovery or change of an id that the state has."""
    if recovery in state.nodes:
        return state.nodes[recovery]
    return state.changes.get(recovery) or state.jobs[recovery]


def format_recovery_or_change_headline(subject: Subject) -> str:
    """Return the subject in one sentence: what is treated or changed, why, and its state."""
    if isinstance(subject, ClusterChange):
        what = format_sentence_with_reason(
            format_recovery_or_change_title(subject), subject.opened.why
        )
        return _format_capacity_change_headline(subject, what, subject.phase, subject.opened.at)
    if isinstance(subject, NodeRecovery) and subject.is_for_capacity_change:
        what = format_sentence_with_reason(format_recovery_or_change_title(subject), subject.why)
        return _format_capacity_change_headline(
            subject, what, find_node_removal_phase(subject), subject.opened
        )
    return f"{format_recovery_or_change_title(subject)}. {describe_recovery_phase(subject)}"


def format_recovery_or_change_title(subject: Subject) -> str:
    """Name the subject by its node or job and by its fault, in words."""
    if isinstance(subject, ClusterChange):
        return describe_capacity_change(subject.opened)
    if isinstance(subject, NodeRecovery):
        if subject.is_for_capacity_change:
            return describe_node_removal(subject)
        return f"{subject.node}: {subject.meaning or subject.why or subject.rule}"
    named = f" ({subject.name})" if subject.name else ""
    by = ", ".join(subject.bad_nodes) or subject.cause
    hit = f"affected by {by}" if subject.trouble is None else subject.trouble.why
    hit = subject.why if subject.is_without_fault else hit
    return f"Job {subject.shown}{named}, {hit}"


def find_earliest_fault_time(rec: NodeRecovery | JobRecovery, state: EngineState) -> datetime:
    """Return T+0 s of a timeline: when the first finding was made, such as a line of the kernel.

    For a job it is the time of its node's fault, or of the job's trouble; when the recovery was
    opened, where nothing was found before.
    """
    if isinstance(rec, NodeRecovery):
        return min([rec.opened, *(finding.first for finding in rec.findings)])
    if rec.trouble is not None:
        return min(rec.opened, rec.trouble.at)
    cause = state.nodes.get(rec.cause)
    return (
        min(rec.opened, find_earliest_fault_time(cause, state)) if cause is not None else rec.opened
    )


def _format_capacity_change_headline(
    change: ClusterChange | NodeRecovery, what: str, phase: ClusterChangePhase, began: datetime
) -> str:
    if not change.ended:
        return f"{what} In progress: {phase.replace('_', ' ')}."
    end = "canceled" if phase is ClusterChangePhase.CANCELLED else str(phase)
    seconds = (change.since - began).total_seconds()
    why = change.trail[-1].why if change.trail else ""
    ended = f"{end.capitalize()} after {format_duration(seconds)}"
    return f"{what} {format_sentence_with_reason(ended, why)}"


def describe_recovery_phase(rec: NodeRecovery | JobRecovery) -> str:
    """Say in which phase a recovery is, or how it ended."""
    last = rec.trail[-1].why if rec.trail else ""
    if not rec.ended:
        return f"In progress: {rec.phase}."
    seconds = (rec.since - rec.opened).total_seconds()
    noted = isinstance(rec, JobRecovery) and bool(rec.note)
    ends = {
        "returned": f"Back in service after {format_duration(seconds)}.",
        "resumed": _describe_time_until_job_resumed(rec),
        "escalated": format_sentence_with_reason("Escalated to on-call", last),
        "gave_up": format_sentence_with_reason(_describe_abandoned_recovery(rec), last),
        "held": format_sentence_with_reason("Held", last),
        "cancelled": format_sentence_with_reason("Noted" if noted else "Canceled", last),
    }
    return ends[rec.phase]


def _describe_abandoned_recovery(rec: NodeRecovery | JobRecovery) -> str:
    again = bool(rec.trail) and rec.trail[-1].signal == JobRecoverySignal.FAILED_AGAIN
    return "Failed again, which opens another recovery" if again else "Gave up"


def _describe_time_until_job_resumed(rec: NodeRecovery | JobRecovery) -> str:
    """Return how long until it ran again; the time in which it proved itself is not waiting."""
    for move in rec.trail:
        if move.signal == JobRecoverySignal.WENT_ON:
            return format_sentence_with_reason("Recovered by its supervisor", move.why)
        if move.signal == JobRecoverySignal.RUNNING_SEEN:
            return f"Running again after {format_duration((move.at - rec.opened).total_seconds())}."
    return "Completed without a restart."


_JOB_WAITS: Final[dict[JobRecoveryPhase, str]] = {
    JobRecoveryPhase.HIT: "the bad node to be drained",
    JobRecoveryPhase.EXCISING: "slurmctld to take the bad node from the job",
    JobRecoveryPhase.WATCHING: "the job's supervisor to report that it continues",
    JobRecoveryPhase.SAVING: "the job to save a checkpoint and end, or its grace period to pass",
    JobRecoveryPhase.STOPPING: "Slurm to clean up and requeue the job",
    JobRecoveryPhase.RELEASED: "slurmctld to clear the begin time and exclude the bad nodes",
    JobRecoveryPhase.STARTING: "Slurm to start the job on healthy nodes",
}


_CHANGE_WAITS: Final = {
    (vocabulary_change.ChangeKind.ADD, ClusterChangePhase.OPEN): "SageMaker to accept the order",
    (
        vocabulary_change.ChangeKind.ADD,
        ClusterChangePhase.ARRIVING,
    ): "the new instances to run and join Slurm",
    (
        vocabulary_change.ChangeKind.BURN_IN,
        ClusterChangePhase.OPEN,
    ): "slurmctld to take the test's job",
    (
        vocabulary_change.ChangeKind.BURN_IN,
        ClusterChangePhase.TESTING,
    ): "the test to end, or a user's job to wait",
    (
        vocabulary_change.ChangeKind.BURN_IN,
        ClusterChangePhase.LEAVING,
    ): "slurmctld to end the test's job",
    (
        vocabulary_change.ChangeKind.SPARES,
        ClusterChangePhase.OPEN,
    ): "the reservation to hold these nodes",
    (
        vocabulary_change.ChangeKind.MAINTENANCE,
        ClusterChangePhase.OPEN,
    ): "slurmctld to create the reservation",
    (vocabulary_change.ChangeKind.MAINTENANCE, ClusterChangePhase.SCHEDULED): "the window to begin",
    (vocabulary_change.ChangeKind.MAINTENANCE, ClusterChangePhase.BEGUN): "the window to end",
    (
        vocabulary_change.ChangeKind.MAINTENANCE,
        ClusterChangePhase.ENDING,
    ): "slurmctld to delete the reservation",
}


def find_next_awaited_event(subject: Subject, policy: RecoveryPolicy) -> AwaitedEvent:
    """Return what happens next. Where it is closed: what, if anything, a person should do."""
    if isinstance(subject, ClusterChange):
        return _find_event_awaited_by_capacity_change(subject, policy)
    if isinstance(subject, NodeRecovery):
        return _find_event_awaited_by_node_recovery(subject, policy)
    return _find_event_awaited_by_job_recovery(subject, policy)


def _find_event_awaited_by_capacity_change(
    change: ClusterChange, policy: RecoveryPolicy
) -> AwaitedEvent:
    if change.ended:
        return AwaitedEvent("nothing, this change is closed")
    what = _CHANGE_WAITS[change.opened.kind, change.phase]
    if policy.mode is OperatingMode.OBSERVE:
        what = _OBSERVED
    if vocabulary_change.is_maintenance_window(change):
        return AwaitedEvent(what)
    return AwaitedEvent(what, find_cluster_change_deadline(change, policy), "fails the change")


def _find_event_awaited_by_node_recovery(rec: NodeRecovery, policy: RecoveryPolicy) -> AwaitedEvent:
    if rec.phase is NodeRecoveryPhase.ESCALATED and rec.rule != SCALE_DOWN:
        return AwaitedEvent(
            f"on-call to repair {rec.node} and run `hpctl undrain {rec.node}`,"
            f" or to run `hpctl replace {rec.node}`"
        )
    if rec.ended:
        return AwaitedEvent(_CLOSED)
    return AwaitedEvent(
        _describe_node_recovery_wait(rec, policy),
        find_node_recovery_phase_deadline(rec, policy),
        "escalates to on-call",
    )


def _describe_node_recovery_wait(rec: NodeRecovery, policy: RecoveryPolicy) -> str:  # noqa: C901 -- one case for each phase
    if policy.mode is OperatingMode.OBSERVE:
        return _OBSERVED
    doubt = [s for s in rec.steps if s.in_doubt]
    if doubt and doubt[-1] is rec.steps[-1]:
        return f"the outcome of {doubt[-1].kind}, which is in doubt and checked before a retry"
    match rec.phase:
        case NodeRecoveryPhase.OPEN:
            return "slurmctld to show DRAIN with hpctl's Reason"
        case NodeRecoveryPhase.CORDONED if rec.urgency is not Urgency.NOW:
            return "the jobs on the node to end"
        case NodeRecoveryPhase.CORDONED:
            return "eviction of the jobs on the node, each as soon as its recovery is ready"
        case NodeRecoveryPhase.VACATED if (
            policy.mode is not OperatingMode.OWN and rec.remedy is not Remedy.DELETE
        ):
            return f"HyperPod's own recovery to {REMEDIES[rec.remedy]} it (mode {policy.mode})"
        case NodeRecoveryPhase.VACATED:
            return _describe_next_remedy(rec, policy)
        case NodeRecoveryPhase.REMEDYING:
            return _describe_remedy_wait(rec, policy)
        case NodeRecoveryPhase.REJOINING:
            return "the instance to be Running and slurmd to register"
        case NodeRecoveryPhase.ACCEPTING:
            return f"the result of test {rec.test}"
        case NodeRecoveryPhase.UNRESERVING:
            return "the job and the reservation of its test to go"
        case _:
            return f"{policy.node.verify_healthy_s:g} s of health in a row, then resumes the node"


def _describe_remedy_wait(rec: NodeRecovery, policy: RecoveryPolicy) -> str:
    if rec.remedy is Remedy.DELETE:
        return f"SageMaker to list instance {rec.generation.instance} no longer"
    boot = "a report from a new boot under this node's name"
    return "; ".join(filter(None, [boot, suggest_hyperpod_remedy_command(rec, policy)]))


def _describe_next_remedy(rec: NodeRecovery, policy: RecoveryPolicy) -> str:
    order = f"{REMEDIES[rec.remedy]} instance {rec.generation.instance}"
    if rec.by or rec.remedied:
        return f"SageMaker to accept the order: {order}"
    ripe = add_seconds_within_bounds(rec.opened, policy.node.remedy_after_s)
    window = f"the correlation window until {ripe:%H:%M:%S} UTC"
    return f"{window}, in which other nodes may report the same fault; then: {order}"


def _find_event_awaited_by_job_recovery(rec: JobRecovery, policy: RecoveryPolicy) -> AwaitedEvent:
    if rec.ended:
        return AwaitedEvent(_describe_action_after_job_recovery(rec))
    what = _JOB_WAITS.get(rec.phase, f"{policy.job.prove_s:g} s of running")
    if rec.start_at is not None and rec.phase is JobRecoveryPhase.STARTING:
        what += f", after backoff until {rec.start_at:%H:%M:%S} UTC"
    if policy.mode is OperatingMode.OBSERVE:
        what = _OBSERVED
    until = add_seconds_within_bounds(rec.since, job_deadline_s(rec.phase, policy))
    return AwaitedEvent(what, until, "leaves the job to its owner")


def _describe_action_after_job_recovery(rec: JobRecovery) -> str:
    """Return what a person does, where a person must, once a recovery has ended."""
    last = rec.steps[-1].outcome if rec.steps else None
    kind = rec.trouble.kind if rec.trouble is not None else None
    back = f", or `{make_job_resume_command(rec.shown)}`" if kind in POISONS else ""
    if rec.phase is JobRecoveryPhase.HELD:
        first = "make room and " if kind is TroubleKind.DISK_FULL else ""
        return f"the job's owner to {first}run `scontrol release {rec.shown}`{back}"
    if rec.phase is not JobRecoveryPhase.GAVE_UP:
        return _CLOSED
    if last is not None and last.code == HELD:
        return describe_held_job_release(rec)
    if rec.trail and rec.trail[-1].why == REQUEUED_BEFORE_PROOF:
        return f"Slurm to start the job; `squeue -j {rec.shown}` prints what it waits for"
    return f"the job's owner to read its log and run `scontrol requeue {rec.shown}`{back}"


POISONS: Final = (TroubleKind.NAN, TroubleKind.SPIKE, TroubleKind.CORRUPTION)
"""Kinds of trouble after which what the run has saved may be wrong."""


def make_job_resume_command(job: str) -> str:
    """Return the command by which a job resumes from an earlier checkpoint."""
    return f"hpctl resume {job} --from-step N"


def describe_held_job_release(rec: JobRecovery) -> str:
    """Return who lets a job go on that an owner or an administrator holds."""
    return f"`scontrol release {rec.shown}`, by its owner or by the administrator who holds it"


LIFTED_BY: Final[dict[str, str]] = {
    "kill_switch": "an administrator to remove that file; then hpctl continues automatically",
    "paused": "the end of the pause, or `hpctl unpause`; then hpctl continues automatically",
    "observing": "mode assist or own in the configuration file; in mode observe nothing is done",
    "provider_auto_recovery": "a person to choose who replaces: NodeRecovery None, or mode assist",
    "maintenance": "the maintenance reservation to end; then hpctl treats what is still faulty",
    "power_saving": "Slurm to start the node; then hpctl treats what is still faulty",
    "foreign_drain": "the user or tool that closed the node to open it again; hpctl does not act",
    "budget": (
        "a slot for its remedy: one that is under way ends, or a person puts a node that is left"
        " closed back into service; then hpctl continues automatically"
    ),
    "drain_budget": (
        "a node to come back into service, or a person to return one that is left closed; then"
        " hpctl continues automatically"
    ),
    "correlated": "a person to find out whether the check, the fabric or these nodes are faulty",
    "offender": "a person to look at the node, which breaks again and again",
    "launch_breaker": "a person to find out why instances do not come back from their remedy",
    "internal_error": "a person to read the daemon's log and to report the error",
    "protected": "a person: hpctl never treats this node",
    "not_allowed": "a person: the configuration keeps hpctl out of this partition",
    "asked_not_to": "nothing: the job itself asked not to be run again",
    "launch_failed": (
        "a person to find out why its launch failed, then `scontrol release`; hpctl releases only"
        " what a fault that it treats explains"
    ),
    "run_policy": "nothing: its policy asks for no restart here",
    "ended": "nothing: it has ended, and its policy does not restart it again",
    "hang": "the job to go on or to end: its owner, or `hangs` in the configuration",
    "hang_of_others": "nothing from hpctl: another tool handles this job's hangs",
    "not_recoverable": "the job to end, or its owner to end it: Slurm cannot run it again",
}


def describe_gate_block_release(hold: GateBlocked, *, many: bool = False) -> AwaitedEvent:
    """Return what a hold waits for. `many`: it stands for all that are held for the same."""
    event = LIFTED_BY.get(hold.gate, "the reason to go away; then hpctl continues automatically")
    if hold.approvable and many:
        event += f". `hpctl approve --rule {hold.rule}` lets all of them go ahead now"
    elif hold.approvable:
        event += f". `hpctl approve {hold.target}` lets it go ahead now"
        event += f", `hpctl approve --rule {hold.rule}` all that are held for the same"
    return AwaitedEvent(event)
