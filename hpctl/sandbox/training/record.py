"""What a run leaves behind for the report: attempts, progress, the final digest.

`attempts.jsonl` has two lines an attempt: `start` when its ranks have met, `first_step` when it
has trained again. `progress-<attempt>.txt` has one line a finished step. Together they say how
many steps a fault cost, by subtraction.
"""

from __future__ import annotations

import hashlib
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

from hpctl import progress
from hpctl.core.compat import UTC
from hpctl.sandbox.training.model import Floats

ATTEMPTS = "attempts.jsonl"
FINAL = "final.json"


class Recorder:
    """Rank 0's pen. Lines are flushed, not synced: a killed process loses none of them."""

    def __init__(self, directory: Path, attempt: str, start_step: int, hosts: list[str]) -> None:
        self._directory = directory
        self._attempt = attempt
        self._first = True
        self._progress = (directory / f"progress-{attempt}.txt").open("a", encoding="ascii")
        self._event("start", start_step=start_step, hosts=hosts)

    def step(self, step: int, loss: float) -> None:
        """A step is done on every rank. `loss` in nats per character."""
        if self._first:
            self._first = False
            self._event("first_step", step=step)
        self._progress.write(f"{step} {loss:.6f}\n")
        self._progress.flush()
        print(f"step {step} loss {loss:.4f}", flush=True)
        progress.step(step, loss=loss)

    def close(self) -> None:
        """Close the progress file."""
        self._progress.close()

    def final(self, weights: Floats, step: int) -> None:
        """Write `final.json`, atomically. The digest is over the weights' raw bytes."""
        started = [line for line in attempts(self._directory) if line["event"] == "start"]
        document = {
            "sha256": hashlib.sha256(weights.tobytes()).hexdigest(),
            "steps": step,
            "attempts": [line["attempt"] for line in started],
            "resumed_from": [line["start_step"] for line in started[1:]],
            "steps_lost": steps_lost(self._directory),
            "finished_at": _now(),
        }
        temporary = self._directory / f".{FINAL}.{os.getpid()}"
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        temporary.rename(self._directory / FINAL)
        # A fault may come between this line and the program's end: the attempt after it resumes at
        # the last step, trains nothing, and is told from a failure by nothing else.
        progress.done()
        print(f"done: {step} steps, weights sha256 {document['sha256']}", flush=True)

    def _event(self, event: str, **facts: object) -> None:
        line = json.dumps({"attempt": self._attempt, "event": event, "at": _now(), **facts})
        with (self._directory / ATTEMPTS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def attempts(directory: Path) -> list[dict[str, Any]]:
    """The lines of `attempts.jsonl`, oldest first; none where there is no such file."""
    try:
        text = (directory / ATTEMPTS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def steps_lost(directory: Path) -> list[int]:
    """For each attempt but the first: steps done before it, less the step it started from."""
    lost: list[int] = []
    reached = 0
    for number, line in enumerate(a for a in attempts(directory) if a["event"] == "start"):
        if number:
            lost.append(max(0, reached - line["start_step"]))
        reached = max(line["start_step"], last_step(directory, line["attempt"]))
    return lost


def last_step(directory: Path, attempt: str) -> int:
    """The last step that an attempt finished, 0 where it finished none."""
    try:
        lines = (directory / f"progress-{attempt}.txt").read_text(encoding="ascii").split("\n")
    except FileNotFoundError:
        return 0
    done = [line.split(" ", 1)[0] for line in lines[:-1]]  # after the last newline: torn
    return int(done[-1]) if done else 0


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
