"""What came back from an attempted effect."""

from __future__ import annotations

from msgspec import Struct

from hpctl.toolkit.compat import StrEnum


class OutcomeKind(StrEnum):
    """How one call on one target ended, classified once, at the boundary."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    AMBIGUOUS = "ambiguous"


class Outcome(Struct, frozen=True):
    """What a port answered for one target. ACCEPTED is not *done*: done is observed.

    `code` is the system's own word; `transient`: the same call may succeed later.
    """

    kind: OutcomeKind
    code: str = ""
    detail: str = ""
    transient: bool = False

    @classmethod
    def accepted(cls, detail: str = "") -> Outcome:
        """The system took the order."""
        return cls(OutcomeKind.ACCEPTED, detail=detail)

    @classmethod
    def rejected(cls, code: str, detail: str = "", *, transient: bool = False) -> Outcome:
        """The system certainly did not take the order."""
        return cls(OutcomeKind.REJECTED, code, detail, transient)

    @classmethod
    def ambiguous(cls, code: str, detail: str = "") -> Outcome:
        """Return the outcome of an order that may or may not be taken: observe before repeating."""
        return cls(OutcomeKind.AMBIGUOUS, code, detail)


NOT_LEADING = Outcome.rejected("unavailable", "this daemon is no longer the leader", transient=True)
"""The answer to an order that was not sent, because another daemon may lead by now."""
HELD = "held"
"""The code of an order to start a job that a person, or Slurm, holds."""
