"""The outbox of notices, and the messages that go out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hpctl.service.notify.decide import NOTICE_EFFECTS, WAITS_TEXT, Notice
from hpctl.toolkit.bounds import add_seconds_within_bounds, clamp_duration, make_printable
from hpctl.toolkit.hostlist import HostlistError, fold_hostlist

HOUR: Final = timedelta(hours=1)
"""What was sent is not sent again within it, and it is what a sink's rate is counted over."""


KEEP_S: Final = 3 * 86400.0
"""What is older is no longer sent, in seconds."""


GATHER_S: Final = 1.5
"""How long an urgent notice, or a job's owner, waits for others of its kind, in seconds; other
notices wait for CALM_S."""


CALM_S: Final = 60.0


MOST: Final = 2000
"""Notices in the outbox, beside those that are urgent."""


MOST_OF_OWNER: Final = 100
"""Notices that wait for the addresses of one job owner: further ones are dropped."""


KEPT_OF_OWNER: Final = 500
"""Notices in the outbox for the addresses of one job owner, with those of the last hour."""


NAMED: Final = 10
"""Notices of one message that are written out."""


MAX_LINE: Final = 500
"""Characters of a line of a message."""


Reader = tuple[str, str]
"""An address and the job owner who named it, both empty for all who read a sink."""


class OutboxEntry(Struct, frozen=True):
    """A notice for a sink, since when, and when it was sent. `to`: whom alone it is for, an
    address that Slurm has; empty for all who read the sink. `over`: since when it is too
    old, where it is urgent. `owner`: the user who named that address."""

    sink: str
    to: str
    notice: Notice
    at: datetime
    sent: datetime | None = None
    over: datetime | None = None
    owner: str = ""

    @property
    def reader(self) -> Reader:
        """Return who reads it: another owner may name the same address."""
        return self.to, self.owner

    @property
    def row(self) -> tuple[str, Reader, Notice]:
        """What, and to whom: the row, whatever became of it."""
        return self.sink, self.reader, self.notice

    def looked_at(self, now: datetime) -> OutboxEntry | None:
        """Return the row as it stays, None where it leaves. The clock may have been set back: what
        was sent after now was sent now. Or forward: what is urgent is over for an hour first."""
        if self.sent:
            sent = min(self.sent, now)
            return replace(self, sent=sent) if now < sent + HOUR else None
        if now < add_seconds_within_bounds(self.at, KEEP_S):
            return replace(self, over=None)
        since = min(self.over or now, now)
        leaves = not self.notice.urgent or (self.over and now >= since + HOUR)
        return None if leaves else replace(self, over=since)


class Outbox(Struct, frozen=True):
    """All that waits and what was sent within the hour; `position`: the journal's event up to which
    users were notified."""

    position: int
    posted: tuple[OutboxEntry, ...] = ()

    def add(self, position: int, fresh: Iterable[OutboxEntry], now: datetime) -> Outbox:
        """Add notices, unless they are there: each key goes to a sink once an hour. What is over
        leaves; so does what is not urgent once there is too much, and what is for the addresses of
        one owner."""
        kept = [p for row in self.posted if (p := row.looked_at(now))]
        of_owners = Counter((p.sink, p.owner) for p in kept if p.to)
        waiting_of_owners = Counter((p.sink, p.owner) for p in kept if p.to and not p.sent)
        sent = {_make_notice_deduplication_key(p) for p in kept if p.sent}
        waits = {(*_make_notice_deduplication_key(p), p.notice.target) for p in kept if not p.sent}
        for p in fresh:
            this = (*_make_notice_deduplication_key(p), p.notice.target)
            if this not in waits and this[:-1] not in sent:
                waits.add(this)
                owner = (p.sink, p.owner)
                is_over = of_owners[owner] >= KEPT_OF_OWNER
                if p.to and (is_over or waiting_of_owners[owner] >= MOST_OF_OWNER):
                    continue
                of_owners[owner] += 1
                waiting_of_owners[owner] += 1
                if p.notice.urgent or len(kept) < MOST:
                    kept.append(p)
        return Outbox(position, tuple(kept))

    def mark(self, group: Sequence[OutboxEntry], sent: datetime) -> Outbox:
        """With a group sent, as one message."""
        rows = {p.row for p in group}
        posted = (replace(p, sent=sent) if p.row in rows and not p.sent else p for p in self.posted)
        return Outbox(self.position, tuple(posted))


def _make_notice_deduplication_key(posted: OutboxEntry) -> tuple[str, ...]:
    return posted.sink, *posted.reader, posted.notice.kind, posted.notice.key


def select_due_notices(
    posted: Sequence[OutboxEntry], per_hour: int, now: datetime, *, quiet: bool = False
) -> tuple[OutboxEntry, ...]:
    """Return what goes out now as one message to one reader; nothing while all of it waits.

    Half of an hour's messages go out as they come, one a kind. The others are spread over the
    hour, and each sums up all that waits. While it is `quiet` only what is urgent goes out.
    What was sent after now, before the clock was set back, no longer counts.
    """
    waiting = [p for p in posted if not p.sent and (p.notice.urgent or not quiet)]
    waiting.sort(key=lambda p: not p.notice.urgent)
    soon = (GATHER_S if p.notice.urgent or p.to else CALM_S for p in waiting)
    ripe = [
        p
        for p, wait_s in zip(waiting, soon, strict=True)
        if abs(now - p.at) >= clamp_duration(wait_s)
    ]
    sent = {p.sent for p in posted if p.sent and p.sent <= now < p.sent + HOUR}
    burst = per_hour // 2
    if not ripe or len(sent) >= per_hour:
        return ()
    if len(sent) < burst:
        return tuple(p for p in waiting if p.notice.kind == ripe[0].notice.kind)
    paced = now - max(sent) >= HOUR / (per_hour - burst)
    return tuple(waiting) if paced else ()


def find_owners_at_message_limit(
    posted: Sequence[OutboxEntry], per_hour: int, now: datetime
) -> set[str]:
    """Return the job owners to whose addresses so many messages went within the hour. A row of a
    release that noted no owner counts for its address."""
    sent = {
        (p.owner or p.to, p.to, p.sent)
        for p in posted
        if p.to and p.sent and p.sent <= now < p.sent + HOUR
    }
    count = Counter(owner for owner, _, _ in sent)
    return {owner for owner, number in count.items() if number >= per_hour}


class NotificationMessage(Struct, frozen=True):
    """Plain text for a sink."""

    title: str
    body: str


def compose_sink_message(cluster: str, notices: Sequence[Notice]) -> NotificationMessage:
    """Return one message of one notice or of several, of which the first NAMED are written out."""
    first, kinds = notices[0], Counter(n.kind.replace("_", " ") for n in notices)
    one_kind, needed = len(kinds) == 1, [n.person for n in notices if n.person]
    title = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    lines = [n.what for n in notices[:NAMED]]
    if one_kind:
        title = f"{first.kind.replace('_', ' ')}: {_format_notice_targets(notices)}"
        lines.append(f"hpctl {NOTICE_EFFECTS.get(first.kind, WAITS_TEXT)}.")
    if len(notices) > NAMED:
        lines.insert(NAMED, f"and {len(notices) - NAMED} more: hpctl recoveries --all")
    lines.append(f"A person is needed: {needed[0]}." if needed else "No action is needed.")
    lines.append(f"Next: {first.next if one_kind else 'hpctl status'}")
    return NotificationMessage(
        _sanitize_message_line(f"[{cluster}] {title}", 150),
        "\n".join(_sanitize_message_line(line) for line in lines),
    )


def _format_notice_targets(notices: Sequence[Notice]) -> str:
    names = list(dict.fromkeys(n.target for n in notices))
    count = f"{len(names)}, " if len(names) > 1 else ""
    try:
        return count + fold_hostlist(names)
    except HostlistError:
        return count + ", ".join(names)


_NO_MENTION: Final = str.maketrans({"@": "\uff20", "<": "\u2039", ">": "\u203a"})


def _sanitize_message_line(text: str, most: int = MAX_LINE) -> str:
    """Return one line without control characters and chat mentions: users wrote parts of it."""
    text = make_printable(" ".join(text.split())).translate(_NO_MENTION)
    return text if len(text) <= most else text[: most - 3] + "..."
