"""What a check says, and how the checks of one family are put together.

A judge is a pure function: what is wanted and what was found out go in, verdicts come out. It
says nothing where it does not apply, and OK where it has looked and is content. Nobody but the
gathers asks AWS anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpctl.core.compat import StrEnum

if TYPE_CHECKING:
    from hpctl.clusters.validate.facts import Facts
    from hpctl.clusters.validate.wanted import Wanted

Place = tuple[str | int, ...]
"""Where a thing stands in the CreateCluster request: `("InstanceGroups", 1, "ExecutionRole")`."""


class Level(StrEnum):
    """Worst last. UNKNOWN is neither: nobody could be asked."""

    OK = "OK"
    UNKNOWN = "UNKNOWN"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a judge says of one place."""

    level: Level
    place: Place
    what: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding with the check that made it."""

    family: str
    check: str
    level: Level
    place: Place
    what: str
    mend: str = ""


Judge = Callable[["Wanted", "Facts"], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Check:
    """One question. `asks` is its line in the documentation."""

    id: str
    asks: str
    judge: Judge


@dataclass(frozen=True, slots=True)
class Family:
    """Checks that stand on the same facts. `needs` names the parts of `Facts` that they read."""

    name: str
    about: str
    needs: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def offline(self) -> bool:
        """Whether no credentials are needed."""
        return not set(self.needs) - {"model", "scripts"}

    def verdicts(self, wanted: Wanted, facts: Facts) -> Iterator[Verdict]:
        """What every check says, in the order of the checks."""
        for check in self.checks:
            for found in check.judge(wanted, facts):
                yield Verdict(self.name, check.id, found.level, found.place, found.what, found.mend)


def ok(what: str, place: Place = ()) -> Finding:
    """Looked at, and as it should be."""
    return Finding(Level.OK, place, what)


def warn(place: Place, what: str, mend: str) -> Finding:
    """Works, or may work, but not as its author thinks."""
    return Finding(Level.WARN, place, what, mend)


def fail(place: Place, what: str, mend: str) -> Finding:
    """The service refuses it, or the cluster comes up broken."""
    return Finding(Level.FAIL, place, what, mend)


def unknown(place: Place, unanswered: Unanswered) -> Finding:
    """A call failed."""
    return Finding(Level.UNKNOWN, place, f"cannot tell: {unanswered.why}", unanswered.mend)


def settled(found: Iterable[Finding], content: str, place: Place = ()) -> Iterator[Finding]:
    """Each finding, or OK with `content` where there is none."""
    nothing = True
    for one in found:
        nothing = False
        yield one
    if nothing:
        yield ok(content, place)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A call that failed, in the place of its answer."""

    why: str
    mend: str = ""
