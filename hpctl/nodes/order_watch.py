"""Follow the recoveries that an operator's orders have opened, until each has ended.

The daemon carries an order out. The output is the timeline of `hpctl explain`, line by line as it
comes, and what is awaited where nothing comes for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from hpctl.engine.journal.state import EngineState
from hpctl.engine.timeline import (
    RecoveryTimelineLine,
    build_recovery_timeline,
    find_next_awaited_event,
)
from hpctl.engine.world import World
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.node_recovery import NodeRecovery

EVERY_S = 2.0
"""How often the daemon's world is read: on its socket, which costs slurmctld nothing."""
BEAT_S = 60.0
"""Seconds between reports of what is awaited, where nothing happens."""
GONE_S = 120.0
"""How long no daemon may lead before the order is left to the next one: a standby takes over, or
systemd starts another, within seconds."""


class NodeOrderWatchDependencies(Struct, frozen=True):
    """What the outside world is to a watch."""

    read: Callable[[], World]
    """Read the world as it is known now. Raises HpctlError."""
    tell: Callable[[str], None]
    """Show one line."""
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class NodeOrderWatch:
    """A watch of the recoveries of some nodes until each has ended. Changes nothing."""

    def __init__(self, nodes: Sequence[NodeName], ports: NodeOrderWatchDependencies) -> None:
        """`nodes`: those whose order the daemon has accepted, so that a recovery is open."""
        self._nodes, self._ports = nodes, ports
        self._recoveries: dict[NodeName, RecoveryId] = {}
        self._told: set[tuple[RecoveryId, RecoveryTimelineLine]] = set()
        self._trouble = ""
        self._spoke = ports.monotonic()
        self._led = ports.monotonic()

    def follow(self) -> list[NodeRecovery]:
        """Return the recoveries once each has ended, in the order of the nodes.

        Raises Unavailable where no daemon has led for `GONE_S`, or the world could not be read for
        so long: the order stays with the next daemon.
        """
        while True:
            world = self._read_world()
            if world is not None:
                found = self._find_ordered_recoveries(world.state)
                for rec in found:
                    self._print_new_recovery_events(rec, world)
                if len(found) == len(self._nodes) and all(rec.ended for rec in found):
                    return found
                self._print_recovery_wait_reasons(found, world)
            if self._ports.monotonic() - self._led > GONE_S:
                raise ServiceUnavailable(
                    f"the daemon has not answered for {GONE_S:.0f} s {self._trouble}".strip(),
                    "the order stays with it: hpctl status, and hpctl explain NODE once it runs",
                )
            self._ports.sleep(EVERY_S)

    def _read_world(self) -> World | None:
        try:
            world = self._ports.read()
        except HpctlError as error:
            self._trouble = f"({error})"
            return None
        if world.is_daemon_alive:
            self._led, self._trouble = self._ports.monotonic(), ""
        return world

    def _find_ordered_recoveries(self, state: EngineState) -> list[NodeRecovery]:
        """Return the recoveries that the orders opened: the newest of each node when it was first
        seen."""
        for node in self._nodes:
            if node not in self._recoveries and node in state.last_of_node:
                self._recoveries[node] = state.last_of_node[node]
        return [state.nodes[rid] for rid in self._recoveries.values() if rid in state.nodes]

    def _print_new_recovery_events(self, rec: NodeRecovery, world: World) -> None:
        # A step's line changes once its outcome is known, and is reported again.
        for line in build_recovery_timeline(rec, world.state):
            if (rec.id, line) not in self._told:
                self._told.add((rec.id, line))
                self._print_status_line(f"{line.at:%Y-%m-%dT%H:%M:%SZ} {rec.node}: {line.text}")

    def _print_recovery_wait_reasons(self, found: Sequence[NodeRecovery], world: World) -> None:
        if self._ports.monotonic() - self._spoke <= BEAT_S:
            return
        for rec in found:
            if not rec.ended:
                what = find_next_awaited_event(rec, world.policy).what
                self._print_status_line(
                    f"{world.now:%Y-%m-%dT%H:%M:%SZ} {rec.node}: waits for {what}"
                )

    def _print_status_line(self, text: str) -> None:
        self._ports.tell(text)
        self._spoke = self._ports.monotonic()
