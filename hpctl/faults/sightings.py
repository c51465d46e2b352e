"""Read where a fault was seen: the column `seen` of the fault tables.

A cell holds sightings, with `; ` between them:

- `H200, driver 580.159.04`: one of hpctl's own recordings, by its name in `RECORDINGS`
- `OWNER/NAME#NUMBER`: an issue or a pull request on GitHub that shows it
- `OWNER/NAME:PATH`: a file of a public repository that holds a log of it

or `manual`: a search of public issues, logs and tests found none, and the row is known from
manuals and sources only. A sighting that is about some codes of its row names them: `... (119)`.
"""

import re

from msgspec import Struct

MANUAL = "manual"
RECORDINGS = ("H200, driver 580.159.04",)
NOT_SEEN = "known from manuals and sources only"
_REPOSITORY = r"[A-Za-z0-9][\w-]{0,38}/[A-Za-z0-9][\w.-]{0,99}"
_SIGHTING = re.compile(
    rf"(?P<repository>{_REPOSITORY})(?:#(?P<thread>[1-9]\d{{0,6}})|:(?P<path>[\w./-]{{1,200}}))"
    r"(?: \((?P<codes>[\w, -]{1,60})\))?"
)


class FaultSighting(Struct, frozen=True):
    """Where a fault was seen: `text` as the table has it, `url` empty for hpctl's recordings."""

    text: str
    url: str = ""

    @property
    def is_recorded_by_hpctl(self) -> bool:
        """Whether it is one of hpctl's own recordings."""
        return not self.url


def parse_sightings(text: str) -> tuple[FaultSighting, ...]:
    """Return the sightings of a cell, none for `manual`. Raises ValueError for any other text."""
    if text == MANUAL:
        return ()
    return tuple(_parse_sighting(part) for part in text.split("; "))


def _parse_sighting(text: str) -> FaultSighting:
    if text in RECORDINGS:
        return FaultSighting(text)
    match = _SIGHTING.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} says of no recording, thread or file where a fault was seen")
    rest = f"issues/{match['thread']}" if match["thread"] else f"blob/HEAD/{match['path']}"
    return FaultSighting(text, f"https://github.com/{match['repository']}/{rest}")


def describe_sightings(sightings: tuple[FaultSighting, ...]) -> str:
    """Return them in one line: `seen: A, B`, or that it is known from manuals only."""
    if not sightings:
        return NOT_SEEN
    return f"seen: {'; '.join(one.text for one in sightings)}"
