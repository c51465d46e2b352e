"""What a part of the proof gets: where to write, how much time is left, how to run programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FACTS, LINES, OUTCOME, KEPT = "facts.jsonl", "lines.txt", "outcome.json", "kept"
PROGRAM_FOLDERS = ("/usr/local/nvidia/bin", "/usr/local/cuda/bin", "/usr/sbin", "/sbin")
"""Where a container has the driver's programs, CUDA's and Slurm's daemons, beside PATH."""


class NotRun(Exception):
    """A part cannot run here; the text says why."""


@dataclass(frozen=True)
class Ran:
    """A program that has ended. `code` is None if it was killed at its limit or did not start."""

    code: int | None
    out: str
    err: str
    took_s: float


@dataclass(frozen=True)
class Context:
    """One part's surroundings. What it records is on disk when the call returns."""

    name: str
    folder: Path
    scratch: Path
    """A folder for the part alone: short enough for unix sockets, readable by every user."""
    dry: bool
    """True if stand-ins take the place of the GPU."""
    until: float
    """When the part is killed, on the monotonic clock."""
    environment: dict[str, str]
    """What programs of the part are started with; it names the stand-ins of a dry run."""
    kmsg: Path
    """The kernel's log; a plain file in a dry run."""
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def record(self, key: str, value: Any) -> None:
        """Write one fact; the last value of a key holds. What JSON does not know becomes repr."""
        row = json.dumps({"key": key, "value": value}, default=repr)
        self._append(FACTS, row)

    def say(self, line: str) -> None:
        """Write one line for the page: a result in words, with its figure and unit."""
        self._append(LINES, " ".join(line.split()))
        print(f"{self.name}: {line}", flush=True)

    def keep(self, file: str, data: bytes | str) -> None:
        """Write one raw recording; `file` is its path below the card's folder of recordings."""
        place = self.folder / KEPT / file
        if ".." in Path(file).parts or Path(file).is_absolute():
            raise ValueError(f"{file} leaves the folder of recordings")
        raw = data.encode(errors="replace") if isinstance(data, str) else data
        with self._lock:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(raw)

    def keep_json(self, file: str, value: Any) -> None:
        """Write one raw recording as JSON."""
        self.keep(file, json.dumps(value, indent=1, default=repr) + "\n")

    def left_s(self) -> float:
        """Return the seconds until the part is killed; 0 if that is past."""
        return max(0.0, self.until - time.monotonic())

    def run(
        self,
        command: Sequence[str | Path],
        limit_s: float,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Ran:
        """Run a program to its end, at most `limit_s` and at most until the part's own end.

        `environment` is added to the part's. The program has a process group of its own, which is
        killed at the limit. Never raises: a program that does not start has no code.
        """
        began = time.monotonic()
        limit_s = max(0.1, min(limit_s, self.left_s()))
        try:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**self.environment, **(environment or {})},
                cwd=folder or self.scratch,
                start_new_session=True,
            )
        except OSError as error:
            return Ran(None, "", str(error), 0.0)
        code: int | None
        try:
            out, err = process.communicate(timeout=limit_s)
            code = process.returncode
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            out, err = _read_rest(process)
            code = None
        took_s = round(time.monotonic() - began, 3)
        return Ran(code, out.decode(errors="replace"), err.decode(errors="replace"), took_s)

    def hpctl(self, *words: str, limit_s: float = 30.0, **more: Any) -> Ran:
        """Run `hpctl` with the interpreter of the part."""
        return self.run([sys.executable, "-m", "hpctl", *words], limit_s, **more)

    def _append(self, file: str, row: str) -> None:
        with self._lock, (self.folder / file).open("a", encoding="utf-8") as out:
            out.write(row + "\n")
            out.flush()


def _read_rest(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return what a killed program has written; a child of it may still hold the pipes."""
    try:
        return process.communicate(timeout=1.0)
    except subprocess.TimeoutExpired as error:
        return error.stdout or b"", error.stderr or b""


def program_path(path: str) -> str:
    """Return PATH with the folders of the driver, CUDA and Slurm's daemons behind it."""
    folders = [*path.split(os.pathsep), *PROGRAM_FOLDERS]
    return os.pathsep.join(dict.fromkeys(folder for folder in folders if folder))
