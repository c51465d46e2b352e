"""Whether a job ever ran twice at once: of its attempts, only the newest may still write.

Every attempt has a progress file of its own, with a line for each step that all of its ranks
have done. Once a later attempt has written one, an earlier one must never write again: a frozen
node that thaws has processes for a moment, but they can do no step.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

LOOK_S = 0.1


class Writers:
    """Looks ten times a second at the progress files of every job, in a thread."""

    def __init__(self) -> None:
        self.twice: list[str] = []
        self._directories: list[Path] = []
        self._sizes: dict[Path, int] = {}
        self._newest: dict[Path, Path] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writers", daemon=True)

    def __enter__(self) -> Writers:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)

    def add(self, directory: Path) -> None:
        """Watch one more job."""
        self._directories.append(directory)

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            for directory in list(self._directories):
                self._look(directory)

    def _look(self, directory: Path) -> None:
        grown = []
        for path in directory.glob("progress-*.txt"):
            size = path.stat().st_size
            if size > self._sizes.get(path, 0):
                grown.append((path not in self._sizes, path))
                self._sizes[path] = size
        # What grew between two looks may have stopped before the other began: the known first.
        for new, path in sorted(grown):
            newest = self._newest.get(directory)
            if new or newest is None:
                self._newest[directory] = path
            elif path != newest:
                at = time.strftime("%H:%M:%S")
                self.twice.append(f"{at} {path.name} went on beside {newest.name} in {directory}")
