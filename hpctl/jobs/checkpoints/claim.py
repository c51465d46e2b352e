"""What a directory or file claims to be, and the shape of a format that can prove it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hpctl.jobs.checkpoints.files import Defect, Place, Remote, Unfinished, names_in

_STEP = re.compile(r"(?:step|iter|iteration|checkpoint|ckpt)[-_=]?(\d{1,18})(?!\d)")
_TRAILING = re.compile(r"(?<!\d)(\d{1,18})(?:\.\w+)?$")


@dataclass(frozen=True, slots=True)
class Listing:
    """One candidate as a single listing shows it. `names` is None for a file."""

    path: Place
    names: frozenset[str] | None
    world_size: int | None = None
    """How many ranks there were, where somebody says so: not every format records it."""

    def has(self, name: str) -> bool:
        """Whether the listing shows this name."""
        return self.names is not None and name in self.names


@dataclass(frozen=True, slots=True)
class Claim:
    """What a candidate says of itself, before anything is proved.

    `step` is None where neither files nor name have it: such a one is older than all that do.
    `world_size` is None where the files do not record it.
    """

    step: int | None
    world_size: int | None
    prove: Callable[[bool], Defect | None]
    """`prove(deep)`: the first defect, or None where it is whole. Raises NotWhole, OSError."""
    digests: bool = True
    """Whether the format has checksums at all that `deep` could compare."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way to lay out a checkpoint.

    `claim(layout)` is None where the candidate is none of this format's, a Defect where it is
    but says nothing usable. Raises NotWhole, OSError.
    """

    name: str
    claim: Callable[[Listing], Claim | Defect | None]


def look(path: Place, world_size: int | None = None) -> Listing:
    """List one candidate: a single scan, or a request for each 1000 objects of it, after which
    `Listing.path` holds the answers. Raises NotWhole, OSError."""
    if isinstance(path, Remote) and path.snapshot is None:
        try:
            path = path.taken()
        except FileNotFoundError:
            raise Unfinished("there is nothing below it any more") from None
    try:
        return Listing(path, names_in(path), world_size)
    except FileNotFoundError:
        # Removed since it was listed: whoever keeps the newest few does that beside us.
        raise Unfinished("it is not there any more") from None


def step_in(name: str) -> int | None:
    """The step that a name speaks of: `iter_0000100`, `epoch=1-step=500.ckpt`, `global_step7`.

    Used for the order of candidates where no file records it, never for a proof.
    """
    found = _STEP.findall(name)
    if found:
        return int(found[-1])
    trailing = _TRAILING.search(name)
    return int(trailing[1]) if trailing else None
