"""What is left of a pickle that was skimmed: the wanted fields, and two kinds of nothing."""

from __future__ import annotations

from abc import abstractmethod

from hpctl.jobs.checkpoints.reasons import CannotTell


class Other:
    """A value that is not kept. `recalled`: mentioned again, so nobody knows what it was."""

    __slots__ = ("recalled",)

    def __init__(self, *, recalled: bool) -> None:
        self.recalled = recalled


OTHER, RECALLED = Other(recalled=False), Other(recalled=True)


class Saved:
    """The wanted fields of a dict, or of an object's state."""

    def __init__(self, fields: dict[str, object]) -> None:
        self._fields = fields

    def get(self, key: str) -> object:
        """None, True, False, an integer or a text; else something that is no value. None without
        it. Raises CannotTell where the pickle mentions a thing that it had before."""
        value = self._fields.get(key)
        if value is RECALLED:
            raise CannotTell(f"the pickle mentions what it has elsewhere for {key}")
        return value

    def integer(self, key: str) -> int | None:
        """The value for a key, where it is an integer (and no bool)."""
        value = self.get(key)
        return value if type(value) is int else None

    def inner(self, key: str) -> Saved | None:
        """The dict or object under a key."""
        value = self.get(key)
        return Saved(value) if isinstance(value, dict) else None


class Sink:
    """Takes the pairs of the wanted dict as they come."""

    @abstractmethod
    def add(self, values: list[object]) -> None:
        """The values of some of its pairs: an object's is a dict of its wanted fields."""
