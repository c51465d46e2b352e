"""What each kind of trouble gets: the actions, and the defaults with the reason for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hpctl.core.compat import StrEnum
from hpctl.core.trouble import Kind


class Action(StrEnum):
    """What may be done, gentlest first. An answer is the gentlest that is possible and useful."""

    NONE = "none"
    """Nothing: somebody else does it, or the run is over."""
    NOTIFY = "notify"
    """Say so; let the run go on."""
    PROCESS = "process"
    """Restart the ranks inside the running step."""
    STEP = "step"
    """Launch a new step inside the same allocation."""
    REQUEUE = "requeue"
    """Give the allocation back and start again."""
    HOLD = "hold"
    """Stop, and tell the user why."""


RESTARTS: Final = frozenset({Action.PROCESS, Action.STEP, Action.REQUEUE})
"""The actions that run the program again, and that the budgets count."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before a restart.

    The first restart after progress never waits; the second in a row waits `first_s`, each
    further one `factor` times longer, at most `cap_s`.
    """

    first_s: float = 30.0
    factor: float = 2.0
    cap_s: float = 1800.0


@dataclass(frozen=True, slots=True)
class Treatment:
    """What one kind of trouble gets.

    `ladder`: the actions in order; each repeat without progress climbs one rung, impossible ones
    are passed over, and the last rung is kept. An action that stands twice is tried twice.
    `backoff`: whether restarts wait. `exclude`: after how many times on the same node the run
    leaves that node (0: never; times of all kinds that exclude add up). `save_first`: whether
    ranks that still live are asked to save before. `hold_same`: whether the same signature,
    `same_signature` times without progress, holds the job: for what the program does to itself.
    `max`: after how many restarts of this kind without progress the job is held (0: no bound of
    its own). `why` argues for a default.
    """

    ladder: tuple[Action, ...]
    backoff: bool = False
    exclude: int = 0
    save_first: bool = False
    hold_same: bool = False
    max: int = 0
    why: str = ""


_ALL: Final = (Action.PROCESS, Action.STEP, Action.REQUEUE, Action.HOLD)
_ONCE_MORE: Final = (Action.STEP, Action.REQUEUE, Action.HOLD)

DEFAULTS: Final[Mapping[Kind, Treatment]] = {
    Kind.NODE: Treatment(
        (Action.STEP, Action.REQUEUE),
        exclude=1,
        save_first=True,
        why="The program is innocent and the node is out: nothing is gained by waiting.",
    ),
    Kind.CRASH: Treatment(
        _ALL,
        backoff=True,
        hold_same=True,
        why="Most crashes pass; the same one again from the same checkpoint is a bug.",
    ),
    Kind.GPU_MEMORY: Treatment(
        _ONCE_MORE,
        hold_same=True,
        why="One restart frees leaks and fragments; then the batch is too large for the GPU.",
    ),
    Kind.HOST_MEMORY: Treatment(
        _ONCE_MORE,
        hold_same=True,
        why="One restart frees leaks and other people's memory; then it asked for too little.",
    ),
    Kind.CUDA: Treatment(
        _ONCE_MORE,
        exclude=1,
        why="An error that names the device is the node's until it follows the program elsewhere.",
    ),
    Kind.NETWORK: Treatment(
        _ONCE_MORE,
        backoff=True,
        exclude=2,
        why="The rank that complains is often not the culprit: a node goes when named again.",
    ),
    Kind.HANG: Treatment(
        _ALL,
        exclude=2,
        why="A race passes with a restart; a node named twice is more than bad luck. Hung ranks"
        " cannot save, so none is asked to.",
    ),
    Kind.NAN: Treatment(
        _ONCE_MORE,
        hold_same=True,
        why="Once it may be a bad GPU or batch; twice from the same checkpoint is the model."
        " Never saved first: the weights are spoilt.",
    ),
    Kind.SPIKE: Treatment((Action.NOTIFY,), why="Most losses come back by themselves."),
    Kind.SLOW: Treatment((Action.NOTIFY,), why="Slow steps are still steps; a restart loses some."),
    Kind.UPLOAD: Treatment((Action.NOTIFY,), why="The run is well, and tiers hold the checkpoint."),
    Kind.STORAGE: Treatment(
        (Action.REQUEUE,),
        backoff=True,
        exclude=2,
        why="File systems mend in minutes; the nodes can serve others meanwhile. A stale mount is"
        " one node's.",
    ),
    Kind.CORRUPTION: Treatment(
        (Action.REQUEUE,),
        exclude=1,
        why="Wrong numbers are worse than none: not one more step on that node.",
    ),
    Kind.NO_PROGRESS: Treatment(
        _ONCE_MORE,
        backoff=True,
        why="An end that saved nothing may be a lost node's echo; the third is a finished or"
        " broken program.",
    ),
    Kind.PREEMPTED: Treatment((Action.NONE,), why="Slurm requeues it itself."),
    Kind.TIME_LIMIT: Treatment(
        (Action.REQUEUE,), save_first=True, why="It goes on in its next turn from what it saves."
    ),
    Kind.KILLED: Treatment(
        _ONCE_MORE,
        backoff=True,
        why="Whoever killed it once by mistake gets it back; who kills it again means it.",
    ),
    Kind.FINAL: Treatment((Action.NONE,), why="It asked not to be run again."),
}
"""What a careful person would choose. Documented, with the reasons, in docs/policies.md."""

UNPLANNED: Final = frozenset(Kind) - {Kind.TIME_LIMIT, Kind.PREEMPTED}
"""The kinds whose restarts count against `restarts`: a time limit is no failure."""
CERTAIN: Final = frozenset({Kind.NODE, Kind.CORRUPTION})
"""Kinds that prove a node bad: it is never used again just to have enough nodes."""
LEAVES_ALIVE: Final = frozenset(
    {Kind.SPIKE, Kind.SLOW, Kind.UPLOAD, Kind.TIME_LIMIT, Kind.NAN, Kind.HANG}
)
"""Kinds after which the ranks still run, unless somebody has seen otherwise."""
