"""The file form: lines that any program appends, read as they come."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hpctl.errors import HpctlError
from hpctl.jobs.logs.follow import Follower
from hpctl.jobs.progress.listen import Heard
from hpctl.jobs.progress.notes import parse

MOST_READ = 64
"""Blocks that one `take` reads at most: a file that grows faster must not hold its caller."""


class FileReader:
    """Takes notes from a file, through its replacement and truncation; it may not be there yet."""

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.monotonic, *, at_end: bool = False
    ) -> None:
        """`at_end` passes over what is there already at the first `take`."""
        self.address = f"file:{path}"
        self.dropped = 0
        """Lines that were no note."""
        self._follower, self._clock = Follower(path, at_end=at_end), clock

    def take(self) -> list[Heard]:
        """The new lines' notes. A file that cannot be read now gives none; it may be later."""
        heard: list[Heard] = []
        for _ in range(MOST_READ):
            try:
                block, all_of_it = self._follower.read()
            except HpctlError:
                break
            at = self._clock()
            for line in block.splitlines():
                note = parse(line)
                if note is None:
                    self.dropped += bool(line.strip())
                else:
                    heard.append(Heard(note, at))
            if all_of_it:
                break
        return heard

    def close(self) -> None:
        """Let go of the file."""
        self._follower.close()
