"""What happened to a job before, durable across requeues, and what the job's log shows of it.

One JSON object a line, appended and synced line by line, by the one supervisor that runs at a time.
A line that a crash tore is ignored, and the next append begins a new line. Where the file cannot be
written the run continues with what is in memory: a full disk must not end a job.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.checkpoints.run_records import (
    LARGEST,
    MOST_SAVES,
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    FailureHandled,
    Record,
    decode_run_history_records,
)
from hpctl.jobs.decide import PastJobFailure
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.toolkit.user_files import open_own_file, read_own_file_tail
from hpctl.vocabulary.identity import NodeName

ASKED_TO_END = "it was asked to end"


class JobHistory(Struct):
    """One job's records. `path` is None where there is no place to keep them."""

    path: Path | None
    records: list[Record] = field(default_factory=list)
    broken: str = ""
    """Why the file cannot be used, once it could not."""
    parents: bool = False

    def pop_problem(self) -> str:
        """Return why the file cannot be used, once; empty where it can."""
        problem, self.broken = self.broken, ""
        return problem

    @classmethod
    def open(cls, path: Path | None, *, parents: bool = False) -> JobHistory:
        """Read what there is. Never raises: a history that cannot be read is in `broken`.

        Only `parents` lets directories above the file's own be made. A checkpoint directory must
        not be: where its file system is not mounted, it would be an empty one on the node's disk,
        and an empty one means a first start.
        """
        if path is None:
            return cls(None)
        try:
            raw = read_own_file_tail(path, LARGEST)
        except FileNotFoundError:
            raw = b""
        except OSError as error:
            return cls(path, [], f"cannot read {path}: {error.strerror}", parents)
        return cls(path, list(decode_run_history_records(raw)), "", parents)

    def add(self, record: Record) -> None:
        """Remember a record, on stable storage where that works. Never raises."""
        self.records.append(record)
        if self.path is None:
            return
        try:
            # Where the umask lets a group write, it could put its own files beside this one.
            self.path.parent.mkdir(0o755, parents=self.parents, exist_ok=True)
            _append_line_to_history_file(self.path, msgspec.json.encode(record))
        except OSError as error:
            self.broken = f"cannot write {self.path}: {error.strerror}"
        except UnicodeEncodeError as error:  # a path, say, that is no UTF-8
            self.broken = f"cannot write {self.path}: {error}"

    def record_checkpoint_save_durations(
        self, attempt: int, at: datetime, took_s: Iterable[float]
    ) -> None:
        """Keep what saves took, as far as there is room for this attempt's."""
        kept = sum(isinstance(r, CheckpointSaved) and r.attempt == attempt for r in self.records)
        for seconds in islice(took_s, max(0, MOST_SAVES - kept)):
            self.add(CheckpointSaved(attempt, at, seconds))

    @property
    def past(self) -> list[PastJobFailure]:
        """Return the troubles and their treatment, oldest first: what `decide` asks for."""
        return [
            PastJobFailure(r.trouble, r.action)
            for r in self.records
            if isinstance(r, FailureHandled)
        ]

    @property
    def attempts(self) -> int:
        """Return how many steps were launched for this job."""
        return max((r.attempt for r in self.records if isinstance(r, AttemptStarted)), default=0)

    @property
    def last_attempt_start(self) -> AttemptStarted | None:
        """Return the attempt that was started last."""
        return next((r for r in reversed(self.records) if isinstance(r, AttemptStarted)), None)

    def correct_attempt_end_reason(self, restart: int, why: str) -> None:
        """Record why a run's last attempt ended, where the attempt itself did not know."""
        of_run = [
            r.attempt
            for r in self.records
            if isinstance(r, AttemptStarted) and r.restart == restart
        ]
        ends = [r for r in self.records if isinstance(r, AttemptEnded) and r.attempt in of_run]
        if ends and ends[-1].why == ASKED_TO_END:
            self.add(replace(ends[-1], why=f"{ASKED_TO_END}: {why}"))


def _append_line_to_history_file(path: Path, line: bytes) -> None:
    """Write one line and sync it. Raises OSError."""
    fd = open_own_file(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        os.write(fd, (b"\n" if torn else b"") + line + b"\n")
        os.fsync(fd)
    finally:
        os.close(fd)


LOG_PREFIX = "hpctl: "
"""How each line begins; the log rules pass such lines over."""


REASON_CHARS = 100


def format_supervisor_log_time(at: datetime) -> str:
    """Return a time as the log rules read it."""
    return f"{at:%Y-%m-%dT%H:%M:%S}Z"


def format_attempt_start_line(
    at: datetime, attempt: int, nodes: Sequence[NodeName], spare: int, resume: str | None
) -> str:
    """Return the line before a step's own output."""
    spares = f" and {spare} spare" if spare else ""
    many = "node" if len(nodes) == 1 else "nodes"
    place = f"resuming from {resume}" if resume else "from the beginning"
    return (
        f"{LOG_PREFIX}{format_supervisor_log_time(at)} attempt {attempt} on {len(nodes)}"
        f" {many}{spares},"
        f" {fold_hostlist(nodes)}, {place}"
    )


def format_supervisor_log_line(at: datetime, text: str) -> str:
    """Return any other line."""
    return f"{LOG_PREFIX}{format_supervisor_log_time(at)} {' '.join(text.split())}"


def format_duration(seconds: float) -> str:
    """Return `3.2 s`, `4 min 10 s`, `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_attempts_table(records: Sequence[Record]) -> list[str]:
    """Return all attempts of the job, of earlier runs too, as a table."""
    begun = [r for r in records if isinstance(r, AttemptStarted)]
    ends = {r.attempt: r for r in records if isinstance(r, AttemptEnded)}
    rows = [("attempt", "started", "ran", "nodes", "from", "ended")]
    for start in begun:
        end = ends.get(start.attempt)
        ran = format_duration((end.at - start.at).total_seconds()) if end else "?"
        place = "the beginning" if start.resume is None else start.resume.rpartition("/")[2]
        why = end.why if end else "no end was recorded: the supervisor was lost"
        rows.append(
            (
                str(start.attempt),
                format_supervisor_log_time(start.at),
                ran,
                start.nodes,
                place,
                _shorten_attempt_end_reason(why),
            )
        )
    *padded, _ = zip(*rows, strict=True)
    widths = [max(map(len, column)) for column in padded]
    lines = []
    for row in rows:
        words = map(str.ljust, row, widths)
        lines.append(LOG_PREFIX + "  ".join([*words, row[-1]]))
    return lines


def _shorten_attempt_end_reason(why: str) -> str:
    return why if len(why) <= REASON_CHARS else why[: REASON_CHARS - 3] + "..."
