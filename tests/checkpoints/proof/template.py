"""The other end of `server`: a warm process of one library, its writers, and what they announce."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.checkpoints.proof.library import BEGIN, END, Held

ROOT = Path(__file__).resolve().parents[3]
ANSWER_LIMIT_S = 120


class Writer:
    """A running writer: one or more ranks, and the begins and ends of its saves."""

    def __init__(self, template: Template, pids: Sequence[int]) -> None:
        self._template, self.pids = template, pids
        self.begun = self.ended = 0
        self.save_s: list[float] = []
        self._since = 0.0

    @property
    def saving(self) -> bool:
        return self.begun > self.ended

    def watch(self, until: float, *, begun: int = 1 << 30, ended: int = 1 << 30) -> None:
        """Follow the announcements until the clock says `until`, or so many saves are seen."""
        while self.begun < begun and self.ended < ended:
            left = until - time.monotonic()
            if not self._template.announced(max(0.0, left)):
                return
            self._note(os.read(self._template.ear, 1))

    def kill(self, apart_s: float = 0.0, first: int = 0) -> list[int]:
        """SIGKILL one rank and, so much later, all that is left. What wait() said of each."""
        if apart_s:
            os.kill(self.pids[first % len(self.pids)], signal.SIGKILL)
            self.watch(time.monotonic() + apart_s)
        os.killpg(self.pids[0], signal.SIGKILL)
        statuses = self._template.ask(do="reap", pids=self.pids)["statuses"]
        while self._template.announced(0.0):
            self._note(os.read(self._template.ear, 1))
        return [os.waitstatus_to_exitcode(status) for status in statuses]

    def _note(self, what: bytes) -> None:
        now = time.monotonic()
        if what == BEGIN:
            self.begun, self._since = self.begun + 1, now
        elif what == END:
            self.ended += 1
            self.save_s.append(now - self._since)


class Template:
    """A warm process that forks writers and loaders of one library. A context manager."""

    def __init__(self, name: str, scratch: Path) -> None:
        self.name, self._scratch, self._meetings = name, scratch, 0
        scratch.mkdir(parents=True, exist_ok=True)
        self.log = scratch / "library.log"

    def __enter__(self) -> Template:
        self.ear, mouth = os.pipe()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.checkpoints.proof.server", self.name, str(mouth)],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                pass_fds=[mouth],
                # With more than one thread a library may use OpenMP before the fork, and its
                # children then wait for threads that they do not have.
                env={**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )  # fmt: skip
        os.close(mouth)
        try:
            self.ranks = self._answer()["ranks"]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind, error, _):
        self.close()

    def close(self) -> None:
        """End the process, which ends at the end of its requests."""
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
        self._process.stdout.close()
        os.close(self.ear)

    def write(self, root, *, first, attempt, seed, resume):
        pids = self.ask(
            do="write", root=str(root), first=first, attempt=attempt, seed=seed,
            resume=str(resume) if resume else None, meeting=self._meeting(),
        )["pids"]  # fmt: skip
        return Writer(self, pids)

    def load(self, path: Path) -> Held | str:
        """What the library itself finds in a checkpoint, or how it fails."""
        answer = self.ask(do="load", path=str(path), meeting=self._meeting())
        return str(answer["error"]) if "error" in answer else Held.of(answer["values"])

    def ask(self, **request) -> dict[str, Any]:
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer()

    def announced(self, timeout: float) -> bool:
        return bool(select.select([self.ear], [], [], timeout)[0])

    def _meeting(self) -> str:
        self._meetings += 1
        return str(self._scratch / f"meeting-{self._meetings}")

    def _answer(self) -> dict[str, Any]:
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_LIMIT_S)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.name}: the library's process gave no answer:\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer
