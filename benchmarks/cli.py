"""How long a person waits for `hpctl --help`."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from benchmarks.table import Outcome, Row, median, seconds_of

RUNS = 20
BAR_MS = 150.0


def run() -> Outcome:
    """Ours and its two floors in turn, so that a busy moment hits all three alike."""
    commands = {
        "hpctl --help": ["-m", "hpctl", "--help"],
        "python -c pass": ["-c", "pass"],
        "python -c 'import click'": ["-c", "import click"],
    }
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(RUNS):
        for name, words in commands.items():
            taken[name] += seconds_of(partial(_start, words), 1)
    ms = {name: 1000 * median(values) for name, values in taken.items()}
    ours = ms.pop("hpctl --help")
    rows = [
        Row("hpctl --help, wall", ours, "ms", name, value, BAR_MS if not at else None)
        for at, (name, value) in enumerate(ms.items())
    ]
    return Outcome("cli", rows, [f"medians of {RUNS} runs each, in turn"])


def _start(words: list[str]) -> None:
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, timeout=30)
