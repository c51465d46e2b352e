"""Why a step could not do its work, in one line that an operator can act on."""

from __future__ import annotations


class Failure(Exception):
    """A step, or what comes before the steps, failed; the text is one line."""


class No(str):
    """A "no" with its reason, for `applies`: false, and says why."""

    def __bool__(self) -> bool:
        return False
