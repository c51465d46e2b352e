"""A change of capacity as a person would tell it: its story, where it stands, what is awaited."""

from __future__ import annotations

from typing import Final

from hpctl.core.change import Change, Kind, Phase
from hpctl.core.change_advance import deadline_of
from hpctl.core.policy import Mode, Policy
from hpctl.core.tell import Line, change_move, change_opened, duration, sentence, step_line
from hpctl.core.tell_change import opened
from hpctl.core.tell_next import Awaited

_WAITS: Final = {
    (Kind.ADD, Phase.OPEN): "the service to take the order",
    (Kind.ADD, Phase.ARRIVING): "the new instances to run, and Slurm to serve them",
    (Kind.REMOVE, Phase.OPEN): "slurmctld to show DRAIN with hpctl's Reason, and no job there",
    (Kind.REMOVE, Phase.CLOSED): "the service to take the order to delete the instance",
    (Kind.REMOVE, Phase.LEAVING): "the instance to be listed no more",
    (Kind.REMOVE, Phase.GIVING_BACK): "Slurm to take the node back",
    (Kind.RETURN, Phase.OPEN): "Slurm to take the node back",
    (Kind.SPARES, Phase.OPEN): "the reservation to hold these nodes",
}
_ENDS: Final = {Phase.DONE: "Done", Phase.FAILED: "Failed", Phase.CANCELLED: "Called off"}


def lines(change: Change) -> tuple[Line, ...]:
    """The whole story in the order of time; on equal times, what was seen before what it led to."""
    steps = [step_line(step) for step in change.steps]
    moves = [change_move(change, move) for move in change.trail]
    return (change_opened(change.opened), *sorted([*moves, *steps], key=lambda line: line.at))


def headline(change: Change) -> str:
    """The change in one sentence: what was decided, why, and where it stands."""
    what = sentence(opened(change.opened), change.opened.why)
    if not change.ended:
        return f"{what} Under way: {change.phase.replace('_', ' ')}."
    seconds = (change.since - change.opened.at).total_seconds()
    why = change.trail[-1].why if change.trail else ""
    return f"{what} {sentence(f'{_ENDS[change.phase]} after {duration(seconds)}', why)}"


def awaited(change: Change, policy: Policy) -> Awaited:
    """What an open change waits for; nothing for one that has ended."""
    if change.ended:
        return Awaited("nothing: this change is closed")
    what = _WAITS[change.opened.kind, change.phase]
    if policy.mode is Mode.OBSERVE:
        what = "mode observe: decisions are written down and nothing is done"
    back = change.opened.kind is Kind.REMOVE and change.phase is Phase.OPEN
    otherwise = "the node is given back to Slurm" if back else "the change has failed"
    return Awaited(what, deadline_of(change, policy), otherwise)
