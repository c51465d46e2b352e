"""Kill a writer again and again, and count where hpctl and the library disagree.

Each directory sees a chain of attempts: the job starts, resumes from what hpctl calls the newest
whole checkpoint, saves step after step and is killed at a random instant, most of them within a
save. Then hpctl and the library judge everything that lies there.
"""

import random
import re
import shutil
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field

from hpctl.checkpoints import files, search
from hpctl.checkpoints.declared import is_single_rank_torch_file
from hpctl.checkpoints.patterns import FilePattern, parse_checkpoint_file_patterns
from hpctl.checkpoints.search import CompleteCheckpoint, SkippedCheckpoint
from tests.checkpoints.proof.library import Held
from tests.checkpoints.proof.template import Template, Writer
from tests.checkpoints.proof.writers import WAYS

CHAIN = 4
"""Attempts in one directory, each resuming what the one before left."""
WITHIN_A_SAVE = 0.85
BESIDE = ("recipe_state/recipe_state.pt", "latest_checkpointed_iteration.txt")
"""What some libraries keep beside a checkpoint, and load it by."""
START_LIMIT_S = 60.0


class Count(Struct):
    """What came of the kills of one library's writers."""

    library: str
    seed: int
    kills: int = 0
    within: int = 0
    whole: int = 0
    passed: int = 0
    offered: int = 0
    """hpctl says what is unproven of it."""
    false_offered: list[str] = field(default_factory=list)
    false_whole: list[str] = field(default_factory=list)
    """hpctl says whole; the library does not load it, or finds other numbers in it."""
    false_passed: list[str] = field(default_factory=list)
    """hpctl passes it over; the library loads all of it, and it is newer than the chosen one."""


_HAS_OTHERS = re.compile(r"_rank\d|model_\d|optim_\d")
"""Names of files of which others beside them are part of the same checkpoint."""

Signature = tuple[tuple[str, int, int, int], ...]


class Kills:
    """The proof for one library, in directories under `scratch`."""

    def __init__(self, template: Template, scratch: Path, seed: int) -> None:
        self.count = Count(template.name, seed)
        self._template, self._scratch = template, scratch
        self._declared = parse_checkpoint_file_patterns(WAYS[template.name].declares)
        self._random = random.Random(f"{seed} {template.name}")
        self._save_s = [0.005]
        self._loads: dict[Signature, Held | str] = {}
        self._root, self._attempt = scratch / "none", CHAIN

    def run(self, kills: int) -> Count:
        """Kill so many writers; more where none of their saves ended before, or too few were killed
        within one: thrice as many at most."""
        count = self.count
        while count.kills < (kills if count.whole and count.within >= kills // 3 else 3 * kills):
            self._one()
        shutil.rmtree(self._root, ignore_errors=True)
        return self.count

    def _one(self) -> None:
        if self._attempt == CHAIN:
            shutil.rmtree(self._root, ignore_errors=True)
            self._root, self._attempt = self._scratch / f"run-{self.count.kills}", 0
            self._root.mkdir(parents=True)
            self._loads.clear()
        self._attempt += 1
        files.record_job_start(self._root, self._template.ranks)
        found = search.find_newest_complete_checkpoint_in_tiers(
            self._root, declared=self._declared
        ).found
        held = self._loaded(found.path) if found else None
        first = (held.step or 0) + 1 if isinstance(held, Held) else 1
        writer = self._template.write(
            self._root, first=first, attempt=self._attempt, seed=self._random.getrandbits(32),
            resume=found.path if found else None,
        )  # fmt: skip
        self._kill(writer)
        self._judge()

    def _kill(self, writer: Writer) -> None:
        one_save = statistics.median(self._save_s[-25:])
        limit = time.monotonic() + START_LIMIT_S
        if self._random.random() < WITHIN_A_SAVE:
            writer.watch(limit, begun=self._random.randint(1, 3))
            writer.watch(time.monotonic() + self._random.uniform(0.0, 1.1 * one_save))
        else:
            writer.watch(limit, begun=1)
            writer.watch(time.monotonic() + self._random.uniform(0.0, 5 * one_save))
        apart = self._template.ranks > 1 and self._random.random() < 0.5
        codes = writer.kill(self._random.uniform(0.0, 0.03) if apart else 0.0, self._attempt)
        # A rank that outlives another for some milliseconds may end by itself in that time.
        if not writer.begun or -9 not in codes or not (apart or all(c == -9 for c in codes)):
            tail = self._template.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"{self.count.library}: the writer ended by itself: {codes}\n{tail}")
        self._save_s += writer.save_s
        self.count.kills += 1
        self.count.within += writer.saving

    def _judge(self) -> None:
        rows = search.list_checkpoints(self._root, declared=self._declared)
        rows += [row for row in self._deeply(rows) if row not in rows]
        chosen = search.find_newest_complete_checkpoint_in_tiers(
            self._root, declared=self._declared
        ).found
        held = self._loaded(chosen.path) if chosen else None
        newest = held.step if isinstance(held, Held) and held.step is not None else -1
        for row in rows:
            if isinstance(row, CompleteCheckpoint):
                self._whole(row)
            else:
                self._passed_over(row, newest)
        # What hpctl does not even list must not be a checkpoint either.
        listed = {row.path for row in rows}
        for path in sorted(self._root.iterdir()):
            # Of files that belong together one stands for all.
            if path not in listed and not _is_part(path, self._declared):
                self._passed_over(SkippedCheckpoint(path, "not listed"), newest)

    def _deeply(
        self, rows: list[CompleteCheckpoint | SkippedCheckpoint]
    ) -> list[CompleteCheckpoint | SkippedCheckpoint]:
        """Whole ones that reading every byte finds fault with."""
        wrong = {
            row.path
            for row in search.list_checkpoints(self._root, deep=True, declared=self._declared)
            if isinstance(row, SkippedCheckpoint)
        }
        whole = [row for row in rows if isinstance(row, CompleteCheckpoint) and row.path in wrong]
        return [SkippedCheckpoint(row.path, "only when read deeply") for row in whole]

    def _whole(self, row: CompleteCheckpoint) -> None:
        wrong = self.count.false_whole
        if row.unproven:
            self.count.offered += 1
            wrong = self.count.false_offered
        else:
            self.count.whole += 1
        held = self._loaded(row.path)
        if isinstance(held, str):
            wrong.append(f"{row.path.name}: {held}")
        elif held.step is None or row.step not in (None, held.step):
            wrong.append(f"{row.path.name}: holds {sorted(held.stamps)}")

    def _passed_over(self, row: SkippedCheckpoint, newest: int) -> None:
        self.count.passed += 1
        held = self._loaded(row.path)
        if isinstance(held, Held) and held.step is not None and held.step > newest:
            self.count.false_passed.append(f"{row.path.name}: {row.why}")

    def _loaded(self, path: Path) -> Held | str:
        """What the library says of it, asked again only where a file of it changed."""
        seen = _signature(path)
        if seen not in self._loads:
            self._loads[seen] = self._template.load(path)
        return self._loads[seen]


def _is_part(path: Path, declared: Sequence[FilePattern]) -> bool:
    return is_single_rank_torch_file(path) or any(p.parts[0].fullmatch(path.name) for p in declared)


def _signature(path: Path) -> Signature:
    beside = [path.parent / name for name in BESIDE]
    if _HAS_OTHERS.search(path.name):
        beside += sorted(path.parent.glob("*.*"))
    files = [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]
    files += [file for file in beside if file.exists()]
    stats = [(str(file), file.lstat()) for file in files]
    return tuple((name, s.st_ino, s.st_size, s.st_mtime_ns) for name, s in stats)
