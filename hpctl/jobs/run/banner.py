"""What the supervisor writes into the job's log: one line a thing, and a table at the end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from hpctl.core.hostlist import fold
from hpctl.core.model import NodeName
from hpctl.jobs.run.history import Ended, Record, Started

PREFIX = "hpctl: "
"""How each line begins; the log rules pass such lines over."""
WHY = 100


def stamp(at: datetime) -> str:
    """A time as the log rules read it."""
    return f"{at:%Y-%m-%dT%H:%M:%S}Z"


def started(
    at: datetime, attempt: int, nodes: Sequence[NodeName], spare: int, resume: str | None
) -> str:
    """The line before a step's own output."""
    spares = f" and {spare} spare" if spare else ""
    many = "node" if len(nodes) == 1 else "nodes"
    place = f"resuming from {resume}" if resume else "from the beginning"
    return (
        f"{PREFIX}{stamp(at)} attempt {attempt} on {len(nodes)} {many}{spares},"
        f" {fold(nodes)}, {place}"
    )


def said(at: datetime, text: str) -> str:
    """Any other line."""
    return f"{PREFIX}{stamp(at)} {' '.join(text.split())}"


def duration(seconds: float) -> str:
    """`3.2 s`, `4 min 10 s`, `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def summary(records: Sequence[Record]) -> list[str]:
    """All attempts of the job, of earlier runs too, as a table."""
    begun = [r for r in records if isinstance(r, Started)]
    ends = {r.attempt: r for r in records if isinstance(r, Ended)}
    rows = [("attempt", "started", "ran", "nodes", "from", "ended")]
    for start in begun:
        end = ends.get(start.attempt)
        ran = duration((end.at - start.at).total_seconds()) if end else "?"
        place = "the beginning" if start.resume is None else start.resume.rpartition("/")[2]
        why = end.why if end else "no end was written: the supervisor itself was lost"
        rows.append((str(start.attempt), stamp(start.at), ran, start.nodes, place, _short(why)))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [
        PREFIX + "  ".join([*(word.ljust(w) for word, w in zip(row, widths, strict=False)), row[5]])
        for row in rows
    ]


def _short(why: str) -> str:
    return why if len(why) <= WHY else why[: WHY - 3] + "..."
