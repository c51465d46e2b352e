"""Which nodes Slurm has, for the alerts of Alertmanager: on a leader and on a standby."""

import threading
import time
from collections.abc import Mapping
from typing import Protocol

from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.observe import ClusterObserver
from hpctl.vocabulary.identity import NodeGeneration, NodeName
from hpctl.vocabulary.slurm_facts import SchedulerView

READ_S = 60.0
"""How often at most a standby reads the nodes' addresses, seconds."""


class DaemonServingStatus(Protocol):
    """Knows whether this daemon serves."""

    @property
    def serves(self) -> bool:
        """Return whether this daemon takes reports and requests now."""


class SlurmReader(Protocol):
    """Reads Slurm once."""

    def view(self) -> SchedulerView:
        """Return all nodes and jobs. Raises Unavailable."""


class NodeAddressDirectory:
    """The addresses and the generations of Slurm's nodes. For any thread.

    A leader knows both from its cycles and its agents. A standby has no cycles and no agents: it
    asks Slurm for the addresses, and knows no generation.
    """

    def __init__(
        self,
        observer: ClusterObserver,
        health: NodeHealthStore,
        leadership: DaemonServingStatus,
        slurm: SlurmReader,
    ) -> None:
        """`slurm` is read by a standby alone."""
        self._observer, self._health = observer, health
        self._leadership, self._slurm = leadership, slurm
        self._lock = threading.Lock()
        self._known: Mapping[NodeName, str] = {}
        self._known_until = 0.0

    def addresses(self) -> Mapping[NodeName, str]:
        """Return the address that Slurm has for each node. Raises Unavailable."""
        if self._leadership.serves:
            return self._observer.addresses()
        with self._lock:
            if time.monotonic() > self._known_until:
                nodes = self._slurm.view().nodes
                self._known = {name: node.address for name, node in nodes.items()}
                self._known_until = time.monotonic() + READ_S
            return self._known

    def find_generation(self, node: NodeName) -> NodeGeneration | None:
        """Return which generation of a node spoke last; None where that is not known."""
        return self._health.find_generation(node) if self._leadership.serves else None
