"""A job that stands still."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from hpctl.vocabulary.identity import NodeName


class Hang(Struct, frozen=True):
    """A run that stands still for longer than its past explains. `node`: the one that is odd,
    where exactly one is. `other`: who else looks after its hangs; empty for nobody."""

    since: datetime
    why: str
    node: NodeName | None = None
    other: str = ""
