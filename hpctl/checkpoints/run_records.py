"""The history of a job, as records that outlive a requeue."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.trouble import Trouble

HISTORIES = ".hpctl"
"""The directory of the records in a checkpoint directory."""


MOST_SAVES = 8
"""Saves that are kept of one attempt: a file that grows with every checkpoint would have no
limit."""


LARGEST = 16 << 20
"""Bytes of history that are read, from the end: tens of thousands of attempts."""


class AttemptStarted(msgspec.Struct, frozen=True, tag="started", omit_defaults=True):
    """The launch of a step. `restart` is Slurm's restart count, `attempt` counts all steps."""

    attempt: int
    restart: int
    at: datetime
    nodes: str
    resume: str | None = None
    step: int | None = None


class FailureHandled(msgspec.Struct, frozen=True, tag="treated", omit_defaults=True):
    """An action on a trouble."""

    attempt: int
    trouble: Trouble
    action: RunAction
    why: str


class AttemptEnded(msgspec.Struct, frozen=True, tag="ended", omit_defaults=True):
    """The end of an attempt: its exit code, and the reason in one sentence."""

    attempt: int
    at: datetime
    code: int
    why: str


class CheckpointSaved(msgspec.Struct, frozen=True, tag="saved", omit_defaults=True):
    """The cost of saving a checkpoint, as the program reports it. Of each attempt the first few are
    kept."""

    attempt: int
    at: datetime
    seconds: float


Record = AttemptStarted | FailureHandled | AttemptEnded | CheckpointSaved


_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def decode_run_history_records(raw: bytes) -> Iterable[Record]:
    """Yield the records in a file's bytes; other lines are passed over."""
    for line in raw[-LARGEST:].split(b"\n"):
        try:
            yield _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
