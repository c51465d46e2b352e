"""The account of one group's life: a JSON file that the supervisor reads, while it runs and after.

Written whole to a temporary name and renamed, so that a reader never sees half of it. A file that
cannot be written is reported once and then left: it must not end the run.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.core.bounds import printable
from hpctl.core.compat import UTC
from hpctl.core.model import NodeName
from hpctl.core.run_policy import RunPolicy
from hpctl.core.trouble import EVIDENCE_CHARS, Trouble
from hpctl.errors import HpctlError
from hpctl.jobs.elastic.group import EndGroup, RankFailure, root_cause

KEEP = 50
"""How many generations the file keeps, the last ones."""


class GenerationRecord(msgspec.Struct, frozen=True):
    """One life of all ranks. Times are seconds since the epoch; `ended_at` None while it runs."""

    number: int = msgspec.field(name="generation")
    started_at: float
    ended_at: float | None
    resumed_from: str | None
    why: str
    failures: tuple[RankFailure, ...]
    nodes: tuple[str, ...] = ()


class AccountRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The document. `verdict` is `running` or one of group.GroupVerdict."""

    format: Literal["hpctl-elastic"] = "hpctl-elastic"
    version: Literal[1] = 1
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


class AccountWriter(Struct):
    """What the first node's launcher writes. `path` None writes nothing."""

    path: Path | None
    run_id: str
    _generations: list[GenerationRecord] = field(default_factory=list)

    def generation_began(self, generation: int, resumed_from: str, hosts: Sequence[str]) -> None:
        """Its ranks are being started."""
        began, whence, nodes = time.time(), resumed_from or None, tuple(hosts)
        fresh = GenerationRecord(generation, began, None, whence, "", (), nodes)
        self._generations = [*self._generations, fresh][-KEEP:]
        self._write("running", None, "")

    def generation_over(self, why: str, failures: Sequence[RankFailure]) -> None:
        """None of its ranks is left."""
        if self._generations:
            self._generations[-1] = msgspec.structs.replace(
                self._generations[-1], ended_at=time.time(), why=why, failures=tuple(failures)
            )

    def ended(self, end: EndGroup, failures: Sequence[RankFailure]) -> None:
        """The group is over."""
        self.generation_over(end.why, failures)
        self._write(end.verdict.value, end.code, end.why)

    def _write(self, verdict: str, code: int | None, why: str) -> None:
        if self.path is None:
            return
        record = AccountRecord(
            run_id=self.run_id,
            verdict=verdict,
            exit_code=code,
            why=why,
            restarts=self._generations[-1].number if self._generations else 0,
            generations=tuple(self._generations),
        )
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            # Not msgspec's encoder: a path in it may be no text, and json escapes such a one.
            temporary.write_text(json.dumps(msgspec.to_builtins(record), indent=1))
            temporary.replace(self.path)
        except OSError as error:
            print(printable(f"hpctl elastic: no account: {error}"), file=sys.stderr, flush=True)
            self.path = None


def read(path: Path) -> AccountRecord:
    """Read an account. Raises HpctlError; FileNotFoundError where there is none (yet)."""
    text = path.read_text(encoding="utf-8")
    try:
        return msgspec.convert(json.loads(text), AccountRecord)
    except ValueError as error:
        raise HpctlError(f"{path} is no account of hpctl elastic: {error}") from error


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
