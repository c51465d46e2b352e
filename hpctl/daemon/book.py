"""What the agents have said: in memory for the loop, in the journal for a restart.

A report with something new in it is on stable storage before its agent is answered; those that
wait at the same time are written in one transaction. A mere heartbeat is not worth a disk write:
when each node was heard is stored by `flush`, all in one row. A daemon that starts again thus may
take a node for silent a few seconds too early, which is Unknown and no reason to act, until the
node's next word; and it holds no digests, so that every agent sends its findings once more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime

from hpctl.core.health import fold_report
from hpctl.core.model import Generation, Health, NodeName, Report
from hpctl.ports import Clock
from hpctl.protocol import reports as wire


def _forget(_: Mapping[NodeName, datetime]) -> None:
    """Keep in memory alone when nodes were heard."""


class Book:
    """The agents' facts. `accept` and `heard` are the intake's, the rest the loop's."""

    def __init__(
        self,
        known: Mapping[NodeName, Health],
        record: Callable[[Sequence[Health]], None],
        poke: Callable[[], None],
        clock: Clock,
        note_heard: Callable[[Mapping[NodeName, datetime]], None] = _forget,
    ) -> None:
        """Start from what a former daemon knew; `record` and `note_heard` store, `poke` wakes
        the loop."""
        self._health = dict(known)
        self._digests: dict[NodeName, tuple[Generation, str]] = {}
        self._unsaved: set[NodeName] = set()
        self._heard_since_flush = False
        self._note_heard = note_heard
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._record = record
        self._poke = poke
        self._clock = clock

    def accept(self, *reports: Report) -> None:
        """Take believed reports in, all or none, in one write; from any thread.

        Raises OSError where they could not be stored. It may wait for the disk.
        """
        with self._writing:
            fresh: dict[NodeName, Health] = {}
            news: set[NodeName] = set()
            now = self._clock.now()
            for report in reports:
                before = fresh.get(report.node) or self._known(report.node)
                fresh[report.node], new = fold_report(before, report, now)
                if new:
                    news.add(report.node)
            if news:
                self._record([fresh[node] for node in news])
            with self._lock:
                self._health.update(fresh)
                for report in reports:
                    digest = wire.digest(report.findings)
                    self._digests[report.node] = (report.generation, digest)
                self._unsaved.difference_update(news)
                self._unsaved.update(fresh.keys() - news)
        if news:
            self._poke()

    def touch(self, nodes: Iterable[NodeName]) -> None:
        """Have these nodes stored with the next flush: what stands beside them changed."""
        with self._lock:
            self._unsaved.update(node for node in nodes if node in self._health)

    def _known(self, node: NodeName) -> Health | None:
        with self._lock:
            return self._health.get(node)

    def heard(self, heartbeat: wire.Heartbeat) -> bool:
        """Note that a node lives. False where its findings are not those that are held.

        Held in memory alone, and quick: called for each heartbeat of ten thousand nodes.
        """
        node = NodeName(heartbeat.node)
        with self._lock:
            if self._digests.get(node) != (heartbeat.generation, heartbeat.digest):
                return False
            known = self._health[node]
            self._health[node] = Health(known.generation, self._clock.now(), known.findings)
            self._heard_since_flush = True
        return True

    def generation_of(self, node: NodeName) -> Generation | None:
        """Which generation of a node spoke last. From any thread."""
        known = self._known(node)
        return known.generation if known else None

    def snapshot(self) -> dict[NodeName, Health]:
        """What is known now, as a value of its own."""
        with self._lock:
            return dict(self._health)

    def flush(self) -> None:
        """Store what is newer in memory than on disk. Raises OSError."""
        # Read within the turn to write, so that no older word is written over a newer one.
        with self._writing:
            with self._lock:
                nodes, self._unsaved = self._unsaved, set()
                rows = [self._health[node] for node in nodes]
                heard = {}
                if self._heard_since_flush:
                    heard = {node: health.last_heard for node, health in self._health.items()}
                self._heard_since_flush = False
            try:
                self._record(rows)
                if heard:
                    self._note_heard(heard)
            except BaseException:
                with self._lock:
                    self._unsaved |= nodes
                    self._heard_since_flush = True
                raise
