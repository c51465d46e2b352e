"""What is written down: the events of the journal."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal, get_args

from msgspec import Struct

from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.change import ChangeOpened
from hpctl.vocabulary.identity import (
    JobAttempt,
    LogicalId,
    NodeGeneration,
    NodeName,
    RecoveryId,
    RuleId,
)
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.model import Finding
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.recovery import StepKind
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.trouble import Trouble


class DaemonStarted(Struct, frozen=True):
    """A daemon took the lease."""

    at: datetime
    version: str
    mode: str
    host: str
    pid: int


class NodeRecoveryOpened(Struct, frozen=True):
    """`plan` decided to treat a generation, past all gates (`passed`, in order).

    `group`: the instance group whose size changes, for a removal and what follows it.
    """

    at: datetime
    recovery: RecoveryId
    generation: NodeGeneration
    rule: RuleId
    meaning: str
    urgency: Urgency
    ladder: tuple[Remedy, ...]
    why: str
    mode: str
    rung: int = 0
    logical_id: LogicalId | None = None
    by: str = ""
    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    group: str = ""


class JobRecoveryOpened(Struct, frozen=True):
    """A job's attempt was hit by a node that is being treated, or (`trouble`) failed on its own.

    `cause` is the node recovery behind it, empty for a trouble. `action` is what the run's policy
    answered. `exclude`: nodes that it must not be given again, though they are not treated.
    `hang`: what `hangs` of the configuration does to a run that hangs; empty for other troubles.
    `known_as`: the job's id as its owner writes it (`12_3`), empty in older journals.
    `start_at`: its backoff's end. `supervised`: hpctl does not act as long as the job's supervisor
    runs. `ran_on`: the nodes of the run that went wrong. `nodes`: how many the attempt had.
    `lift`: the nodes that a waiting job may have again; nothing is wrong with its run.
    `note`: what is only written into its Comment, because another job preempted it.
    """

    at: datetime
    recovery: RecoveryId
    attempt: JobAttempt
    cause: RecoveryId
    bad_nodes: tuple[NodeName, ...]
    why: str
    name: str = ""
    user: str = ""
    partition: str = ""
    save_signal: str = ""
    over_budget: str = ""
    trouble: Trouble | None = None
    action: RunAction = RunAction.NONE
    exclude: tuple[NodeName, ...] = ()
    start_at: datetime | None = None
    supervised: bool = False
    ran_on: tuple[NodeName, ...] = ()
    nodes: int = 0
    hang: Literal["", "dump", "requeue", "cancel"] = ""
    known_as: str = ""
    lift: tuple[NodeName, ...] = ()
    note: str = ""


class JobReported(Struct, frozen=True):
    """A job's supervisor sent a report. `uid`: the user of the credential that came with it."""

    at: datetime
    report: JobReport
    uid: int = 0


class GateBlocked(Struct, frozen=True):
    """A gate blocked a candidate. Written once per change of reason.

    `known_as`: of a job, its id as its owner writes it; empty for others, and in older journals.
    """

    at: datetime
    target: str
    gate: str
    why: str
    rule: RuleId
    approvable: bool = False
    known_as: str = ""

    @property
    def shown(self) -> str:
        """Return the target as people write it."""
        return self.known_as or self.target


class HoldLifted(Struct, frozen=True):
    """The candidate is gone or was opened."""

    at: datetime
    target: str


class SignalSeen(Struct, frozen=True):
    """A recovery moved. `generation`: the new one, for NEW_GENERATION_SEEN. `tests`: what an
    acceptance test found, for the signal that it gave."""

    at: datetime
    recovery: RecoveryId
    signal: str
    why: str
    generation: NodeGeneration | None = None
    tests: tuple[Finding, ...] = ()


class StepStarted(Struct, frozen=True):
    """Written before the effect. Without its StepResolved the step is in doubt."""

    at: datetime
    recovery: RecoveryId
    step: StepKind
    attempt: int
    target: str
    detail: str = ""


class StepResolved(Struct, frozen=True):
    """Written after the effect: what came back."""

    at: datetime
    recovery: RecoveryId
    step: StepKind
    attempt: int
    outcome: Outcome


class ConfigurationTaken(Struct, frozen=True):
    """The daemon acts by another configuration from now on, its recovery policies included.

    `settings`: what differs from the defaults, by dotted name, passwords left out. `by`: the
    file's owner.
    """

    at: datetime
    settings: dict[str, str]
    by: str


class ClockSet(Struct, frozen=True):
    """The wall clock of the leader was set. `by_s`: how many seconds forward, negative for back.

    What is open continues by the clock as it is now: its times move by as much.
    """

    at: datetime
    by_s: float


LIFTS_PAUSE: Final = ("unpause", "resume")
"""The verbs of requests that lift a pause; `resume` is that of earlier releases."""


PAUSE_ENDED: Final = "pause-ended"
"""The verb by which the journal notes that a pause has reached its end; no operator asks it."""
COMMANDS: Final[Mapping[str, str]] = {
    "return": "undrain",
    "accept-quick": "acceptance",
    "accept-full": "full acceptance",
}
"""What the command of a request is called, where the journal keeps the verb of earlier releases."""


class RequestTaken(Struct, frozen=True):
    """An operator's request was consumed. `answer` is the text that the operator gets.

    `proof`: how the daemon knows that it was `by` who asked. Of a pause, `target` is its scope
    (`vocabulary.pause`), `why` its reason and `until` its end.
    """

    at: datetime
    request: int
    verb: str
    target: str
    by: str
    answer: str
    ok: bool
    proof: str = ""
    why: str = ""
    until: datetime | None = None


Event = (
    DaemonStarted
    | NodeRecoveryOpened
    | JobRecoveryOpened
    | GateBlocked
    | HoldLifted
    | SignalSeen
    | StepStarted
    | StepResolved
    | RequestTaken
    | ConfigurationTaken
    | JobReported
    | ChangeOpened
    | ClockSet
)


_STORED_NAMES: dict[type[Event], str] = {GateBlocked: "HoldNoted"}
"""What journals and the output of `hpctl events --json` hold, where it is not the class's name."""


def format_event_kind(kind: type[Event]) -> str:
    """Return the name of a kind of event in the journal and in `hpctl events --json`."""
    return _STORED_NAMES.get(kind, kind.__name__)


EVENT_TYPES: dict[str, type[Event]] = {format_event_kind(kind): kind for kind in get_args(Event)}
