"""A log rule's verdict as a trouble."""

from __future__ import annotations

from datetime import datetime

from hpctl.core.compat import UTC
from hpctl.core.trouble import Kind, Trouble
from hpctl.jobs.logs.engine import Verdict

KINDS = {
    "hang": Kind.HANG,
    "nan": Kind.NAN,
    "spike": Kind.SPIKE,
    "slow": Kind.SLOW,
    # A number past its threshold: the training operator calls that SLOW.
    "threshold": Kind.SLOW,
    "upload": Kind.UPLOAD,
}
"""`seen` is none of these: the line is there, which somebody wants to be told."""


def trouble(verdict: Verdict) -> Trouble | None:
    """The trouble that a rule saw; None where the rule only tells that a line is there."""
    kind = KINDS.get(verdict.what)
    if kind is None:
        return None
    return Trouble(
        kind=kind,
        at=datetime.fromtimestamp(verdict.at, UTC),
        why=f"log rule {verdict.rule!r}: {verdict.why}",
        signature=f"{verdict.what} {verdict.rule}",
        evidence=verdict.line,
    )
