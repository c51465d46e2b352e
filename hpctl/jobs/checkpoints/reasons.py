"""Why something is no whole checkpoint: a returned value, or raised within a proof."""

from __future__ import annotations


class Defect(str):
    """Why something is not a whole checkpoint, in one line for a person."""

    __slots__ = ()


class NotWhole(Exception):
    """Raised within a proof: what keeps a checkpoint from being whole, with the file's name."""


class Missing(NotWhole):
    """A file is not there."""


class Unfinished(NotWhole):
    """What the writer writes last is not there: the save has not ended, or never did."""


class CannotTell(NotWhole):
    """It may be whole, and nothing that hpctl reads proves it: it counts as unreadable."""


class TooLarge(CannotTell):
    """A file is larger than hpctl reads."""
