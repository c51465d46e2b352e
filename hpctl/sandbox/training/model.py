"""The model: the weight of every character at every place of a window, and a softmax over the next.

All parameters live in one flat float64 vector, so that the all-reduce, Adam and the shards of a
checkpoint need no names. Everything is a pure function of its arguments: bit-identical weights
are the whole point, so there is no hidden random state and every reduction has a fixed order.
For that there is no matrix product: BLAS picks its kernels, and so the last bits, by the CPU.

The record of a run is for the report: `attempts.jsonl` has two lines an attempt: `start` when its
ranks have met, `first_step` when it has trained again. `progress-<attempt>.txt` has one line a
finished step. Together they say how many steps a fault cost, by subtraction.
"""

from __future__ import annotations

import hashlib
import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from hpctl import progress
from hpctl.toolkit.compat import UTC

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TEXT = Path(__file__).with_name("romeo.txt")


class ModelShape(Struct, frozen=True):
    """The sizes of the model: of the alphabet, and of the window in characters."""

    vocabulary: int
    context: int = 4


def load_corpus() -> tuple[Ints, int]:
    """Return the text as indices into its sorted alphabet, and the alphabet's size."""
    text = TEXT.read_text(encoding="ascii")
    index = {character: i for i, character in enumerate(sorted(set(text)))}
    return np.array([index[character] for character in text], dtype=np.int64), len(index)


def make_training_batch(
    data: Ints, shape: ModelShape, seed: int, step: int, size: int
) -> tuple[Ints, Ints]:
    """Return the whole batch of a step: windows and the character after each.

    Derived from (seed, step) alone, so a resumed run sees what the undisturbed one saw.
    """
    random = np.random.Generator(np.random.PCG64([seed, step]))
    starts = random.integers(0, len(data) - shape.context, size=size)
    return data[starts[:, None] + np.arange(shape.context)], data[starts + shape.context]


def compute_loss_and_gradient(
    weights: Floats, shape: ModelShape, windows: Ints, targets: Ints
) -> tuple[float, Floats]:
    """Cross-entropy in nats summed over the rows, and its gradient. Sums, not means: shards of
    unequal length then add up to the whole batch's gradient."""
    rows, places = np.arange(len(targets)), np.arange(shape.context)
    table = weights.reshape(shape.context, shape.vocabulary, shape.vocabulary)
    logits = table[places, windows].sum(axis=1)
    logits -= logits.max(axis=1, keepdims=True)
    chances = np.exp(logits)
    chances /= chances.sum(axis=1, keepdims=True)
    loss = float(-np.log(chances[rows, targets]).sum())
    chances[rows, targets] -= 1.0
    gradient = np.zeros_like(table)
    np.add.at(gradient, (places, windows), chances[:, None, :])
    return loss, gradient.ravel()


class TrainingState(Struct):
    """What a checkpoint holds: weights, Adam's two moments, and the steps done so far."""

    weights: Floats
    mean: Floats
    square: Floats
    step: int = 0

    @classmethod
    def start(cls, shape: ModelShape, seed: int) -> TrainingState:
        """Step 0: small random weights."""
        random = np.random.Generator(np.random.PCG64([seed, 0]))
        weights = 0.1 * random.standard_normal(shape.context * shape.vocabulary**2)
        return cls(weights, np.zeros_like(weights), np.zeros_like(weights))

    def update(self, gradient: Floats, rate: float = 1e-2) -> None:
        """One step of Adam (beta 0.9 and 0.999, epsilon 1e-8)."""
        self.step += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient * gradient
        mean = self.mean / (1.0 - 0.9**self.step)
        square = self.square / (1.0 - 0.999**self.step)
        self.weights = self.weights - rate * mean / (np.sqrt(square) + 1e-8)


ATTEMPTS = "attempts.jsonl"
FINAL = "final.json"


class TrainingProgressRecorder:
    """Rank 0's pen. Lines are flushed, not synced: a killed process loses none of them."""

    def __init__(self, directory: Path, attempt: str, start_step: int, hosts: list[str]) -> None:
        self._directory = directory
        self._attempt = attempt
        self._first = True
        self._progress = (directory / f"progress-{attempt}.txt").open("a", encoding="ascii")
        self._append_event("start", start_step=start_step, hosts=hosts)

    def step(self, step: int, loss: float) -> None:
        """A step is done on every rank. `loss` in nats per character."""
        if self._first:
            self._first = False
            self._append_event("first_step", step=step)
        self._progress.write(f"{step} {loss:.6f}\n")
        self._progress.flush()
        print(f"step {step} loss {loss:.4f}", flush=True)
        progress.step(step, loss=loss)

    def close(self) -> None:
        """Close the progress file."""
        self._progress.close()

    def final(self, weights: Floats, step: int) -> None:
        """Write `final.json`, atomically. The digest is over the weights' raw bytes."""
        started = [line for line in read_attempts(self._directory) if line["event"] == "start"]
        document = {
            "sha256": hashlib.sha256(weights.tobytes()).hexdigest(),
            "steps": step,
            "attempts": [line["attempt"] for line in started],
            "resumed_from": [line["start_step"] for line in started[1:]],
            "steps_lost": count_lost_steps(self._directory),
            "finished_at": _format_now(),
        }
        temporary = self._directory / f".{FINAL}.{os.getpid()}"
        temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        temporary.rename(self._directory / FINAL)
        # A fault may come between this line and the program's end: the attempt after it resumes at
        # the last step, trains nothing, and differs from a failure in nothing else.
        progress.done()
        print(f"done: {step} steps, weights sha256 {document['sha256']}", flush=True)

    def _append_event(self, event: str, **facts: object) -> None:
        line = json.dumps({"attempt": self._attempt, "event": event, "at": _format_now(), **facts})
        with (self._directory / ATTEMPTS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def read_attempts(directory: Path) -> list[dict[str, Any]]:
    """Return the lines of `attempts.jsonl`, oldest first; none where there is no such file."""
    try:
        text = (directory / ATTEMPTS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def count_lost_steps(directory: Path) -> list[int]:
    """For each attempt but the first: steps done before it, less the step it started from."""
    lost: list[int] = []
    reached = 0
    for number, line in enumerate(a for a in read_attempts(directory) if a["event"] == "start"):
        if number:
            lost.append(max(0, reached - line["start_step"]))
        reached = max(line["start_step"], find_last_finished_step(directory, line["attempt"]))
    return lost


def find_last_finished_step(directory: Path, attempt: str) -> int:
    """Return the last step that an attempt finished, 0 where it finished none."""
    try:
        lines = (directory / f"progress-{attempt}.txt").read_text(encoding="ascii").split("\n")
    except FileNotFoundError:
        return 0
    done = [line.split(" ", 1)[0] for line in lines[:-1]]  # after the last newline: torn
    return int(done[-1]) if done else 0


def _format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
