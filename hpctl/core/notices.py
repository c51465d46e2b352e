"""What people are told: journal events as notices, an outbox of them, and messages. Pure.

A notice says what happened, what hpctl does, what a person has to do where one is needed, and the
one command to run next, in the words of `hpctl explain`. What is due goes out in groups: a mass
event is one message, and what a sink's rate does not allow is summed up in the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from hpctl.core import change, job_recovery
from hpctl.core.bounds import later, natural, printable, span
from hpctl.core.change import Change, ChangeOpened
from hpctl.core.hostlist import HostlistError, fold
from hpctl.core.journal import Event, HoldNoted, SignalSeen, State
from hpctl.core.model import JobId, NodeName, SchedulerView
from hpctl.core.node_recovery import NodeRecovery
from hpctl.core.plan import ESCALATED, GATE
from hpctl.core.plan_runs import HANG_GATE, OTHERS_GATE
from hpctl.core.policy import NoticeKind, Policy
from hpctl.core.timeline import Subject, awaited, headline, lifted_by, sentence

HOUR: Final = timedelta(hours=1)
"""What was sent is not sent again within it, and it is what a sink's rate is counted over."""
KEEP_S: Final = 3 * 86400.0
"""What is older is told nobody any more, in seconds."""
GATHER_S: Final = 1.5
"""How long an urgent notice, or a job's owner, waits for others of its kind, in seconds; other
notices wait for CALM_S."""
CALM_S: Final = 60.0
MOST: Final = 2000
"""Notices in the outbox, beside those that are urgent."""
NAMED: Final = 10
"""Notices of one message that are written out."""
MAX_LINE: Final = 500
"""Characters of a line of a message."""

_ENDS: Final[Mapping[str, NoticeKind]] = {
    "escalated": "escalated", "returned": "node_back", "resumed": "job_resumed",
    "held": "job_gave_up", "gave_up": "job_gave_up",
}  # fmt: skip
"""The ends of recoveries, by phase."""
_BY_GATE: Final[Mapping[str, NoticeKind]] = {
    "correlated": "mass_event", "budget": "budget", "launch_breaker": "breaker",
    GATE: "quarantined", HANG_GATE: "job_hung",
}  # fmt: skip
_PASSING: Final = frozenset({"stale_facts", "wrong_instance", "provider_acts", OTHERS_GATE})
"""Gates that pass by themselves within a reading of Slurm or of the cloud; and what others tell."""
_DOES: Final[Mapping[NoticeKind, str]] = {
    "escalated": "takes no further step on this node",
    "node_back": "has resumed the node; Slurm gives it work again",
    "job_resumed": "has nothing more to do for this job",
    "job_gave_up": "leaves the job to its owner",
    "job_hung": "goes on watching it",
    "spares_used_up": "keeps the next idle nodes of the group as spares",
    "standby_lost": "goes on; no other head node can take over",
    "quarantined": "leaves this one alone and treats all others",
}
_WAITS: Final = "waits, and goes ahead by itself once nothing blocks it"


class Notice(Struct, frozen=True):
    """One thing that happened. `person`: what a person has to do; empty where nobody is needed.

    `key`: what is told once an hour. `partitions`: the node's or the job's, empty where they are
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
        """Whether it waits neither for quiet hours to end nor for long."""
        return bool(self.person) and self.kind != "job_gave_up"


def unfolded(event: Event, state: State) -> bool:
    """Whether a state that another thread folds events into has not got this one yet."""
    if not isinstance(event, SignalSeen):
        return False
    rec = _subject(event, state)
    return rec is None or (event.at, event.signal) not in {(m.at, m.signal) for m in rec.trail}


def notice(event: Event, state: State, slurm: SchedulerView, policy: Policy) -> Notice | None:
    """What an event tells people; None for most. `state` has the event folded in."""
    match event:
        case SignalSeen():
            return _of_end(event, state, slurm, policy)
        case HoldNoted() if event.gate not in _PASSING:
            return _of_hold(event, slurm)
        case ChangeOpened(kind=change.Kind.SPARES, nodes=()) if policy.spares.get(event.group):
            group, show = event.group, "hpctl capacity"
            what = sentence(f"No spare is left in group {group}", event.why)
            return Notice("spares_used_up", group, group, event.at, what, show)
    return None


def _subject(event: SignalSeen, state: State) -> Subject | None:
    rid = event.recovery
    return state.nodes.get(rid) or state.jobs.get(rid) or state.changes.get(rid)


def _of_end(e: SignalSeen, state: State, slurm: SchedulerView, policy: Policy) -> Notice | None:
    rec = _subject(e, state)
    if rec is None or isinstance(rec, Change) or (rec.since, rec.ended) != (e.at, True):
        return None
    kind = _ENDS.get(rec.phase)
    if kind is None or e.signal == job_recovery.JobSignal.FAILED_AGAIN:
        return None  # of a run that failed again, the recovery of that run tells
    person = awaited(rec, policy).what if kind in ("escalated", "job_gave_up") else ""
    if isinstance(rec, NodeRecovery):
        about = _about(rec.node, slurm)
    else:
        about = {"partitions": tuple(filter(None, [rec.partition])), "job": rec.key}
    show = f"hpctl explain {rec.key}"
    return Notice(kind, str(rec.key), rec.id, e.at, headline(rec), show, person, **about)


def _of_hold(e: HoldNoted, slurm: SchedulerView) -> Notice:
    kind = _BY_GATE.get(e.gate, "held")
    # A mass event, a spent budget and an open breaker are one thing, however many nodes they hold.
    key = f"{e.gate} {e.rule}" if kind == "mass_event" else e.gate
    if kind in ("held", "quarantined", "job_hung"):
        key = f"{e.gate} {e.rule} {e.target}"
    person = ""
    if e.approvable or e.gate == "provider_auto_recovery":
        person = lifted_by(e).what
    elif e.rule == ESCALATED:
        person = "somebody to read the daemon's log, and to report the error"
    head = f"Job {e.target}" if kind == "job_hung" else f"{e.target} is held back"
    if kind == "job_hung":
        person = "the job's owner, to look at it and to cancel or requeue it"
    what, show = sentence(head, e.why), f"hpctl explain {e.target}"
    return Notice(kind, e.target, key, e.at, what, show, person, **_about(e.target, slurm))


def _about(target: str, slurm: SchedulerView) -> dict[str, Any]:
    if (job := slurm.jobs.get(JobId(natural(target)))) is not None:
        return {"partitions": (job.partition,), "job": job.id}
    node = slurm.nodes.get(NodeName(target))
    return {"partitions": node.partitions if node else ()}


# --- the outbox -------------------------------------------------------------------------------


class Posted(Struct, frozen=True):
    """A notice for a sink, since when, and when it was sent. `to`: whom alone it is for, an
    address that Slurm has; empty for everybody who reads the sink. `over`: since when it is too
    old, where it is urgent."""

    sink: str
    to: str
    notice: Notice
    at: datetime
    sent: datetime | None = None
    over: datetime | None = None

    @property
    def told(self) -> tuple[str, str, Notice]:
        """What, and to whom: the row, whatever became of it."""
        return self.sink, self.to, self.notice

    def looked_at(self, now: datetime) -> Posted | None:
        """The row as it stays, None where it leaves. The clock may have been set back: what was
        sent after now was sent now. Or forward: what is urgent is over for an hour first."""
        if self.sent:
            sent = min(self.sent, now)
            return replace(self, sent=sent) if now < sent + HOUR else None
        if now < later(self.at, KEEP_S):
            return replace(self, over=None)
        since = min(self.over or now, now)
        leaves = not self.notice.urgent or (self.over and now >= since + HOUR)
        return None if leaves else replace(self, over=since)


class Outbox(Struct, frozen=True):
    """All that waits and what was sent within the hour; `position`: the journal's event up to which
    people were told."""

    position: int
    posted: tuple[Posted, ...] = ()

    def add(self, position: int, fresh: Iterable[Posted], now: datetime) -> Outbox:
        """With more in it, unless it is there: each key is told a sink once an hour. What is over
        leaves; so does what is not urgent once there is too much."""
        kept = [p for row in self.posted if (p := row.looked_at(now))]
        sent = {_identity(p) for p in kept if p.sent}
        waits = {(*_identity(p), p.notice.target) for p in kept if not p.sent}
        for p in fresh:
            this = (*_identity(p), p.notice.target)
            if this not in waits and this[:-1] not in sent:
                waits.add(this)
                if p.notice.urgent or len(kept) < MOST:
                    kept.append(p)
        return Outbox(position, tuple(kept))

    def mark(self, group: Sequence[Posted], sent: datetime) -> Outbox:
        """With a group sent, as one message."""
        told = {p.told for p in group}
        posted = (
            replace(p, sent=sent) if p.told in told and not p.sent else p for p in self.posted
        )
        return Outbox(self.position, tuple(posted))


def _identity(posted: Posted) -> tuple[str, ...]:
    return posted.sink, posted.to, posted.notice.kind, posted.notice.key


def due(
    posted: Sequence[Posted], per_hour: int, now: datetime, *, quiet: bool = False
) -> tuple[Posted, ...]:
    """What goes out now as one message to one reader; nothing while all of it waits.

    Half of an hour's messages go out as they come, one a kind. The others are spread over the
    hour, and each sums up all that waits. While it is `quiet` only what is urgent goes out.
    What was sent after now, before the clock was set back, counts no more.
    """
    waiting = [p for p in posted if not p.sent and (p.notice.urgent or not quiet)]
    waiting.sort(key=lambda p: not p.notice.urgent)
    soon = (GATHER_S if p.notice.urgent or p.to else CALM_S for p in waiting)
    ripe = [p for p, wait_s in zip(waiting, soon, strict=True) if abs(now - p.at) >= span(wait_s)]
    sent = {p.sent for p in posted if p.sent and p.sent <= now < p.sent + HOUR}
    burst = per_hour // 2
    if not ripe or len(sent) >= per_hour:
        return ()
    if len(sent) < burst:
        return tuple(p for p in waiting if p.notice.kind == ripe[0].notice.kind)
    paced = now - max(sent) >= HOUR / (per_hour - burst)
    return tuple(waiting) if paced else ()


class SinkMessage(Struct, frozen=True):
    """Plain text for a sink."""

    title: str
    body: str


def message(cluster: str, notices: Sequence[Notice]) -> SinkMessage:
    """One message of one notice or of several, of which the first NAMED are written out."""
    first, kinds = notices[0], Counter(n.kind.replace("_", " ") for n in notices)
    one_kind, needed = len(kinds) == 1, [n.person for n in notices if n.person]
    title = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    lines = [n.what for n in notices[:NAMED]]
    if one_kind:
        title = f"{first.kind.replace('_', ' ')}: {_targets(notices)}"
        lines.append(f"hpctl {_DOES.get(first.kind, _WAITS)}.")
    if len(notices) > NAMED:
        lines.insert(NAMED, f"and {len(notices) - NAMED} more: hpctl recoveries --all")
    lines.append(f"A person is needed: {needed[0]}." if needed else "Nobody has to do anything.")
    lines.append(f"Next: {first.next if one_kind else 'hpctl status'}")
    return SinkMessage(_line(f"[{cluster}] {title}", 150), "\n".join(_line(line) for line in lines))


def _targets(notices: Sequence[Notice]) -> str:
    names = list(dict.fromkeys(n.target for n in notices))
    count = f"{len(names)}, " if len(names) > 1 else ""
    try:
        return count + fold(names)
    except HostlistError:
        return count + ", ".join(names)


_NO_MENTION: Final = str.maketrans({"@": "\uff20", "<": "\u2039", ">": "\u203a"})


def _line(text: str, most: int = MAX_LINE) -> str:
    """One line that no terminal obeys and that calls nobody in a chat: users wrote parts of it."""
    text = printable(" ".join(text.split())).translate(_NO_MENTION)
    return text if len(text) <= most else text[: most - 3] + "..."
