"""What happened to a job before, as records that outlive a requeue."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from hpctl.vocabulary.run_policy import Action
from hpctl.vocabulary.trouble import Trouble

HISTORIES = ".hpctl"
"""Where they are in a checkpoint directory."""


MOST_SAVES = 8
"""That are kept of one attempt: a file that grows with every checkpoint would have no end."""


LARGEST = 16 << 20
"""Bytes of history that are read, from the end: tens of thousands of attempts."""


class AttemptStarted(msgspec.Struct, frozen=True, tag="started", omit_defaults=True):
    """A step was launched. `restart` is Slurm's restart count, `attempt` counts all steps."""

    attempt: int
    restart: int
    at: datetime
    nodes: str
    resume: str | None = None
    step: int | None = None


class TroubleTreated(msgspec.Struct, frozen=True, tag="treated", omit_defaults=True):
    """A trouble was answered."""

    attempt: int
    trouble: Trouble
    action: Action
    why: str


class AttemptEnded(msgspec.Struct, frozen=True, tag="ended", omit_defaults=True):
    """An attempt ended: with which code, and why in one sentence."""

    attempt: int
    at: datetime
    code: int
    why: str


class CheckpointSaved(msgspec.Struct, frozen=True, tag="saved", omit_defaults=True):
    """What saving a checkpoint took, by the program. Of each attempt the first few are kept."""

    attempt: int
    at: datetime
    seconds: float


Record = AttemptStarted | TroubleTreated | AttemptEnded | CheckpointSaved


_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def read_records(raw: bytes) -> Iterable[Record]:
    """Return the records of a file's bytes; lines that are none are passed over."""
    for line in raw[-LARGEST:].split(b"\n"):
        try:
            yield _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
