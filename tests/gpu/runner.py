"""Runs the parts one after another, each and all of them bounded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.gpu.context import FACTS, LINES, OUTCOME
from tests.gpu.needs import find_missing
from tests.gpu.part import END, GRACE_S
from tests.gpu.plan import load_part
from tests.gpu.processes import adopt_orphans, kill_descendants

LEAST_S = 5.0
"""A part is not begun with less time left than this."""
MOST_AT_ONCE = 3
"""Parts that run side by side. In a dry run, which measures nothing, all parts do."""
LATE_S = 8.0
"""A part's own watching process is killed so long after the part's limit and grace time."""


@dataclass
class PartResult:
    """One part as it ended, or as far as it came."""

    name: str
    title: str
    state: str
    """ran, not run, raised, killed at its limit, died"""
    why: str = ""
    took_s: float = 0.0
    cpu_s: float = 0.0
    """Processor time of all of the part's processes that have ended."""
    lines: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    left_running: list[str] = field(default_factory=list)
    not_killed: list[str] = field(default_factory=list)
    output: str = ""
    """The end of what the part printed."""


@dataclass
class _Running:
    name: str
    module: ModuleType
    folder: Path
    process: subprocess.Popen[bytes]
    overdue: float


class Runner:
    """One run: `run()` returns when every part has ended or the budget is spent.

    `finish_part` is called after each part with the results so far, so that an interrupted run has
    a page too.
    """

    def __init__(
        self,
        names: Sequence[str],
        scratch: Path,
        *,
        budget_s: float,
        dry: bool,
        grace_s: float = GRACE_S,
        finish_part: Callable[[list[PartResult]], None] = lambda results: None,
    ) -> None:
        self._names = names
        self._scratch = scratch
        self._dry = dry
        self._grace_s = grace_s
        self._end = time.monotonic() + budget_s
        self._finish_part = finish_part
        self._running: list[_Running] = []
        self._results: dict[str, PartResult] = {}

    def run(self) -> list[PartResult]:
        """Run the parts in order; neighbors that are SIDE_BY_SIDE at the same time."""
        adopt_orphans()
        try:
            for name in self._names:
                module = load_part(name)
                if self._is_side_by_side(module):
                    self._wait_until(MOST_AT_ONCE - 1)
                else:
                    self._wait_until(0)
                self._begin(name, module)
            self._wait_until(0)
        finally:
            for running in self._running:
                with suppress(ProcessLookupError):
                    running.process.send_signal(signal.SIGTERM)
            self._wait_until(0)
            kill_descendants()
        return self.results()

    def results(self) -> list[PartResult]:
        """Return what is known, in the order of the parts."""
        return [self._results[name] for name in self._names if name in self._results]

    def part_folder(self, name: str) -> Path:
        """Return where a part writes what it records."""
        return self._scratch / "parts" / name

    def _is_side_by_side(self, module: ModuleType) -> bool:
        if self._dry:
            return True
        modules = [module, *(running.module for running in self._running)]
        return all(each.SIDE_BY_SIDE for each in modules)

    def _begin(self, name: str, module: ModuleType) -> None:
        left_s = self._end - time.monotonic() - self._grace_s
        missing = find_missing(module.NEEDS, dry=self._dry)
        if missing:
            self._conclude(PartResult(name, module.TITLE, "not run", missing))
            return
        if left_s < min(LEAST_S, module.LIMIT_S):
            self._conclude(PartResult(name, module.TITLE, "not run", "no time left"))
            return
        limit_s = min(module.DRY_LIMIT_S if self._dry else module.LIMIT_S, left_s)
        folder = self.part_folder(name)
        scratch = self._scratch / name
        for place in (folder, scratch):
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o755)
        words = [name, "--folder", str(folder), "--scratch", str(scratch)]
        words += ["--limit-s", str(limit_s), "--grace-s", str(self._grace_s)]
        if self._dry:
            words.append("--dry")
        print(f"{name}: begins, at most {limit_s:.0f} s", flush=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.part", *words],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        overdue = time.monotonic() + limit_s + self._grace_s + LATE_S
        self._running.append(_Running(name, module, folder, process, overdue))

    def _wait_until(self, running_still: int) -> None:
        """Wait until at most so many parts run."""
        while len(self._running) > running_still:
            for running in list(self._running):
                if running.process.poll() is None and time.monotonic() < running.overdue:
                    continue
                if running.process.poll() is None:
                    running.process.kill()
                    running.process.wait()
                self._running.remove(running)
                spare = frozenset(other.process.pid for other in self._running)
                kill_descendants(spare=spare)
                self._conclude(read_result(running.name, running.module.TITLE, running.folder))
            time.sleep(0.05)

    def _conclude(self, result: PartResult) -> None:
        self._results[result.name] = result
        why = f" ({result.why.strip().splitlines()[-1]})" if result.why else ""
        print(f"{result.name}: {result.state}{why}, {result.took_s:.1f} s", flush=True)
        self._finish_part(self.results())


def read_result(name: str, title: str, folder: Path) -> PartResult:
    """Read what one part has written, however it ended."""
    outcome = _read_json(folder / OUTCOME)
    end = _read_json(folder / END)
    if outcome:
        state, why = outcome["state"], outcome["why"]
    elif end.get("at_limit") or not end:
        state, why = "killed at its limit", "it did not end when told to"
    else:
        state, why = "died", f"exit code {end['code']}"
    return PartResult(
        name=name,
        title=title,
        state=state,
        why=why,
        took_s=end.get("took_s", 0.0),
        cpu_s=end.get("cpu_s", 0.0),
        lines=_read_lines(folder / LINES),
        facts=read_facts(folder / FACTS),
        left_running=end.get("left_running", []),
        not_killed=end.get("not_killed", []),
        output="\n".join(_read_lines(folder / "output.txt")[-200:]),
    )


def read_facts(place: Path) -> dict[str, Any]:
    """Return the facts of a part; a row that was cut off when the part was killed is left out."""
    facts: dict[str, Any] = {}
    for line in _read_lines(place):
        with suppress(ValueError):
            row = json.loads(line)
            facts[row["key"]] = row["value"]
    return facts


def _read_json(place: Path) -> dict[str, Any]:
    try:
        value = json.loads(place.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_lines(place: Path) -> list[str]:
    try:
        return place.read_text(errors="replace").splitlines()
    except OSError:
        return []


def make_scratch() -> Path:
    """Create the folder of one run: a short path, which other users may enter."""
    import tempfile

    place = Path(tempfile.mkdtemp(prefix="hp-gpu-"))
    os.chmod(place, 0o755)
    return place
