"""What the head node finds by itself and adds to what the agents say: peers compared, history.

These findings stand beside the agents' own and never among them: they are put in when the loop
looks at the nodes' health and when that health is stored for `hpctl explain`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from hpctl.core.journal import State
from hpctl.core.lemons import CHECK, finding, lemons
from hpctl.core.model import (
    Finding,
    Generation,
    Health,
    InstanceId,
    NodeName,
    ProviderView,
    SchedulerView,
)
from hpctl.core.peers import WINDOW, groups_of
from hpctl.core.view import fresh
from hpctl.core.walls import walled
from hpctl.daemon.book import Book
from hpctl.daemon.peers_book import PeersBook
from hpctl.ports import Clock

log = logging.getLogger(__name__)

OWN_CHECKS = ("peer.", CHECK)
HISTORY_EVERY_S = 300.0
"""The score moves by days; a new recovery is looked at as soon."""


class Grey:
    """Compares peers each window on a thread of its own; `snapshot` is the loop's."""

    def __init__(
        self,
        book: Book,
        views: Callable[[], tuple[SchedulerView, ProviderView]],
        poke: Callable[[], None],
        clock: Clock,
        view_age_s: float = 60.0,
    ) -> None:
        """`views`: what Slurm and the cloud said last, from any thread; a view of Slurm that is
        older than `view_age_s` compares nobody. Nothing is compared before `start`."""
        self._book, self._views, self._poke, self._clock = book, views, poke, clock
        self._view_age_s = view_age_s
        self._peers = PeersBook()
        self._by_peers: Mapping[NodeName, tuple[Finding, ...]] = {}
        self._by_history: Mapping[InstanceId, Finding] = {}
        self._history_due = 0.0
        self._history_of = -1
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="peers", daemon=True)

    def hear(self, generation: Generation, gauges: Mapping[str, float]) -> None:
        """Take the gauges of a believed report or heartbeat in. From the intake's threads."""
        self._peers.take(generation, gauges)

    def start(self) -> None:
        """Begin to compare."""
        self._thread.start()

    def stop(self) -> None:
        """End it."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(WINDOW.total_seconds()):
            # Advice must not end the daemon, nor end for good by one bad window.
            flaw = walled("peers", "peers", lambda _: self.compare(), None)
            if flaw is not None:
                log.error("peers were not compared: %s", flaw)

    def compare(self) -> None:
        """Close the window and judge it. Wakes the loop where a node is new or gone."""
        now = self._clock.now()
        scheduler, provider = self._views()
        kinds = {i.node: i.group for i in provider.instances.values() if i.node is not None}
        known = fresh(scheduler.as_of, self._view_age_s, now)
        groups = groups_of(scheduler, kinds, now) if known else ()
        before, self._by_peers = self._by_peers, self._peers.judge(groups, now)
        if told := self._told(before) ^ self._told(self._by_peers):
            for node, check in sorted(told):
                log.info("node=%s check=%s found=%s", node, check, node in self._by_peers)
            self._book.touch({node for node, _ in told})
            self._poke()

    @staticmethod
    def _told(found: Mapping[NodeName, Sequence[Finding]]) -> set[tuple[NodeName, str]]:
        return {(node, f.check) for node, findings in found.items() for f in findings}

    def look_back(self, state: State) -> None:
        """Score the history where it has grown or time has passed. The loop's, for its state."""
        now = self._clock.monotonic()
        if state.events == self._history_of and now < self._history_due:
            return
        self._history_of, self._history_due = state.events, now + HISTORY_EVERY_S
        before = self._by_history
        worst = lemons(state, self._clock.now())
        self._by_history = {lemon.instance: finding(lemon) for lemon in worst}
        if before.keys() != self._by_history.keys():
            changed = before.keys() ^ self._by_history.keys()
            known = self._book.snapshot().items()
            self._book.touch({n for n, h in known if h.generation.instance in changed})

    def snapshot(self) -> dict[NodeName, Health]:
        """What the agents and the head node know together."""
        health = self._book.snapshot()
        concerned = set(self._by_peers)
        if self._by_history:
            instances = self._by_history
            concerned |= {n for n, h in health.items() if h.generation.instance in instances}
        for node in concerned & health.keys():
            health[node] = self._with_own(health[node])
        return health

    def beside(self, rows: Iterable[Health]) -> list[Health]:
        """The same of rows that are about to be stored."""
        return [self._with_own(row) for row in rows]

    def _with_own(self, health: Health) -> Health:
        generation = health.generation
        own = list(self._peers.of(generation, self._by_peers.get(generation.node, ())))
        if (lemon := self._by_history.get(generation.instance)) is not None:
            own.append(lemon)
        agents = [f for f in health.findings if not f.check.startswith(OWN_CHECKS)]
        if not own and len(agents) == len(health.findings):
            return health
        return replace(health, findings=(*agents, *own))
