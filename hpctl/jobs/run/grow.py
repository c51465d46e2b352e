"""Whether a run that goes on with fewer nodes stops to have more again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hpctl.core.run_policy import Action, Answer, RunPolicy, worth_growing

UNLIMITED_S = 86400.0
"""How long a job without a time limit is taken to run on: a day."""
START_S = 120.0
"""What a restart is taken to cost until one was measured."""
REQUEUE_S = 125.0
"""What a requeue costs beyond that: Slurm's own 121 s and the scheduler's round."""


@dataclass(frozen=True, slots=True)
class Room:
    """What could be had. `have` nodes run now; `inside` are the healthy ones of the allocation.

    `idle` are those idle in the partition, `missing` how many the allocation has lost since the
    job began. `left_s` is until the time limit, None for none. `restart_s` was measured, from the
    end of a step to the first training step of the next; None: not yet.
    """

    have: int
    inside: int
    idle: int = 0
    missing: int = 0
    left_s: float | None = None
    restart_s: float | None = None


def grown(policy: RunPolicy, wanted: int, room: Room) -> Answer | None:
    """What to do at the next checkpoint, None for nothing.

    A larger step where the allocation has nodes again; else a requeue where as many as it lost
    are idle outside, which costs Slurm's delay too. Each only where it pays (`grow_gain`).
    """
    left = UNLIMITED_S if room.left_s is None else room.left_s
    cost = START_S if room.restart_s is None else room.restart_s
    could = min(room.inside, wanted)
    if worth_growing(policy, room.have, could, left, cost):
        why = f"{could} nodes again instead of {room.have}: worth a restart of {cost:.0f} s"
        return Answer(Action.STEP, why, size=could)
    enough = 0 < room.missing <= room.idle
    if enough and worth_growing(policy, room.have, wanted, left, cost + REQUEUE_S):
        why = (
            f"{room.idle} idle nodes outside: {wanted} instead of {room.have} are worth a requeue"
            f" of {cost + REQUEUE_S:.0f} s"
        )
        return Answer(Action.REQUEUE, why)
    return None
