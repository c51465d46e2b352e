"""Believed reports on their way to the journal: in order for each node, many in one write.

All of it runs on the event loop, so it needs no locks; only the writing itself happens on threads.
What arrives while those are busy waits and is then written together: a thousand nodes that report
at once cost a few transactions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Protocol

from hpctl.core.model import NodeName, Report
from hpctl.daemon.refusal import Refusal
from hpctl.protocol import reports as wire

log = logging.getLogger(__name__)

WRITERS = 2
"""Writes at once. The journal takes them in turn, but one that hangs does not stop the others."""

MOST = 128
"""Reports of one write: each may have a quarter of a megabyte."""

Heard = Callable[[wire.Heartbeat], bool]
"""Notes that a node lives; False where the digest is not that of the findings held of it.
Called on the event loop: it must not block."""


class Accept(Protocol):
    """Stores reports durably, all or none, and wakes the loop; no two of one node at a time.

    Called on threads of the intake. Whatever it raises is answered with 503.
    """

    def __call__(self, *reports: Report) -> None:
        """Store them."""
        ...


class Inbox:
    """What was taken of each node, and what waits to be stored. For the event loop alone."""

    def __init__(self, accept: Accept, heard: Heard) -> None:
        self._accept, self._heard = accept, heard
        self._newest: dict[NodeName, tuple[datetime, int]] = {}
        self._waiting: list[tuple[Report, asyncio.Future[None]]] = []
        self._busy: set[NodeName] = set()
        self._writes = 0
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="intake-store")

    def hear(self, heartbeat: wire.Heartbeat) -> None:
        """Note a heartbeat. Raises Refusal.

        It does not wait for a report of the same node that is being stored: it changes no
        finding, so a report that ends after it loses nothing.
        """
        self._check_newer(heartbeat)
        if not self._heard(heartbeat):
            hint = "Send the findings: agents do so at once."
            raise Refusal(409, "unknown_digest", "these findings are not held here", hint)
        self._note(heartbeat)

    async def store(self, report: Report) -> None:
        """Have a report stored after those of its node that came before. Raises Refusal."""
        stored = asyncio.get_running_loop().create_future()
        self._waiting.append((report, stored))
        self._write()
        await stored

    def _write(self) -> None:
        """Start writing what may be written now."""
        if self._writes >= WRITERS:
            return
        batch: list[tuple[Report, asyncio.Future[None]]] = []
        later = []
        for report, stored in self._waiting:
            if report.node in self._busy or len(batch) >= MOST:
                later.append((report, stored))
                continue
            try:
                self._check_newer(report)
            except Refusal as refusal:
                _settle(stored, refusal)
                continue
            self._busy.add(report.node)
            batch.append((report, stored))
        self._waiting = later
        if batch:
            self._writes += 1
            reports = [report for report, _ in batch]
            writing = asyncio.get_running_loop().run_in_executor(self._pool, self._accept, *reports)
            writing.add_done_callback(lambda done: self._written(batch, done.exception()))

    def _written(
        self, batch: list[tuple[Report, asyncio.Future[None]]], error: BaseException | None
    ) -> None:
        self._writes -= 1
        refusal = None
        if error is not None:
            # Whatever broke, nothing of it was stored: the agents must hear that.
            log.error("%d reports could not be stored", len(batch), exc_info=error)
            text = f"not stored: {error}"
            refusal = Refusal(503, "journal_unavailable", text, "See the daemon's log.")
        for report, stored in batch:
            self._busy.discard(report.node)
            if refusal is None:
                self._note(report)
            _settle(stored, refusal)
        self._write()

    def _check_newer(self, said: Report | wire.Heartbeat) -> None:
        newest = self._newest.get(NodeName(said.node))
        if newest is not None and (said.agent_start, said.seq) <= newest:
            raise Refusal(
                409,
                "stale_report",
                f"report {said.seq} of the agent started {said.agent_start.isoformat()} is not "
                f"newer than {newest[1]} of the one started {newest[0].isoformat()}",
            )

    def _note(self, said: Report | wire.Heartbeat) -> None:
        """A report may end after a later heartbeat: what was taken never grows older."""
        node, now = NodeName(said.node), (said.agent_start, said.seq)
        self._newest[node] = max(now, self._newest.get(node, now))


def _settle(stored: asyncio.Future[None], refusal: Refusal | None) -> None:
    """Tell the request that waits, if it still does: a client may have gone."""
    if stored.cancelled():
        return
    if refusal is None:
        stored.set_result(None)
    else:
        stored.set_exception(refusal)
