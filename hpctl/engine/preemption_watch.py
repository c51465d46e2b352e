"""What Slurm lets preempt what, read in the background where a job may have been preempted.

By QOS only slurmdbd knows it, which may be away: no cycle waits for it, and a job that is requeued
meanwhile is called preempted once it is known.
"""

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Final, Protocol

from hpctl.engine.preemption import is_job_possibly_preempted
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.toolkit.threads import start_thread_pool
from hpctl.vocabulary.ports import Clock
from hpctl.vocabulary.preemption_order import PreemptionOrder
from hpctl.vocabulary.slurm_facts import SlurmJob

log = logging.getLogger("hpctl.daemon")

KNOWN_S: Final = 600.0
"""How long what was read is taken to hold, in seconds."""
AGAIN_S: Final = 30.0
"""How soon it is read again where that failed, in seconds."""


class PreemptionOrderSource(Protocol):
    """Slurm, as far as preemption goes."""

    def preemption_order(self) -> PreemptionOrder:
        """Return what may preempt what. Raises Unavailable."""


class PreemptionOrderCache:
    """Keeps the order that was read last."""

    def __init__(self, source: PreemptionOrderSource, clock: Clock) -> None:
        """Start the thread that reads. The loop starts none later, when memory may be short."""
        self._source, self._clock = source, clock
        self._order = PreemptionOrder()
        self._due = float("-inf")
        self._pool = start_thread_pool(1, "preemption")
        self._reading: Future[None] | None = None

    def look(self, jobs: Iterable[SlurmJob]) -> PreemptionOrder:
        """Return what is known. Begin to read it where one of these jobs asks for it."""
        busy = self._reading is not None and not self._reading.done()
        if (
            busy
            or self._clock.monotonic() < self._due
            or not any(map(is_job_possibly_preempted, jobs))
        ):
            return self._order
        self._due = self._clock.monotonic() + KNOWN_S
        self._reading = self._pool.submit(self._read)
        return self._order

    def _read(self) -> None:
        try:
            self._order = self._source.preemption_order()
        except ServiceUnavailable as error:
            log.warning("which jobs preempt which others is not known: %s", error)
        # The pool keeps the error to itself, and the next reading would be due after KNOWN_S.
        except Exception:
            log.exception("which jobs preempt which others is not known")
        else:
            return
        self._due = self._clock.monotonic() + AGAIN_S
