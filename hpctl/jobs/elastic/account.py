"""The account of one group's life: a JSON file that the supervisor reads, while it runs and after.

Written whole to a temporary name and renamed, so that a reader never sees half of it. A file that
cannot be written is reported once and then left: it must not end the run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hpctl.core.bounds import printable
from hpctl.core.compat import UTC
from hpctl.core.model import NodeName
from hpctl.core.run_policy import RunPolicy
from hpctl.core.trouble import EVIDENCE_CHARS, Trouble
from hpctl.errors import HpctlError
from hpctl.jobs.elastic import group
from hpctl.jobs.elastic.group import EndGroup, RankFailure, root_cause

FORMAT, VERSION = "hpctl-elastic", 1
KEEP = 50
"""How many generations the file keeps, the last ones."""


@dataclass(slots=True)
class AccountWriter:
    """What the first node's launcher writes. `path` None writes nothing."""

    path: Path | None
    run_id: str
    _generations: list[dict[str, Any]] = field(default_factory=list)
    _restarts: int = 0

    def generation_began(self, generation: int, resumed_from: str, hosts: Sequence[str]) -> None:
        """Its ranks are being started."""
        self._restarts = generation
        self._generations.append(
            {
                "generation": generation,
                "started_at": time.time(),
                "ended_at": None,
                "resumed_from": resumed_from or None,
                "nodes": list(hosts),
                "why": "",
                "failures": [],
            }
        )
        del self._generations[:-KEEP]
        self._write("running", None, "")

    def generation_over(self, why: str, failures: Sequence[RankFailure]) -> None:
        """None of its ranks is left."""
        if not self._generations:
            return
        self._generations[-1] |= {
            "ended_at": time.time(),
            "why": why,
            "failures": [group.to_json(each) for each in failures],
        }

    def ended(self, end: EndGroup, failures: Sequence[RankFailure]) -> None:
        """The group is over."""
        self.generation_over(end.why, failures)
        self._write(end.verdict.value, end.code, end.why)

    def _write(self, verdict: str, code: int | None, why: str) -> None:
        if self.path is None:
            return
        document = {
            "format": FORMAT,
            "version": VERSION,
            "run_id": self.run_id,
            "verdict": verdict,
            "exit_code": code,
            "why": why,
            "restarts": self._restarts,
            "generations": self._generations,
        }
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(document, indent=1))
            temporary.replace(self.path)
        except OSError as error:
            print(printable(f"hpctl elastic: no account: {error}"), file=sys.stderr, flush=True)
            self.path = None


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """One life of all ranks. Times are seconds since the epoch; `ended_at` None while it runs."""

    number: int
    started_at: float
    ended_at: float | None
    resumed_from: str | None
    why: str
    failures: tuple[RankFailure, ...]


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """An account as it was read. `verdict` is `running` or one of group.Verdict."""

    run_id: str
    verdict: str
    exit_code: int | None
    why: str
    restarts: int
    generations: tuple[GenerationRecord, ...]

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """One for each generation that did not end well, oldest first."""
        return tuple(t for each in self.generations if (t := trouble(each)) is not None)


def read(path: Path) -> AccountRecord:
    """Read an account. Raises HpctlError; FileNotFoundError where there is none (yet)."""
    text = path.read_text(encoding="utf-8")
    try:
        document = json.loads(text)
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise ValueError("another format or version")
        return AccountRecord(
            run_id=str(document["run_id"]),
            verdict=str(document["verdict"]),
            exit_code=None if document["exit_code"] is None else int(document["exit_code"]),
            why=str(document["why"]),
            restarts=int(document["restarts"]),
            generations=tuple(_generation(each) for each in document["generations"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise HpctlError(f"{path} is no account of hpctl elastic: {error}") from error


def _generation(document: dict[str, Any]) -> GenerationRecord:
    ended = document["ended_at"]
    return GenerationRecord(
        number=int(document["generation"]),
        started_at=float(document["started_at"]),
        ended_at=None if ended is None else float(ended),
        resumed_from=document["resumed_from"],
        why=str(document["why"]),
        failures=tuple(group.from_json(each) for each in document["failures"]),
    )


def trouble(generation: GenerationRecord) -> Trouble | None:
    """What ended a generation, as a fact; None where it runs, or ended well or by request.

    Kind and signature are what `crash.classify` makes of exit code and traceback.
    """
    # Only the reader's business: the launcher, which writes accounts, needs none of its patterns.
    from hpctl.jobs.crash import classify

    if generation.ended_at is None or not generation.failures:
        return None
    first = root_cause(list(generation.failures))
    trace = first.trace or (f"{first.exception}: {first.message}" if first.exception else "")
    classified = classify(
        first.code,
        trace.splitlines(),
        at=datetime.fromtimestamp(first.at, UTC),
        node=NodeName(first.node),
        rank=first.rank,
        policy=RunPolicy(),
        again=generation.number > 0,
    )
    return replace(
        classified,
        why=first.why,
        node=NodeName(first.node),
        rank=first.rank,
        evidence=classified.evidence or first.trace[-EVIDENCE_CHARS:],
    )
