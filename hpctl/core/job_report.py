"""What the supervisor inside a job tells the head node: a trouble, what it did, what it wishes."""

from __future__ import annotations

from dataclasses import dataclass

from hpctl.core import bounds
from hpctl.core.compat import StrEnum
from hpctl.core.model import JobId, NodeName
from hpctl.core.run_policy import Action, Answer
from hpctl.core.trouble import Trouble


class Wish(StrEnum):
    """What a supervisor asks the daemon to do with its job."""

    NONE = ""
    """Nothing: it goes on by itself."""
    REQUEUE = "requeue"
    """Start the job again, elsewhere where `exclude` says so, after `after_s` seconds."""
    HOLD = "hold"
    """Put the job back in the queue, held, with the reason where its owner reads it."""


_WISHES = {Action.REQUEUE: Wish.REQUEUE, Action.HOLD: Wish.HOLD}


@dataclass(frozen=True, slots=True)
class JobReport:
    """One word of one run of a job. `restarts` is its SLURM_RESTART_COUNT.

    `trouble` None is a mere sign of life. `action` and `why` are what the supervisor did, or is
    about to do, about it. `exclude` and `after_s` belong to the wish. `progress` is the step of
    the newest complete checkpoint, where the supervisor knows it.
    """

    job: JobId
    restarts: int
    trouble: Trouble | None = None
    action: Action = Action.NONE
    why: str = ""
    wish: Wish = Wish.NONE
    exclude: tuple[NodeName, ...] = ()
    after_s: float = 0.0
    progress: int | None = None

    def __post_init__(self) -> None:
        bounds.clean(self, "why")

    @classmethod
    def of(cls, job: JobId, restarts: int, trouble: Trouble, answer: Answer) -> JobReport:
        """The report of a trouble that `decide` has answered: REQUEUE and HOLD become wishes."""
        return cls(
            job,
            restarts,
            trouble,
            answer.action,
            answer.why,
            _WISHES.get(answer.action, Wish.NONE),
            answer.exclude,
            answer.after_s,
            trouble.progress,
        )
