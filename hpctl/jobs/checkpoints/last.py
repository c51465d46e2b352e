"""The newest whole checkpoint under a directory, chosen by what the files prove.

Never by a name, a modification time or a `latest` pointer: each of those can be newer than the
data. What is looked at, and how a claim is proved, is in `survey`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctl.jobs.checkpoints import nvrx
from hpctl.jobs.checkpoints.claim import step_in
from hpctl.jobs.checkpoints.files import Place
from hpctl.jobs.checkpoints.remote import Remote
from hpctl.jobs.checkpoints.survey import (
    FORMATS,
    Candidate,
    Checkpoint,
    PassedOver,
    claim_of,
    proved,
    survey,
)

__all__ = [
    "FORMATS",
    "Checkpoint",
    "PassedOver",
    "Search",
    "Tier",
    "Unseen",
    "claim_of",
    "every",
    "judge",
    "last_complete",
    "proved",
    "tiers_of",
]

OWN_FORMAT = (
    "to have hpctl resume from checkpoints in a format of your own, save them with the file that"
    " `hpctl checkpoint helper` prints"
)
_OWN_DISK = "on this node's own disk, which the job's other nodes cannot read"


@dataclass(frozen=True, slots=True)
class Tier:
    """A place to look in. `local`: on this node's own disk, which other nodes cannot read."""

    place: Place
    local: bool = False


@dataclass(frozen=True, slots=True)
class Unseen:
    """A tier that could not be looked at: there may be a newer checkpoint in it."""

    place: Place | str
    why: str


def tiers_of(
    texts: Iterable[str], place: Callable[[str], Place]
) -> tuple[list[Tier], list[Unseen]]:
    """Places as a person names them, the nearest kind first: `local:DIR`, DIR, `s3://...`.

    The second are those of which `place` raises OSError: nobody can look at them.
    """
    kinds: dict[str, list[Tier]] = {"local": [], "shared": [], "s3": []}
    unseen = []
    for text in dict.fromkeys(texts):
        local = text.startswith("local:")
        kind = "local" if local else "s3" if text.startswith("s3://") else "shared"
        try:
            kinds[kind].append(Tier(place(text.removeprefix("local:")), local))
        except OSError as error:
            unseen.append(Unseen(text, _why(error)))
    return [tier for each in kinds.values() for tier in each], unseen


@dataclass(frozen=True, slots=True)
class Search:
    """What was found. `passed_over` holds what is newer than `found`, and what has no step."""

    found: Checkpoint | None
    passed_over: tuple[PassedOver, ...] = ()
    unseen: tuple[Unseen, ...] = ()

    @property
    def verdict(self) -> str:
        """`found`; `none`: nothing here claims to be a checkpoint; `incomplete`: some do, and
        each is proved not whole; `unreadable`: none found, and the storage failed on some."""
        if self.found is not None:
            return "found"
        if self.unseen or any(p.unreadable for p in self.passed_over):
            return "unreadable"
        return "incomplete" if any(p.claimed for p in self.passed_over) else "none"

    @property
    def unknown(self) -> str:
        """`11 files in DIR, no known format`, and what to do, where there is nothing better; the
        newest by name where there are several."""
        odd = [p for p in self.passed_over if p.holds]
        if self.verdict != "none" or not odd:
            return ""
        newest = max(odd, key=lambda each: (step_in(each.path.name) or -1, str(each.path)))
        others = f" (and {len(odd) - 1} more)" if odd[1:] else ""
        return f"{newest.holds} in {newest.path}{others}, no known format; {OWN_FORMAT}"


def last_complete(
    places: Place | Sequence[Tier],
    *,
    deep: bool = False,
    nodes: int = 1,
    world_size: int | None = None,
    bring: Callable[[Checkpoint], Checkpoint | PassedOver] | None = None,
) -> Search:
    """The newest whole checkpoint among the immediate children of a place, or of several tiers.

    Of two of the same step the one in the earlier tier is taken: name the nearest first. `nodes`
    is how many the job has: on more than one, what lies in a local tier is passed over.
    `world_size` is the number of ranks for formats that do not record it (NVRx local). `bring`
    may put another in the place of the one that was chosen (a copy, say), or refuse it.

    I/O: one scan, one manifest a sub-directory, and one stat a file of each candidate from the
    newest down to the first whole one (with `deep`: their bytes). Raises OSError where a single
    place cannot be read, FileNotFoundError included: that is never "no checkpoint". Of several
    tiers it is told in `unseen`, and the others count.
    """
    if isinstance(places, Path | Remote):
        candidates, passed = survey(places, world_size)
        unseen: list[Unseen] = []
    else:
        candidates, passed, unseen = _surveys(places, nodes, world_size)
    for candidate in candidates:
        result = proved(candidate, deep=deep)
        if isinstance(result, Checkpoint) and bring is not None:
            result = bring(result)
        if isinstance(result, Checkpoint):
            return Search(result, tuple(passed), tuple(unseen))
        passed.append(result)
    return Search(None, tuple(passed), tuple(unseen))


def _surveys(
    tiers: Sequence[Tier], nodes: int, world_size: int | None
) -> tuple[list[Candidate], list[PassedOver], list[Unseen]]:
    candidates: list[Candidate] = []
    passed: list[PassedOver] = []
    unseen: list[Unseen] = []
    for tier in tiers:
        try:
            claiming, others = survey(tier.place, world_size)
        except FileNotFoundError as error:
            # A node's own disk begins empty: a replaced node has not even the directory.
            if not tier.local:
                unseen.append(Unseen(tier.place, _why(error)))
            continue
        except OSError as error:
            unseen.append(Unseen(tier.place, _why(error)))
            continue
        if tier.local and nodes > 1:
            # The program that wrote NVRx's asks all nodes by itself: no reason to stop a job.
            others += [
                PassedOver(c.path, _OWN_DISK, claimed=c.format != nvrx.FORMAT, format=c.format)
                for c in claiming
            ]
            claiming = []
        candidates += claiming
        passed += others
    # A stable sort, also when reversed: of one step the nearer tier's come first.
    candidates.sort(key=_step, reverse=True)
    return candidates, passed, unseen


def _step(candidate: Candidate) -> int:
    return -1 if candidate.claim.step is None else candidate.claim.step


def _why(error: OSError) -> str:
    return str(error.strerror or error)


def every(
    directory: Place, *, deep: bool = False, world_size: int | None = None
) -> list[Checkpoint | PassedOver]:
    """All of them, newest first, each proved or with its defect. Raises as last_complete."""
    candidates, passed = survey(directory, world_size)
    return [proved(candidate, deep=deep) for candidate in candidates] + [*passed]


def judge(
    path: Place, *, deep: bool = False, world_size: int | None = None
) -> Checkpoint | PassedOver:
    """One checkpoint, directory or file: proved whole, or what is wrong with it."""
    candidate = claim_of(path, world_size)
    return candidate if isinstance(candidate, PassedOver) else proved(candidate, deep=deep)
