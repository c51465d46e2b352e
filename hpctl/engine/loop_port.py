"""The loop, as the threads of the intake and of the notifications use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:  # the intake's process has none of them
    from hpctl.engine.journaled_state import JournaledState
    from hpctl.engine.observe import ClusterObserver
    from hpctl.vocabulary.ports import Clock


class RecoveryLoopAccess(Struct, frozen=True):
    """What the loop knows, by which clock, and how to wake it."""

    observer: ClusterObserver
    memory: JournaledState
    clock: Clock
    poke: Callable[[], None]
    """Wakes the loop. Safe from any thread."""
