"""How long a command waits for a node, from the order on."""

from hpctl.clusters.order_terms import TIMEOUT_S, NodeAction, NodeOrderOptions
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.ports import Clock


class NodeOrderLatenessTracker:
    """Notes when each node was first seen ordered."""

    def __init__(self, verb: NodeAction, options: NodeOrderOptions, clock: Clock) -> None:
        self._limit_s = options.timeout_s or TIMEOUT_S[verb]
        self._clock = clock
        self._ordered_at: dict[str, float] = {}

    def find(self, rec: NodeRecovery) -> str:
        """Return why a node is late; empty while it is in time, or not ordered yet."""
        if not rec.remedied:
            return ""
        now = self._clock.monotonic()
        begun = self._ordered_at.setdefault(rec.node, now)
        return f"not back after {self._limit_s:.0f} s" if now - begun > self._limit_s else ""
