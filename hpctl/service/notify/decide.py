"""What users are notified of: journal events as notices, an outbox of them, and messages. Pure.

A notice says what happened, what hpctl does, what a person has to do where one is needed, and the
one command to run next, in the words of `hpctl explain`. What is due goes out in groups: a mass
event is one message, and what a sink's rate does not allow is summed up in the next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from hpctl.engine.journal.events import (
    LIFTS_PAUSE,
    PAUSE_ENDED,
    Event,
    GateBlocked,
    RequestTaken,
    SignalSeen,
)
from hpctl.engine.journal.state import EngineState
from hpctl.engine.plan import ESCALATED, GATE
from hpctl.engine.timeline import (
    Subject,
    describe_gate_block_release,
    find_next_awaited_event,
    format_recovery_or_change_headline,
    format_sentence_with_reason,
)
from hpctl.toolkit.bounds import parse_count
from hpctl.vocabulary import change, job_recovery
from hpctl.vocabulary.change import ChangeOpened, ClusterChange
from hpctl.vocabulary.evidence import parse_stored_evidence_archive
from hpctl.vocabulary.hang import ENDED_GATE, HANG_GATE, OTHERS_GATE
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.pause import Pause
from hpctl.vocabulary.policy import NoticeKind, RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SchedulerView

_ENDS: Final[Mapping[str, NoticeKind]] = {
    "escalated": "escalated", "returned": "node_back", "resumed": "job_resumed",
    "held": "job_gave_up", "gave_up": "job_gave_up",
}  # fmt: skip
"""The ends of recoveries, by phase."""


_BY_GATE: Final[Mapping[str, NoticeKind]] = {
    "correlated": "mass_event", "budget": "budget", "drain_budget": "budget",
    "launch_breaker": "breaker", GATE: "quarantined", HANG_GATE: "job_hung",
}  # fmt: skip


_PASSING: Final = frozenset(
    {"stale_facts", "wrong_instance", "provider_acts", "maintenance", OTHERS_GATE}
)
"""Gates that pass by themselves within a reading of Slurm or of the cloud, or with an admin's own
reservation; and what others tell."""


NOTICE_EFFECTS: Final[Mapping[NoticeKind, str]] = {
    "escalated": "takes no further step on this node",
    "node_back": "has resumed the node; Slurm gives it work again",
    "job_resumed": "has nothing more to do for this job",
    "job_gave_up": "leaves the job to its owner",
    "job_preempted": "leaves the job to Slurm and counts no restart",
    "job_hung": "keeps watching it",
    "spares_used_up": "keeps the next idle nodes of the group as spares",
    "standby_lost": "continues; no other head node can take over",
    "quarantined": "leaves this one alone and treats all others",
    "paused": "opens nothing and takes no step while a pause is in force",
}


WAITS_TEXT: Final = "waits, and continues automatically once nothing blocks it"


class Notice(Struct, frozen=True):
    """One thing that happened. `person`: what a person has to do; empty where no one is needed.

    `key`: what is sent once an hour. `partitions`: the node's or the job's, empty where they are
    not known. `job`: the job that it is about.
    """

    kind: NoticeKind
    target: str
    key: str
    at: datetime
    what: str
    next: str
    person: str = ""
    partitions: tuple[str, ...] = ()
    job: JobId | None = None

    @property
    def urgent(self) -> bool:
        """Return whether it waits neither for quiet hours to end nor for long."""
        return bool(self.person) and self.kind != "job_gave_up"


def is_event_missing_from_state(event: Event, state: EngineState) -> bool:
    """Return whether a state that another thread folds events into has not got this one yet."""
    if not isinstance(event, SignalSeen):
        return False
    rec = _find_event_recovery(event, state)
    return rec is None or (event.at, event.signal) not in {(m.at, m.signal) for m in rec.trail}


def make_event_notice(
    event: Event, state: EngineState, slurm: SchedulerView, policy: RecoveryPolicy
) -> Notice | None:
    """Return what an event tells people; None for most. `state` has the event folded in."""
    match event:
        case SignalSeen():
            return _make_recovery_end_notice(event, state, slurm, policy)
        case GateBlocked() if event.gate not in _PASSING:
            return _make_gate_blocked_notice(event, slurm)
        case RequestTaken(ok=True) if event.verb in _OF_PAUSES:
            return _make_pause_notice(event)
        case ChangeOpened(kind=change.ChangeKind.SPARES, nodes=()) if policy.spares.get(
            event.group
        ):
            group, show = event.group, "hpctl cluster capacity"
            what = format_sentence_with_reason(f"No spare is left in group {group}", event.why)
            return Notice("spares_used_up", group, group, event.at, what, show)
    return None


_OF_PAUSES: Final = ("pause", PAUSE_ENDED, *LIFTS_PAUSE)


def _make_pause_notice(e: RequestTaken) -> Notice:
    """Tell of a pause, who asked for it, why and until when; and of its end."""
    pause = Pause(e.target, e.by, e.at, e.why, e.until)
    if e.verb == "pause":
        text = pause.text if pause.scope else f"the cluster is {pause.text}"
    elif e.verb == PAUSE_ENDED:
        text = e.answer
    else:
        text = f"{e.by} lifted {'every pause' if pause.whole else f'the pause of {pause.what}'}"
    key = f"{e.verb} {e.target} {e.at}"
    return Notice(
        "paused", pause.what, key, e.at, format_sentence_with_reason(text), "hpctl status"
    )


def _find_event_recovery(event: SignalSeen, state: EngineState) -> Subject | None:
    rid = event.recovery
    return state.nodes.get(rid) or state.jobs.get(rid) or state.changes.get(rid)


def _make_recovery_end_notice(
    e: SignalSeen, state: EngineState, slurm: SchedulerView, policy: RecoveryPolicy
) -> Notice | None:
    rec = _find_event_recovery(e, state)
    if rec is None or isinstance(rec, ClusterChange) or (rec.since, rec.ended) != (e.at, True):
        return None
    kind = _ENDS.get(rec.phase)
    if isinstance(rec, JobRecovery) and rec.note:
        kind = "job_preempted"
    if isinstance(rec, NodeRecovery) and (
        rec.is_for_capacity_change or _has_node_returned_from_maintenance(rec)
    ):
        return None
    if kind is None or e.signal == job_recovery.JobRecoverySignal.FAILED_AGAIN:
        return None  # of a run that failed again, the recovery of that run tells
    person = (
        find_next_awaited_event(rec, policy).what if kind in ("escalated", "job_gave_up") else ""
    )
    if isinstance(rec, NodeRecovery):
        about = _make_notice_target_fields(rec.node, slurm)
    else:
        about = {"partitions": tuple(filter(None, [rec.partition])), "job": rec.key}
    target = rec.node if isinstance(rec, NodeRecovery) else rec.shown
    show = f"hpctl explain {target}"
    what = format_recovery_or_change_headline(rec) + _describe_evidence_location(rec)
    return Notice(kind, target, rec.id, e.at, what, show, person, **about)


def _describe_evidence_location(rec: NodeRecovery | JobRecovery) -> str:
    """Return where the evidence of a node is that was kept before its remedy; "" for none."""
    if not isinstance(rec, NodeRecovery) or rec.evidence is None:
        return ""
    archive = parse_stored_evidence_archive(rec.evidence.why)
    return f" Evidence: {archive.path} (`hpctl evidence case {rec.id}`)." if archive else ""


def _has_node_returned_from_maintenance(rec: NodeRecovery) -> bool:
    """Return whether a node serves again after a maintenance window, as planned."""
    return rec.is_for_maintenance and rec.phase is NodeRecoveryPhase.RETURNED


def _make_gate_blocked_notice(e: GateBlocked, slurm: SchedulerView) -> Notice:
    kind = _BY_GATE.get(e.gate, "held")
    # A mass event, a spent budget and an open breaker are one thing, however many nodes they hold.
    key = f"{e.gate} {e.rule}" if kind == "mass_event" else e.gate
    if kind in ("held", "quarantined", "job_hung"):
        key = f"{e.gate} {e.rule} {e.target}"
    person = ""
    if e.approvable or e.gate == "provider_auto_recovery":
        person = describe_gate_block_release(e).what
    elif e.rule == ESCALATED:
        person = "an administrator to read the daemon's log, and to report the error"
    head = f"{e.shown} is held back"
    if kind == "job_hung" or e.gate == ENDED_GATE:
        head = f"Job {e.shown}"
    if kind == "job_hung":
        person = "the job's owner, to look at it and to cancel or requeue it"
    what, show = format_sentence_with_reason(head, e.why), f"hpctl explain {e.shown}"
    return Notice(
        kind, e.shown, key, e.at, what, show, person, **_make_notice_target_fields(e.target, slurm)
    )


def _make_notice_target_fields(target: str, slurm: SchedulerView) -> dict[str, Any]:
    job = slurm.jobs.get(JobId(parse_count(target)))
    if job is not None:
        return {"partitions": (job.partition,), "job": job.id}
    node = slurm.nodes.get(NodeName(target))
    return {"partitions": node.partitions if node else ()}
