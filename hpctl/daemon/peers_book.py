"""The agents' gauges on the head node: one open window a node, judged and forgotten.

In memory only. Of each node there are the sums of the window that is open and, where something
stood out lately, its tracks (`core.peers`): a few hundred bytes a node, whatever the agents send.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from datetime import datetime

from hpctl.core import peers
from hpctl.core.model import Finding, Generation, NodeName
from hpctl.core.peer_signals import GAUGES

_PLACE = {gauge: n for n, gauge in enumerate(GAUGES)}
_WIDTH = len(_PLACE)


class PeersBook:
    """Gauges in, findings out. `take` runs on the intake's threads, `judge` on one other."""

    def __init__(self) -> None:
        """Nothing is known: after a restart a fault is found anew within its windows."""
        self._lock = threading.Lock()
        self._open: dict[NodeName, tuple[Generation, list[float], list[int]]] = {}
        self._memory: peers.Memory = {}
        self._generations: dict[NodeName, Generation] = {}

    def take(self, generation: Generation, gauges: Mapping[str, float]) -> None:
        """Add what an agent sent to its node's window. Names that nobody compares are passed
        over."""
        if not gauges:
            return
        with self._lock:
            known = self._open.get(generation.node)
            if known is None or known[0] != generation:
                known = (generation, [0.0] * _WIDTH, [0] * _WIDTH)
                self._open[generation.node] = known
            _, sums, counts = known
            for gauge, value in gauges.items():
                place = _PLACE.get(gauge)
                if place is not None:
                    sums[place] += value
                    counts[place] += 1

    def judge(
        self, groups: Iterable[peers.Group], now: datetime
    ) -> dict[NodeName, tuple[Finding, ...]]:
        """Close the window and answer everything that is found at present, by node."""
        with self._lock:
            closed, self._open = self._open, {}
        renewed = {
            node for node, (generation, _, _) in closed.items() if self._renewed(node, generation)
        }
        self._generations.update((node, known[0]) for node, known in closed.items())
        memory = {key: t for key, t in self._memory.items() if key[0] not in renewed}
        self._memory = peers.judge(groups, _means(closed), memory, now)
        return peers.findings(self._memory)

    def of(self, generation: Generation, found: tuple[Finding, ...]) -> tuple[Finding, ...]:
        """`found`, where it was that generation that was judged; else nothing."""
        return found if self._generations.get(generation.node) == generation else ()

    def _renewed(self, node: NodeName, generation: Generation) -> bool:
        """Another boot or instance: what the former one did is no evidence against it."""
        return self._generations.get(node, generation) != generation


def _means(
    closed: dict[NodeName, tuple[Generation, list[float], list[int]]],
) -> dict[NodeName, dict[str, float]]:
    return {
        node: {
            gauge: total / count
            for gauge, total, count in zip(GAUGES, sums, counts, strict=True)
            if count
        }
        for node, (_, sums, counts) in closed.items()
    }
