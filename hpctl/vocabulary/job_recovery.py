"""The durable treatment of one attempt of one job, its table, and what its supervisor reports.

What moves it is in `hpctl.jobs.advance`. The order is the whole art (facts/recovery 2.1-2.4): node
drained, then the job stopped, then COMPLETING waited out, then the requeue where the job ended by
itself, then the excluded nodes and StartTime=now in one update. Nothing is held on the way, so a
daemon that dies half-way leaves a job that Slurm still starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hpctl.toolkit import bounds
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.identity import JobAttempt, JobId, NodeName, RecoveryId
from hpctl.vocabulary.recovery import (
    RecoveryStepRecord,
    RecoveryTransitionRecord,
    find_phase_after_signal,
)
from hpctl.vocabulary.run_policy import RunAction, RunActionDecision
from hpctl.vocabulary.trouble import Trouble


class JobRecoveryPhase(StrEnum):
    """The phase of a job recovery. The last four are ends."""

    HIT = "hit"
    EXCISING = "excising"
    WATCHING = "watching"
    SAVING = "saving"
    STOPPING = "stopping"
    RELEASED = "released"
    STARTING = "starting"
    PROVING = "proving"
    RESUMED = "resumed"
    HELD = "held"
    GAVE_UP = "gave_up"
    CANCELLED = "cancelled"


ENDS: Final = frozenset(
    {
        JobRecoveryPhase.RESUMED,
        JobRecoveryPhase.HELD,
        JobRecoveryPhase.GAVE_UP,
        JobRecoveryPhase.CANCELLED,
    }
)


class JobRecoverySignal(StrEnum):
    """An observed change that moves a job recovery."""

    SUPERVISED = "supervised"
    EXCISED = "excised"
    WENT_ON = "went_on"
    SAVE_WANTED = "save_wanted"
    STOP_WANTED = "stop_wanted"
    SAVE_OVER = "save_over"
    QUEUED = "queued"
    STARTED = "started"
    RUNNING_SEEN = "running_seen"
    PROVED = "proved"
    FINISHED = "finished"
    HELD = "held"
    FAILED_AGAIN = "failed_again"
    REQUEUED_AGAIN = "requeued_again"
    REFUSED = "refused"
    GONE = "gone"
    CALLED_OFF = "called_off"
    ENDED = "ended"
    DEADLINE = "deadline"
    OPERATOR_CANCELLED = "operator_cancelled"


REQUEUED_BEFORE_PROOF: Final = "requeued once more before it had proved itself"
"""Why a recovery ended as failed again, or starts the run again: the job is in the queue."""

_WAITING: Final = tuple(p for p in JobRecoveryPhase if p not in ENDS)
BEFORE_STOP: Final = (
    JobRecoveryPhase.HIT,
    JobRecoveryPhase.EXCISING,
    JobRecoveryPhase.SAVING,
    JobRecoveryPhase.STOPPING,
)
_BEFORE_START: Final = (
    *BEFORE_STOP,
    JobRecoveryPhase.WATCHING,
    JobRecoveryPhase.RELEASED,
    JobRecoveryPhase.STARTING,
)

TRANSITIONS: Final[Mapping[tuple[JobRecoveryPhase, JobRecoverySignal], JobRecoveryPhase]] = {
    # A job whose supervisor restarts its step is only watched: it stops when that does not come.
    (JobRecoveryPhase.HIT, JobRecoverySignal.SUPERVISED): JobRecoveryPhase.EXCISING,
    (JobRecoveryPhase.EXCISING, JobRecoverySignal.EXCISED): JobRecoveryPhase.WATCHING,
    (JobRecoveryPhase.EXCISING, JobRecoverySignal.STOP_WANTED): JobRecoveryPhase.STOPPING,
    (JobRecoveryPhase.WATCHING, JobRecoverySignal.STOP_WANTED): JobRecoveryPhase.STOPPING,
    (JobRecoveryPhase.WATCHING, JobRecoverySignal.WENT_ON): JobRecoveryPhase.RESUMED,
    (JobRecoveryPhase.HIT, JobRecoverySignal.SAVE_WANTED): JobRecoveryPhase.SAVING,
    (JobRecoveryPhase.HIT, JobRecoverySignal.STOP_WANTED): JobRecoveryPhase.STOPPING,
    (JobRecoveryPhase.SAVING, JobRecoverySignal.SAVE_OVER): JobRecoveryPhase.STOPPING,
    # Nothing has stopped it yet, and its supervisor has restarted its step meanwhile.
    (JobRecoveryPhase.STOPPING, JobRecoverySignal.WENT_ON): JobRecoveryPhase.RESUMED,
    (JobRecoveryPhase.STOPPING, JobRecoverySignal.QUEUED): JobRecoveryPhase.RELEASED,
    (JobRecoveryPhase.RELEASED, JobRecoverySignal.STARTED): JobRecoveryPhase.STARTING,
    # slurmctld died within seconds of the requeue, and knows of none.
    **{
        (p, JobRecoverySignal.STOP_WANTED): JobRecoveryPhase.STOPPING
        for p in (JobRecoveryPhase.RELEASED, JobRecoveryPhase.STARTING, JobRecoveryPhase.PROVING)
    },
    (JobRecoveryPhase.RELEASED, JobRecoverySignal.HELD): JobRecoveryPhase.HELD,
    (JobRecoveryPhase.PROVING, JobRecoverySignal.PROVED): JobRecoveryPhase.RESUMED,
    (JobRecoveryPhase.PROVING, JobRecoverySignal.FAILED_AGAIN): JobRecoveryPhase.GAVE_UP,
    # Slurm put the run back in the queue with its begin delay, and no node is to blame.
    (JobRecoveryPhase.PROVING, JobRecoverySignal.REQUEUED_AGAIN): JobRecoveryPhase.RELEASED,
    # Slurm may be quicker than we are (expedited requeue, an operator): running is running.
    **{(p, JobRecoverySignal.RUNNING_SEEN): JobRecoveryPhase.PROVING for p in _BEFORE_START},
    **{(p, JobRecoverySignal.FINISHED): JobRecoveryPhase.RESUMED for p in _WAITING},
    **{(p, JobRecoverySignal.GONE): JobRecoveryPhase.CANCELLED for p in _WAITING},
    # What `hangs` of the configuration had ended is its owner's.
    (JobRecoveryPhase.HIT, JobRecoverySignal.ENDED): JobRecoveryPhase.GAVE_UP,
    # A job that nothing has stopped yet is not touched once its node is no longer treated.
    **{(p, JobRecoverySignal.CALLED_OFF): JobRecoveryPhase.CANCELLED for p in BEFORE_STOP},
    **{(p, JobRecoverySignal.REFUSED): JobRecoveryPhase.GAVE_UP for p in _WAITING},
    **{(p, JobRecoverySignal.DEADLINE): JobRecoveryPhase.GAVE_UP for p in _WAITING},
    **{(p, JobRecoverySignal.OPERATOR_CANCELLED): JobRecoveryPhase.CANCELLED for p in _WAITING},
}


class JobRecovery(Struct, frozen=True):
    """One job recovery as the journal tells it. `cause` is the node recovery behind it, empty
    where the run's own `trouble` is; see `journal.JobRecoveryOpened`."""

    id: RecoveryId
    attempt: JobAttempt
    cause: RecoveryId
    bad_nodes: tuple[NodeName, ...]
    opened: datetime
    phase: JobRecoveryPhase
    since: datetime
    name: str = ""
    user: str = ""
    partition: str = ""
    why: str = ""
    save_signal: str = ""
    over_budget: str = ""
    trouble: Trouble | None = None
    action: RunAction = RunAction.NONE
    exclude: tuple[NodeName, ...] = ()
    start_at: datetime | None = None
    supervised: bool = False
    ran_on: tuple[NodeName, ...] = ()
    nodes: int = 0
    hang: str = ""
    known_as: str = ""
    lift: tuple[NodeName, ...] = ()
    note: str = ""
    steps: tuple[RecoveryStepRecord, ...] = ()
    trail: tuple[RecoveryTransitionRecord, ...] = ()

    @property
    def key(self) -> JobId:
        """Return what at most one open recovery may be about."""
        return self.attempt.job

    @property
    def shown(self) -> str:
        """Return the job's id as its owner writes it: `12`, `12_3`."""
        return self.known_as or str(self.attempt.job)

    @property
    def ended(self) -> bool:
        """Return whether it is closed; a closed recovery never opens again."""
        return self.phase in ENDS

    @property
    def has_lost_node(self) -> bool:
        """Return whether its run has lost a node and continues only under its own supervisor."""
        return any(move.signal == JobRecoverySignal.EXCISED for move in self.trail)

    @property
    def is_without_fault(self) -> bool:
        """Nothing was wrong with its run: an exclusion is lifted, or a preemption noted."""
        return bool(self.lift or self.note)

    @property
    def has_ended_without_stopping_run(self) -> bool:
        """It ended without stopping the run, which may therefore be hit again."""
        if self.is_without_fault:
            return True
        return any(
            move.signal in (JobRecoverySignal.WENT_ON, JobRecoverySignal.CALLED_OFF)
            for move in self.trail
        )

    def on(self, seen: str, at: datetime, why: str, _: object = None) -> JobRecovery:
        """Return the recovery after a signal. Raises IllegalRecoverySignalError for a pair not in
        the table."""
        signal = JobRecoverySignal(seen)
        phase = find_phase_after_signal(TRANSITIONS, self.id, self.phase, signal)
        trail = (*self.trail, RecoveryTransitionRecord(at, signal, phase, why))
        return replace(self, phase=phase, since=at, trail=trail)


class RequestedAction(StrEnum):
    """What a supervisor asks the daemon to do with its job."""

    NONE = ""
    """Nothing: it continues without help."""
    REQUEUE = "requeue"
    """Start the job again, elsewhere where `exclude` says so, after `after_s` seconds."""
    HOLD = "hold"
    """Put the job back in the queue, held, with the reason where its owner reads it."""


_WISHES = {RunAction.REQUEUE: RequestedAction.REQUEUE, RunAction.HOLD: RequestedAction.HOLD}


class JobReport(Struct, frozen=True):
    """One word of one run of a job. `restarts` is its SLURM_RESTART_COUNT.

    The script of a job without a supervisor tells by it why it ended (`is_cause_only_report`).
    `trouble` None is a mere sign of life. `action` and `why` are what the supervisor did, or is
    about to do, about it. `exclude` and `after_s` belong to the wish. `progress` is the step of
    the newest complete checkpoint, where the supervisor knows it.
    """

    job: JobId
    restarts: int
    trouble: Trouble | None = None
    action: RunAction = RunAction.NONE
    why: str = ""
    wish: RequestedAction = RequestedAction.NONE
    exclude: tuple[NodeName, ...] = ()
    after_s: float = 0.0
    progress: int | None = None

    def __post_init__(self) -> None:
        bounds.make_text_fields_printable(self, "why")

    @property
    def is_cause_only_report(self) -> bool:
        """Return whether it only tells of what a run ended, as the script of a job without a
        supervisor does: nothing was done about it, and nothing is asked for."""
        return (
            self.trouble is not None
            and self.action is RunAction.NONE
            and self.wish is RequestedAction.NONE
        )

    @classmethod
    def of(
        cls, job: JobId, restarts: int, trouble: Trouble, answer: RunActionDecision
    ) -> JobReport:
        """Return the report of a trouble that `decide` has answered: REQUEUE and HOLD become
        wishes."""
        return cls(
            job,
            restarts,
            trouble,
            answer.action,
            answer.why,
            _WISHES.get(answer.action, RequestedAction.NONE),
            answer.exclude,
            answer.after_s,
            trouble.progress,
        )
