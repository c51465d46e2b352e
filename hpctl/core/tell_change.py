"""A change of capacity as a person would tell it."""

from __future__ import annotations

from typing import Final

from hpctl.core.change import ChangeOpened, Kind, Signal

SAYINGS: Final[dict[Signal, str]] = {
    Signal.ORDER_TAKEN: "The order for {what} was taken",
    Signal.ARRIVED: "What was added to {what} is there",
    Signal.CLOSED_SEEN: "{what} is closed to new work",
    Signal.GONE: "{what} has left the cluster",
    Signal.SET_SEEN: "The spares of {what} are set apart",
    Signal.IN_USE: "{what} is wanted after all",
    Signal.BACK: "{what} is in service again",
    Signal.REFUSED: "The change of {what} was refused",
    Signal.DEADLINE: "The change of {what} took too long",
    Signal.OPERATOR_TOOK_OVER: "An operator took {what} over",
}


def opened(event: ChangeOpened) -> str:
    """What was decided."""
    match event.kind:
        case Kind.ADD:
            return f"Group {event.group} grows by {event.count} to {event.size}"
        case Kind.REMOVE:
            return f"{event.node} leaves group {event.group}"
        case Kind.RETURN:
            return f"{event.node} is a new machine under an old name"
        case Kind.SPARES:
            return f"Spares of group {event.group}: {','.join(event.nodes) or 'none'}"


def moved(event: ChangeOpened, signal: str) -> str:
    """What was seen of it."""
    return SAYINGS[Signal(signal)].format(what=event.node or f"group {event.group}")
