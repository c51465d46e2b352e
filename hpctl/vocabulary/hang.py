"""A job that makes no progress."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Struct

from hpctl.vocabulary.identity import JobId, NodeName

ENDED_GATE: Final = "ended"
"""The gate of a hold on a run that its policy leaves as Slurm ended it: no person has to act."""

HANG_GATE: Final = "hang"
"""The gate of a hold on a job that hangs and whose policy leaves it as it is."""

OTHERS_GATE: Final = "hang_of_others"
"""The gate of a hold on a job whose hangs another tool or a supervisor looks after."""


class JobHang(Struct, frozen=True):
    """A run without progress for longer than its past explains. `node`: the one that is odd,
    where exactly one is. `other`: which other program treats its hangs; empty for none."""

    since: datetime
    why: str
    node: NodeName | None = None
    other: str = ""


class StalledJobRun(Struct, frozen=True):
    """A run of which nothing works. `since`: when it was last seen at work, or first looked at.
    `why`: what its processes do instead, as the agents of its nodes count them."""

    job: JobId
    since: datetime
    why: str
