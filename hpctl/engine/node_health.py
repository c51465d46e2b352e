"""The health of every node: in memory for the loop, in the journal for a restart.

A report with something new in it is on stable storage before its agent is answered; those that
wait at the same time are written in one transaction. A mere heartbeat is not worth a disk write:
when each node was heard is stored by `flush`, all in one row. A daemon that starts again thus may
take a node for silent a few seconds too early, which is Unknown and no reason to act, until the
node's next heartbeat; and it holds no digests, so that every agent sends its findings once more.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Protocol

from msgspec.structs import replace

from hpctl.faults.health import limit_finding_count, merge_agent_report
from hpctl.vocabulary.identity import NodeGeneration, NodeName
from hpctl.vocabulary.model import AgentReport, Finding, NodeHealth
from hpctl.vocabulary.ports import Clock
from hpctl.wire import reports as wire


class NodeHealthWriter(Protocol):
    """Where health is stored: the journal's store."""

    def record(self, rows: Sequence[NodeHealth]) -> None:
        """Store rows, all or none. Raises OSError."""

    def store_last_heard_times(self, heard: Mapping[NodeName, datetime]) -> None:
        """Store when each node was heard. Raises OSError."""


class FindingsSource(Protocol):
    """A source that adds findings of the head node's to those of the agents."""

    checks: tuple[str, ...]
    """How the names of its checks begin."""

    def add_findings(self, health: dict[NodeName, NodeHealth]) -> None:
        """Add its findings, in place."""


class NodeHealthStore:
    """The agents' findings, and those of `sources` added where they are read or stored.

    `accept` and `heard` are called on the intake's threads, the rest on the loop's.
    """

    def __init__(
        self,
        known: Mapping[NodeName, NodeHealth],
        rows: NodeHealthWriter,
        poke: Callable[[], None],
        clock: Clock,
        sources: Sequence[FindingsSource] = (),
    ) -> None:
        """Start from what a former daemon knew; `poke` wakes the loop. The findings of `sources`
        are added in their order."""
        self._health = {node: limit_finding_count(health) for node, health in known.items()}
        self._sources = tuple(sources)
        self._digests: dict[NodeName, tuple[NodeGeneration, str]] = {}
        self._unsaved: set[NodeName] = set()
        self._heard_since_flush = False
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._rows = rows
        self._poke = poke
        self._clock = clock

    def take_over(self, known: Mapping[NodeName, NodeHealth]) -> None:
        """Start from what another daemon knew."""
        with self._lock:
            self._health = {node: limit_finding_count(health) for node, health in known.items()}
            self._digests.clear()

    def accept(self, *reports: AgentReport) -> None:
        """Take authenticated reports in, all or none, in one write; from any thread.

        Raises OSError where they could not be stored. It may wait for the disk.
        """
        with self._writing:
            fresh: dict[NodeName, NodeHealth] = {}
            news: set[NodeName] = set()
            now = self._clock.now()
            for report in reports:
                before = fresh.get(report.node) or self._find_node_health(report.node)
                fresh[report.node], new = merge_agent_report(before, report, now)
                if new:
                    news.add(report.node)
            if news:
                self._store_health_rows([fresh[node] for node in news])
            with self._lock:
                self._health.update(fresh)
                for report in reports:
                    digest = wire.compute_findings_digest(report.findings)
                    self._digests[report.node] = (report.generation, digest)
                self._unsaved.difference_update(news)
                self._unsaved.update(fresh.keys() - news)
        if news:
            self._poke()

    def touch(self, nodes: Iterable[NodeName], *, wake: bool) -> None:
        """Have these nodes stored with the next flush: a source's findings of them changed."""
        with self._lock:
            self._unsaved.update(node for node in nodes if node in self._health)
        if wake:
            self._poke()

    def _find_node_health(self, node: NodeName) -> NodeHealth | None:
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
            self._health[node] = NodeHealth(known.generation, self._clock.now(), known.findings)
            self._heard_since_flush = True
        return True

    def find_generation(self, node: NodeName) -> NodeGeneration | None:
        """Return which generation of a node spoke last. From any thread."""
        known = self._find_node_health(node)
        return known.generation if known else None

    def list_agent_findings(self, node: NodeName) -> tuple[Finding, ...]:
        """Return what a node's agent reported. From any thread."""
        known = self._find_node_health(node)
        return known.findings if known else ()

    def copy_agent_health(self) -> dict[NodeName, NodeHealth]:
        """Return what the agents reported, as a separate value."""
        with self._lock:
            return dict(self._health)

    def snapshot(self) -> dict[NodeName, NodeHealth]:
        """Return what the agents reported and the sources found, as a separate value."""
        health = self.copy_agent_health()
        for source in self._sources:
            source.add_findings(health)
        return health

    def _store_health_rows(self, rows: Sequence[NodeHealth]) -> None:
        """Store rows with what the sources find now, whatever an agent calls its checks."""
        own = tuple(chain.from_iterable(source.checks for source in self._sources))
        health = drop_findings_of_checks({row.generation.node: row for row in rows}, own)
        for source in self._sources:
            source.add_findings(health)
        self._rows.record(list(health.values()))

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
                self._store_health_rows(rows)
                if heard:
                    self._rows.store_last_heard_times(heard)
            except BaseException:
                with self._lock:
                    self._unsaved |= nodes
                    self._heard_since_flush = True
                raise


def drop_findings_of_checks(
    health: Mapping[NodeName, NodeHealth], checks: tuple[str, ...]
) -> dict[NodeName, NodeHealth]:
    """Return the same without the findings of checks that begin so."""
    kept = {}
    for node, seen in health.items():
        others = tuple(each for each in seen.findings if not each.check.startswith(checks))
        is_same = len(others) == len(seen.findings)
        kept[node] = seen if is_same else replace(seen, findings=others)
    return kept
