"""A recovery as a person would tell it: lines with times, from the journal's values alone.

One wording for everybody who tells it: `hpctl explain`, a live narration and the comment that a
job's owner reads. Pure: what happened comes from the recovery, what is awaited from the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from hpctl.core import job_recovery, node_recovery, tell_change
from hpctl.core.change import Change, ChangeOpened, Phase
from hpctl.core.compat import StrEnum
from hpctl.core.job_recovery import JobRecovery
from hpctl.core.journal import (
    ConfigurationTaken,
    DaemonStarted,
    Event,
    HoldLifted,
    HoldNoted,
    JobRecoveryOpened,
    JobReported,
    NodeRecoveryOpened,
    RequestTaken,
    SignalSeen,
    State,
    StepResolved,
    StepStarted,
)
from hpctl.core.model import Finding, Outcome, OutcomeKind, Remedy
from hpctl.core.node_recovery import NodeRecovery
from hpctl.core.recovery import StepKind, StepRecord, Trail


class Mark(StrEnum):
    """What kind of line it is, for whoever colours it."""

    DECIDED = "decided"
    DID = "did"
    SAW = "saw"
    WAITS = "waits"
    TROUBLE = "trouble"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Line:
    """One sentence and when it became true."""

    at: datetime
    text: str
    mark: Mark


NODE_SAYINGS: Final[dict[node_recovery.Signal, tuple[str, Mark]]] = {
    node_recovery.Signal.CORDON_SEEN: ("{node} is closed to new work", Mark.SAW),
    node_recovery.Signal.JOBS_GONE: ("No job is left on {node}", Mark.SAW),
    node_recovery.Signal.REMEDY_ACCEPTED: ("The remedy is under way", Mark.SAW),
    node_recovery.Signal.NOTHING_TO_REMEDY: ("The instance needs no remedy", Mark.SAW),
    node_recovery.Signal.NEW_GENERATION_SEEN: ("{node} has booted afresh", Mark.SAW),
    node_recovery.Signal.REJOINED: ("{node} is back in the cluster", Mark.SAW),
    node_recovery.Signal.FAULT_AGAIN: ("{node} is faulty again", Mark.TROUBLE),
    node_recovery.Signal.REBOOT_IN_VAIN: ("The reboot did not bring {node} back", Mark.TROUBLE),
    node_recovery.Signal.RETURN_SEEN: ("{node} is in service again", Mark.DONE),
    node_recovery.Signal.MARKED: ("HyperPod's health agent marked {node}", Mark.SAW),
    node_recovery.Signal.REPLACE_ASKED: (
        "HyperPod's health agent asks for a replacement of {node}",
        Mark.DECIDED,
    ),
    node_recovery.Signal.WITHDRAWN: ("{node} is given back without a remedy", Mark.DONE),
    node_recovery.Signal.NEEDS_HUMAN: ("A person has to look at {node}", Mark.TROUBLE),
    node_recovery.Signal.DEADLINE: ("It took too long; a person has to look", Mark.TROUBLE),
    node_recovery.Signal.OPERATOR_TOOK_OVER: ("An operator took {node} over", Mark.DONE),
    node_recovery.Signal.OPERATOR_CANCELLED: ("An operator cancelled the recovery", Mark.DONE),
}

JOB_SAYINGS: Final[dict[job_recovery.Signal, tuple[str, Mark]]] = {
    job_recovery.Signal.SUPERVISED: ("{job} is left to its own supervisor", Mark.DECIDED),
    job_recovery.Signal.EXCISED: ("{job} runs on without its bad node", Mark.SAW),
    job_recovery.Signal.WENT_ON: ("{job} went on by itself", Mark.DONE),
    job_recovery.Signal.SAVE_WANTED: ("{job} is given time to save", Mark.DECIDED),
    job_recovery.Signal.STOP_WANTED: ("{job} is to be stopped", Mark.DECIDED),
    job_recovery.Signal.SAVE_OVER: ("The time to save is over", Mark.SAW),
    job_recovery.Signal.QUEUED: ("{job} is in the queue again", Mark.SAW),
    job_recovery.Signal.STARTED: ("{job} may start now", Mark.SAW),
    job_recovery.Signal.RUNNING_SEEN: ("{job} runs again", Mark.SAW),
    job_recovery.Signal.PROVED: ("{job} has proved itself", Mark.DONE),
    job_recovery.Signal.FINISHED: ("{job} has finished", Mark.DONE),
    job_recovery.Signal.HELD: ("{job} is held for its owner", Mark.TROUBLE),
    job_recovery.Signal.FAILED_AGAIN: ("{job} failed again", Mark.TROUBLE),
    job_recovery.Signal.REFUSED: ("{job} cannot be run again", Mark.TROUBLE),
    job_recovery.Signal.GONE: ("{job} is no longer ours to run", Mark.DONE),
    job_recovery.Signal.CALLED_OFF: ("{job} runs on: its node is not treated any more", Mark.DONE),
    job_recovery.Signal.DEADLINE: ("It took too long; a person has to look", Mark.TROUBLE),
    job_recovery.Signal.OPERATOR_CANCELLED: ("An operator cancelled the recovery", Mark.DONE),
}

ORDERS: Final[dict[StepKind, str]] = {
    StepKind.DRAIN: "Ordered DRAIN for {target}",
    StepKind.DOWN: "Ordered DOWN for {target}, which makes Slurm requeue its jobs",
    StepKind.SIGNAL: "Sent {target} to the job",
    StepKind.REQUEUE: "Ordered a requeue of job {target}",
    StepKind.START_NOW: "Ordered job {target} to start now, away from the bad nodes",
    StepKind.HOLD: "Ordered a hold on job {target}",
    StepKind.REBOOT: "Ordered a reboot of instance {target}",
    StepKind.REPLACE: "Ordered a replacement of instance {target}",
    StepKind.RETURN: "Ordered the return of {target} to Slurm",
    StepKind.ADD: "Ordered more instances for group {target}",
    StepKind.REMOVE: "Ordered the removal of instance {target}",
    StepKind.RESERVE: "Ordered other nodes for reservation {target}",
}

REMEDIES: Final[dict[Remedy, str]] = {
    Remedy.NONE: "nothing",
    Remedy.RESTART_JOB: "restart the job",
    Remedy.RESET_GPU: "reset the GPU",
    Remedy.REBOOT: "reboot",
    Remedy.REPLACE: "replace",
    Remedy.AWAIT: "wait for its successor",
    Remedy.ASK_HUMAN: "ask a person",
}


def sentence(start: str, why: str = "") -> str:
    """`start: why.`, with one full stop."""
    text = f"{start}: {why}" if why else start
    return text if text.endswith((".", "!", "?")) else text + "."


def outcome_text(outcome: Outcome | None) -> str:
    """What came back of a step, or that nothing did."""
    if outcome is None:
        return "no answer is on record, so hpctl looks before it repeats"
    said = " ".join(part for part in (outcome.code, outcome.detail) if part)
    match outcome.kind:
        case OutcomeKind.ACCEPTED:
            return f"accepted ({said})" if said else "accepted"
        case OutcomeKind.REJECTED:
            return f"refused{' for now' if outcome.transient else ''} ({said})"
        case OutcomeKind.AMBIGUOUS:
            return f"nobody can say whether it was taken ({said})"


def took(step: StepRecord) -> float | None:
    """Seconds between order and answer; None while there is no answer."""
    return None if step.resolved is None else (step.resolved - step.started).total_seconds()


def _order(kind: StepKind, target: str, attempt: int) -> str:
    again = f" (attempt {attempt})" if attempt > 1 else ""
    return ORDERS[kind].format(target=target) + again


def step_line(step: StepRecord) -> Line:
    """An order and what came of it."""
    seconds = took(step)
    after = "" if seconds is None else f" after {seconds:.2f} s"
    came = outcome_text(step.outcome)
    mark = Mark.DID
    if step.in_doubt or (step.outcome and step.outcome.kind is OutcomeKind.REJECTED):
        mark = Mark.TROUBLE
    text = f"{_order(step.kind, step.target, step.attempt)}: {came}{after}."
    return Line(step.started, text, mark)


SELF_EVIDENT: Final = frozenset({"jobs_gone", "queued", "finished"})
"""Signals whose reason only says the same again."""


def _why(move: Trail) -> str:
    return "" if move.signal in SELF_EVIDENT else move.why


def node_move(rec: NodeRecovery, move: Trail) -> Line:
    """A node recovery's move into another phase."""
    start, mark = NODE_SAYINGS[node_recovery.Signal(move.signal)]
    return Line(move.at, sentence(start.format(node=rec.node), _why(move)), mark)


def job_move(rec: JobRecovery, move: Trail) -> Line:
    """A job recovery's move into another phase."""
    start, mark = JOB_SAYINGS[job_recovery.Signal(move.signal)]
    text = start.format(job=f"Job {rec.attempt.job}")
    return Line(move.at, sentence(text, _why(move)), mark)


def finding_text(finding: Finding) -> str:
    """A finding in one line: what was seen, where, how often; not the raw evidence."""
    where = f" on {finding.device}" if finding.device else ""
    code = f" {finding.code}" if finding.code else ""
    detail = f" ({finding.detail})" if finding.detail else ""
    often = f", {finding.count} times" if finding.count > 1 else ""
    return f"{finding.check}{code}{where}: {finding.verdict}{detail}{often}"


def ladder_text(ladder: tuple[Remedy, ...]) -> str:
    """`reboot, then replace`."""
    return ", then ".join(REMEDIES[rung] for rung in ladder)


def _node_opened(rec: NodeRecovery) -> Line:
    asked = f"{rec.by} asked to" if rec.by else "hpctl decided to"
    plan = f"{asked} treat {rec.node} ({rec.rule}): {ladder_text(rec.ladder[rec.rung :])}"
    text = f"{rec.meaning}; {plan}" if rec.meaning else plan
    return Line(rec.opened, sentence(text[0].upper() + text[1:]), Mark.DECIDED)


def _job_opened(rec: JobRecovery) -> Line:
    job = f"Job {rec.attempt.job}" + (f" ({rec.name}, {rec.user})" if rec.name else "")
    start = f"{job} was hit by {rec.cause}" if rec.cause else f"{job} went wrong"
    return Line(rec.opened, sentence(start, rec.why), Mark.DECIDED)


def report_line(told: JobReported) -> Line:
    """What a job's supervisor told."""
    said = told.report
    who = f"The supervisor of job {said.job}"
    if said.trouble is None:
        return Line(told.at, sentence(f"{who} lives", said.why), Mark.SAW)
    did = f"wishes a {said.wish}" if said.wish else f"answered with {said.action}"
    what = f"{said.trouble.why}; {did}" + (f" ({said.why})" if said.why else "")
    return Line(told.at, sentence(f"{who} told of {said.trouble.kind}", what), Mark.TROUBLE)


def lines(rec: NodeRecovery | JobRecovery) -> tuple[Line, ...]:
    """The whole story in the order of time; on equal times, orders before what they caused."""
    opened = _node_opened(rec) if isinstance(rec, NodeRecovery) else _job_opened(rec)
    steps = [step_line(step) for step in rec.steps]
    if isinstance(rec, NodeRecovery):
        moves = [node_move(rec, move) for move in rec.trail]
    else:
        moves = [job_move(rec, move) for move in rec.trail]
    return (opened, *sorted([*steps, *moves], key=lambda line: line.at))


def headline(rec: NodeRecovery | JobRecovery) -> str:
    """The recovery in one sentence: what it treats, why, and where it stands."""
    if isinstance(rec, NodeRecovery):
        what = f"{rec.node}: {rec.meaning or rec.why or rec.rule}"
    else:
        named = f" ({rec.name})" if rec.name else ""
        by = ", ".join(rec.bad_nodes) or rec.cause
        went = f"hit by {by}" if rec.trouble is None else rec.trouble.why
        what = f"Job {rec.attempt.job}{named}, {went}"
    return f"{what}. {_standing(rec)}"


def _standing(rec: NodeRecovery | JobRecovery) -> str:
    last = rec.trail[-1].why if rec.trail else ""
    if not rec.ended:
        return f"In treatment: {rec.phase}."
    seconds = (rec.since - rec.opened).total_seconds()
    ends = {
        "returned": f"Back in service after {duration(seconds)}.",
        "resumed": _resumed(rec),
        "escalated": sentence("Waits for a person", last),
        "gave_up": sentence(_gave_up(rec), last),
        "held": sentence("Held", last),
        "cancelled": sentence("Cancelled", last),
    }
    return ends[rec.phase]


def _gave_up(rec: NodeRecovery | JobRecovery) -> str:
    again = bool(rec.trail) and rec.trail[-1].signal == job_recovery.Signal.FAILED_AGAIN
    return "Went wrong again, which is treated by itself" if again else "hpctl gave up"


def _resumed(rec: NodeRecovery | JobRecovery) -> str:
    """How long until it ran again; the time in which it proved itself is not waiting."""
    for move in rec.trail:
        if move.signal == job_recovery.Signal.WENT_ON:
            return sentence("Its own supervisor went on", move.why)
        if move.signal == job_recovery.Signal.RUNNING_SEEN:
            return f"Running again after {duration((move.at - rec.opened).total_seconds())}."
    return "It finished by itself."


def duration(seconds: float) -> str:
    """`0.4 s`, `41 s`, `3 min 5 s`, `2 h 4 min`, `3 d 2 h`: two units at most."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    for size, unit, small_size, small in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def event_line(event: Event, state: State) -> Line | None:
    """One journal event as a line, for a live narration; `state` has the event folded in.

    An order is told when it is given and again only where its answer is not a plain acceptance.
    """
    match event:
        case NodeRecoveryOpened():
            return _node_opened(state.nodes[event.recovery])
        case JobRecoveryOpened():
            return _job_opened(state.jobs[event.recovery])
        case SignalSeen():
            if event.recovery in state.nodes:
                node = state.nodes[event.recovery]
                return node_move(node, node.trail[-1])
            if event.recovery in state.changes:
                change = state.changes[event.recovery]
                return change_move(change, change.trail[-1])
            job = state.jobs[event.recovery]
            return job_move(job, job.trail[-1])
        case StepStarted():
            return Line(event.at, _order(event.step, event.target, event.attempt) + ".", Mark.DID)
        case StepResolved():
            return _answer(event)
        case HoldNoted():
            start = f"Held back: {event.target} ({event.rule}), by the gate {event.gate}"
            return Line(event.at, sentence(start, event.why), Mark.WAITS)
        case HoldLifted():
            return Line(event.at, f"No longer held back: {event.target}.", Mark.SAW)
        case RequestTaken():
            asked = f"{event.by or 'An operator'} asked: {event.verb} {event.target}".rstrip()
            mark = Mark.DID if event.ok else Mark.TROUBLE
            return Line(event.at, sentence(asked, event.answer), mark)
        case JobReported():
            return report_line(event)
        case ChangeOpened():
            return change_opened(event)
        case ConfigurationTaken():
            return Line(event.at, f"Configuration taken from {event.by}'s file.", Mark.SAW)
        case DaemonStarted():
            started = f"Daemon {event.version} started on {event.host}, mode {event.mode}."
            return Line(event.at, started, Mark.SAW)


def change_opened(event: ChangeOpened) -> Line:
    """A change of capacity that was decided on."""
    return Line(event.at, sentence(tell_change.opened(event), event.why), Mark.DECIDED)


def change_move(change: Change, move: Trail) -> Line:
    """A change's move into another phase."""
    ends = {Phase.DONE: Mark.DONE, Phase.CANCELLED: Mark.DONE, Phase.FAILED: Mark.TROUBLE}
    text = sentence(tell_change.moved(change.opened, move.signal), move.why)
    return Line(move.at, text, ends.get(Phase(move.phase), Mark.SAW))


def _answer(event: StepResolved) -> Line | None:
    if event.outcome.kind is OutcomeKind.ACCEPTED:
        return None
    text = f"The answer to {event.step}: {outcome_text(event.outcome)}"
    return Line(event.at, sentence(text), Mark.TROUBLE)
