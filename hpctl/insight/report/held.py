"""Faulty nodes that a gate held and that nothing treated, from the events of a journal. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from hpctl.engine.journal.events import Event, GateBlocked, HoldLifted, NodeRecoveryOpened
from hpctl.engine.journal.state import EngineState
from hpctl.engine.plan import GATE as INTERNAL_ERROR
from hpctl.vocabulary.identity import NodeName, RuleId

_NOW_TREATED: Final = timedelta(minutes=1)
"""A recovery that opens so soon after a hold treats what was held."""


class UntreatedFault(Struct):
    """A fault of a node from its first hold to its last. `gate`: the last that held it."""

    node: NodeName
    rule: RuleId
    gate: str
    begun: datetime
    ended: datetime | None = None


class UntreatedFaultCollector:
    """Collects them, event by event."""

    def __init__(self) -> None:
        """Nothing was held yet."""
        self._found: list[UntreatedFault] = []
        self._last: dict[NodeName, UntreatedFault] = {}

    def take(self, event: Event, state: EngineState) -> None:
        """Take one event, of which `state` knows already."""
        match event:
            case GateBlocked() if (
                not _is_gate_block_for_job(event) and event.gate != INTERNAL_ERROR
            ):
                self._record_gate_block(event, state)
            case HoldLifted():
                last = self._last.get(NodeName(event.target))
                if last is not None and last.ended is None:
                    last.ended = event.at
            case NodeRecoveryOpened():
                self._forget_treated_fault(event.generation.node, event.at)

    def _record_gate_block(self, event: GateBlocked, state: EngineState) -> None:
        node = NodeName(event.target)
        if node in state.open_nodes:
            return
        last = self._last.get(node)
        if last is not None and last.ended is None and last.rule == event.rule:
            last.gate = event.gate
            return
        if last is not None and last.ended is None:
            last.ended = event.at
        self._last[node] = held = UntreatedFault(node, event.rule, event.gate, event.at)
        self._found.append(held)

    def _forget_treated_fault(self, node: NodeName, at: datetime) -> None:
        """Forget what a recovery treats: it is counted with the recoveries."""
        last = self._last.pop(node, None)
        if last is None:
            return
        if last.ended is None or at - last.ended <= _NOW_TREATED:
            self._found.remove(last)

    def list_untreated_faults(self) -> Sequence[UntreatedFault]:
        """Return all faults that were held and not treated, in the order in which they began."""
        return tuple(self._found)


def _is_gate_block_for_job(hold: GateBlocked) -> bool:
    return hold.target.isdecimal() or bool(hold.known_as)
