"""`POST /v1/copy`: has the journal copied to where every user of the cluster may read it.

SQLite's readers lock what they read, and a lock that any user may take on the journal itself keeps
the daemon from writing it. So the journal is the daemon's and root's alone, and everybody
reads copies, each of which takes the place of the one before (docs/adr/0048). Answers 200 `{}`, at
once where the newest copy is young enough, or as proved_route.py says; 503 journal_unavailable.
"""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from hpctl.daemon.gatekeeper import IntakeSettings
from hpctl.daemon.proved_route import proved_route
from hpctl.daemon.refusal import Refusal
from hpctl.errors import HpctlError
from hpctl.ports import Clock
from hpctl.protocol import munge
from hpctl.protocol import reports as wire
from hpctl.store.sql import Store

EVERY_S: Final = 1.0
SHARE: Final = 20.0
"""A copy is made at most every EVERY_S, and then in a 20th of the time at most."""


class Copies:
    """Copies of a SQLite journal, made when somebody asks. For all threads."""

    def __init__(self, journal: Path, clock: Clock) -> None:
        self._journal, self._clock = journal, clock
        self._lock = threading.Lock()
        self._next = 0.0

    def make(self) -> None:
        """See that there is a young copy. Raises Refusal."""
        with self._lock:
            begun = self._clock.monotonic()
            if begun < self._next:
                return
            try:
                with closing(Store(f"sqlite:///{self._journal}", write=False)) as store:
                    store.copy_to(wire.copy_of(self._journal))
            except (HpctlError, OSError) as error:
                raise Refusal(503, "journal_unavailable", f"not copied: {error}") from error
            finally:
                ended = self._clock.monotonic()
                self._next = ended + max(EVERY_S, SHARE * (ended - begun))


def routes(
    copies: Copies, settings: IntakeSettings, registry: CollectorRegistry | None = None
) -> list[Route]:
    """The route for the intake's application: whoever MUNGE knows may have a copy made."""
    refused = Counter(
        "hpctl_copies_refused",
        "Asked-for copies of the journal that were not made.",
        ["code"],
        registry=registry or CollectorRegistry(),
    )

    async def told(_body: bytes, _who: munge.Credential) -> bytes:
        await run_in_threadpool(copies.make)
        return b"{}"

    return [proved_route(wire.COPY_PATH, 64, settings, told, refused)]
