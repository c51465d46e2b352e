"""How the daemon is: its troubles, its flaws, and what it stores of both."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from hpctl.engine.leadership import Leadership
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.node_health import NodeHealthStore
from hpctl.toolkit.bounds import make_printable
from hpctl.vocabulary.isolation import ItemProcessingFailure

log = logging.getLogger("hpctl.daemon")


class OperatorWarningSource(Protocol):
    """A part that may be in trouble."""

    @property
    def trouble(self) -> str:
        """Return what an operator should know; empty while nothing is wrong."""


class DaemonHousekeeping:
    """Stores what the loop has in memory alone, and logs trouble where it changes."""

    def __init__(
        self,
        live: LiveConfig,
        health: NodeHealthStore,
        leadership: Leadership,
        parts: Mapping[str, OperatorWarningSource],
        on_troubles: Sequence[Callable[[Mapping[str, str]], None]] = (),
    ) -> None:
        """The troubles of `parts` are listed in their order. Each of `on_troubles` receives them by
        part, after each cycle."""
        self._live, self._health, self._leadership = live, health, leadership
        self._parts, self._on_troubles = parts, on_troubles
        self._trouble = ""
        self._next = 0.0

    def run(self, last_cycle_s: float) -> None:
        """Do it where it is due, or where the trouble changed. Raises LeaseLostError, OSError,
        Unavailable."""
        troubles = {name: part.trouble for name, part in self._parts.items()}
        for take_troubles in self._on_troubles:
            take_troubles(troubles)
        trouble = "; ".join(filter(None, troubles.values()))
        now = time.monotonic()
        changed = trouble != self._trouble
        if now < self._next and not changed:
            return
        if changed and trouble:
            log.warning("trouble=%s", trouble)
        elif changed:
            log.info("trouble=none: the trouble of before is over")
        self._trouble = trouble
        self._next = now + self._live.config.flush_interval_s
        self._health.flush()
        self._leadership.note(last_cycle_s, trouble, self._live.config.mode)


class InconsistentStateLogger:
    """Logs each thing that is flawed once, as long as it is."""

    def __init__(self) -> None:
        """Nothing is flawed yet."""
        self._known: frozenset[tuple[str, str]] = frozenset()

    def note(self, flaws: Sequence[ItemProcessingFailure]) -> None:
        """Take everything that is flawed now."""
        for flaw in flaws:
            if (flaw.target, flaw.where) not in self._known:
                log.error(
                    "internal_error target=%s where=%s input=%s error=%s",
                    make_printable(flaw.target),
                    flaw.where,
                    flaw.digest,
                    flaw.error,
                )
        self._known = frozenset((flaw.target, flaw.where) for flaw in flaws)
