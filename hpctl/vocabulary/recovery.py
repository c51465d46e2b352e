"""What node and job recoveries share: steps, what `advance` may answer, and repeating safely.

The promise: no effect is repeated blindly. A step that was started and never resolved (a crash,
a lost reply) is in doubt, and being in doubt is an input like any other.
"""

from collections.abc import Container, Mapping
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.evidence import EvidenceCollectionOrder
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.model import Finding
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.reset_order import GpuResetOrder
from hpctl.vocabulary.slurm_facts import SlurmNode


class StepKind(StrEnum):
    """One effect of a recovery."""

    DRAIN = "drain"
    DOWN = "down"
    SIGNAL = "signal"
    REQUEUE = "requeue"
    START_NOW = "start_now"
    HOLD = "hold"
    CANCEL = "cancel"
    LIFT = "lift"
    NOTE = "note"
    EVIDENCE = "evidence"
    RESET = "reset"
    REBOOT = "reboot"
    REPLACE = "replace"
    RETURN = "return"
    ADD = "add"
    REMOVE = "remove"
    RESERVE = "reserve"
    MAINTAIN = "maintain"
    STACKS = "stacks"
    ISOLATE = "isolate"
    RESUME = "resume"
    TEST = "test"
    END_TEST = "end_test"
    UNRESERVE = "unreserve"


CONVERGENT = frozenset(
    {
        StepKind.DRAIN,
        StepKind.DOWN,
        StepKind.REQUEUE,
        StepKind.START_NOW,
        StepKind.HOLD,
        StepKind.CANCEL,
        StepKind.LIFT,
        StepKind.NOTE,
        StepKind.RETURN,
        StepKind.RESERVE,
        StepKind.MAINTAIN,
        StepKind.STACKS,
        StepKind.EVIDENCE,
        StepKind.ISOLATE,
        StepKind.RESUME,
        StepKind.TEST,
        StepKind.END_TEST,
        StepKind.UNRESERVE,
    }
)
"""Asking again changes nothing more: the port looks first, or the order is a state."""


class RecoveryStepRecord(Struct, frozen=True):
    """One attempt at one step, as the journal has it. No outcome: in doubt."""

    kind: StepKind
    attempt: int
    target: str
    started: datetime
    outcome: Outcome | None = None
    resolved: datetime | None = None
    moves: int = 0
    """Length of the recovery's trail when the step began: that of now where the step belongs to the
    present phase. Times cannot tell that, because the clock may be set back."""

    @property
    def in_doubt(self) -> bool:
        """Return whether the journal does not say if it took effect."""
        return self.outcome is None or self.outcome.kind is OutcomeKind.AMBIGUOUS

    @property
    def accepted(self) -> bool:
        """Return whether the order was taken; its effect may still be to come."""
        return self.outcome is not None and self.outcome.kind is OutcomeKind.ACCEPTED


class RecoveryTransitionRecord(Struct, frozen=True):
    """One move of a recovery, with the reason as a person would say it."""

    at: datetime
    signal: str
    phase: str
    why: str


class RecoveryPhaseMove(Struct, frozen=True):
    """The facts say that the recovery is in its next phase."""

    signal: StrEnum
    why: str
    tests: tuple[Finding, ...] = ()
    """What the tests of a node found, for the move that rests on them."""


class StepStartDecision(Struct, frozen=True):
    """One effect to bring about now."""

    kind: StepKind
    target: str
    attempt: int
    why: str = ""
    exclude: tuple[NodeName, ...] = ()
    """For START_NOW: the nodes that the job must not be given again."""
    forgive: tuple[NodeName, ...] = ()
    """For START_NOW: nodes that hpctl excluded before and that have healed since."""
    after_s: float = 0.0
    """For START_NOW: how many seconds the job has to wait still."""
    elastic: bool = False
    """For START_NOW: the job may be smaller or larger than its last run."""
    count: int = 0
    """For ADD: how many instances more."""
    size: int = 0
    """For ADD: how many the group has then."""
    reason: str = ""
    """For DOWN: the Reason that stays, where that is not ours."""
    spare_mark: bool = False
    """For DRAIN: a node that HyperPod's health agent has marked meanwhile is left as it is."""
    nodes: tuple[NodeName, ...] = ()
    """For RESERVE, ISOLATE and MAINTAIN: what the reservation holds then. For TEST: where it runs.
    For LIFT: what the job may be given again."""
    start: datetime | None = None
    end: datetime | None = None
    """For MAINTAIN: from when until when."""
    partition: str = ""
    command: str = ""
    limit_s: float = 0.0
    """For TEST: where the job is submitted, what it runs, and how many seconds it may take."""
    idle: bool = False
    qos: str = ""
    """For TEST: in no reservation, but behind every other job; and of which QOS then."""
    order: GpuResetOrder | None = None
    """For RESET: what the node's agent is to do."""
    evidence: EvidenceCollectionOrder | None = None
    """For EVIDENCE: the same."""


class RecheckInterval(StrEnum):
    """How soon a waiting recovery wants the world looked at again."""

    WOKEN = "woken"
    """When something wakes the loop; its slow reconcile comes anyway."""
    SLOWLY = "slowly"
    """About once a second: the cloud, a boot."""
    OFTEN = "often"
    """Several times a second: a user's job waits for what we do."""
    SOON = "soon"
    """Many times a second: slurmctld is about to change its mind."""


class WaitDecision(Struct, frozen=True):
    """Nothing to do before `until` unless a fact changes."""

    until: datetime
    why: str
    look: RecheckInterval = RecheckInterval.WOKEN


Next = RecoveryPhaseMove | StepStartDecision | WaitDecision


class IllegalRecoverySignalError(Exception):
    """A signal that its phase does not know: a corrupt journal, or a bug."""


P = TypeVar("P")


def find_phase_after_signal(table: Mapping[Any, P], rid: RecoveryId, *at: StrEnum) -> P:
    """Return where a table leads. Raises IllegalRecoverySignalError for phase and signal that are
    not in it."""
    phase = table.get(at)
    if phase is None:
        raise IllegalRecoverySignalError(f"{rid}: {at[-1]} in phase {at[-2]}")
    return phase


class StepRetryRule(Struct, frozen=True):
    """How a step is repeated: seconds between attempts, how many, and the window of doubt."""

    retry_s: float
    attempts: int
    doubt_window_s: float


def extend_phase_deadline(
    deadline: datetime, able_since: datetime | None, grace_s: float
) -> datetime:
    """Return a deadline, or `grace_s` after hpctl could look and act again, whichever is later.

    What ended while the daemon did not run shows itself only then, and what a pause has kept from
    being done is not late because of a deadline that passed meanwhile.
    """
    return (
        deadline
        if able_since is None
        else max(deadline, add_seconds_within_bounds(able_since, grace_s))
    )


def find_last_step_attempt(
    steps: tuple[RecoveryStepRecord, ...], kind: StepKind
) -> RecoveryStepRecord | None:
    """Return the newest attempt at one kind of step."""
    for record in reversed(steps):
        if record.kind is kind:
            return record
    return None


def record_step_outcome(
    steps: tuple[RecoveryStepRecord, ...],
    kind: StepKind,
    attempt: int,
    outcome: Outcome,
    at: datetime,
) -> tuple[RecoveryStepRecord, ...]:
    """Return the steps with what came back of one. Raises IllegalRecoverySignalError where it is
    not outstanding."""
    for i in range(len(steps) - 1, -1, -1):
        s = steps[i]
        if s.kind is kind and s.attempt == attempt:
            if s.outcome is not None:
                raise IllegalRecoverySignalError(f"step {kind} #{attempt} resolved twice")
            return (*steps[:i], replace(s, outcome=outcome, resolved=at), *steps[i + 1 :])
    raise IllegalRecoverySignalError(f"step {kind} #{attempt} resolved but never started")


def decide_next_step_attempt(  # noqa: PLR0913 -- pure: all that decides is an argument
    steps: tuple[RecoveryStepRecord, ...],
    kind: StepKind,
    target: str,
    repeat: StepRetryRule,
    now: datetime,
    why: str = "",
) -> StepStartDecision | WaitDecision | Outcome:
    """The next thing to do about a step whose effect has not been observed yet.

    Answers Do (take the step, or take it again), Wait (give its effect time to be seen), or the
    last Outcome where trying again is not for us to decide: a permanent rejection, or no
    attempt left. The caller has looked for the effect first; being here means it is not there.
    """
    last = find_last_step_attempt(steps, kind)
    if last is None or last.target != target:
        return StepStartDecision(kind, target, 1, why)
    again = StepStartDecision(kind, target, last.attempt + 1, why)
    # A second reboot or signal is felt a second time, so doubt earns one more try, not many.
    blind = last.in_doubt and kind in (StepKind.REBOOT, StepKind.SIGNAL)
    spent = last.attempt >= (min(2, repeat.attempts) if blind else repeat.attempts)
    outcome = last.outcome
    if last.in_doubt:
        if kind in CONVERGENT and not spent:
            waited = repeat.retry_s if outcome is not None else 0.0
        else:
            waited = repeat.doubt_window_s
    elif outcome is not None and outcome.kind is OutcomeKind.REJECTED and not outcome.transient:
        return outcome
    else:
        # Accepted but not seen, or rejected for now: both deserve patience, then another go.
        patience = last.accepted and kind not in CONVERGENT
        waited = repeat.doubt_window_s if patience else repeat.retry_s
    ready = add_seconds_within_bounds(last.resolved or last.started, waited)
    if now < ready:
        return WaitDecision(
            ready, f"{kind} was tried; its effect is not seen yet", look=RecheckInterval.SOON
        )
    if spent:
        return outcome or Outcome.ambiguous("in_doubt", f"{kind} was started and never answered")
    return again


class RecoveryWithSteps(Protocol):
    """A recovery or a change, as far as its steps go."""

    @property
    def phase(self) -> StrEnum:
        """Return its phase."""

    @property
    def steps(self) -> tuple[RecoveryStepRecord, ...]:
        """Return what it has begun, oldest first."""


R = TypeVar("R", bound=RecoveryWithSteps)
F = TypeVar("F")


class RecoveryDecisionContext(Struct, Generic[R, F], frozen=True):
    """One recovery or change, what is known now, and until when its phase may last."""

    rec: R
    facts: F
    policy: RecoveryPolicy
    now: datetime
    deadline: datetime
    repeat: StepRetryRule

    def last(self, kind: StepKind) -> RecoveryStepRecord | None:
        """Return the newest attempt at one kind of step."""
        return find_last_step_attempt(self.rec.steps, kind)

    def wait(self, why: str, look: RecheckInterval = RecheckInterval.WOKEN) -> WaitDecision:
        """Until the phase's deadline."""
        return WaitDecision(self.deadline, why, look)

    def attempt(
        self, kind: StepKind, target: str, why: str = ""
    ) -> StepStartDecision | WaitDecision | Outcome:
        """`attempt_node_step` of this recovery."""
        return decide_next_step_attempt(self.rec.steps, kind, target, self.repeat, self.now, why)

    def take(
        self,
        kind: StepKind,
        target: str,
        refused: StrEnum,
        cannot: str,
        why: str = "",
        **details: Any,
    ) -> Next:
        """The step, with these of its details; a move by `refused` where trying again is not for
        us to decide."""
        answer = self.attempt(kind, target, why)
        if isinstance(answer, Outcome):
            return RecoveryPhaseMove(refused, f"{cannot}: {format_call_outcome(answer)}")
        return replace(answer, **details) if isinstance(answer, StepStartDecision) else answer

    def enforce_phase_deadline(self, answer: Next, too_late: StrEnum) -> Next:
        """Return the answer, or a move by `too_late` where it waits and the phase has lasted too
        long."""
        if not isinstance(answer, WaitDecision):
            return answer
        if self.now >= self.deadline:
            return RecoveryPhaseMove(too_late, f"{self.rec.phase} for too long: {answer.why}")
        return replace(answer, until=min(answer.until, self.deadline))


def describe_node_takeover(node: SlurmNode | None, owner: RecoveryId) -> str:
    """Return how a node that `owner` drained was taken over: who resumes it, or gives it another
    Reason, wins. Empty where it was not: a node that is FAIL or DOWN was not resumed."""
    if node is None:
        return ""
    if node.in_service:
        return "another user or tool resumed the node"
    if parse_recovery_id_from_reason(node.reason) != owner:
        return f"another user or tool changed the Reason to {node.reason!r}"
    return "" if node.closed else "another user or tool lifted the drain of the node, which is DOWN"


def format_call_outcome(outcome: Outcome) -> str:
    """Return what came back, in the words of the system that answered."""
    return f"{outcome.code} {outcome.detail}".strip()


def make_recovery_id(kind: str, *parts: object, known: Container[RecoveryId] = ()) -> RecoveryId:
    """Return a short id derived from what it is for: the same decision has the same id.

    Never one of those that are `known`: eight digits meet again within some ten thousand ids, and
    a journal with two openings of one id stays corrupt.
    """
    import hashlib  # a reader of recoveries does not pay for it

    text = "|".join(str(p) for p in parts)
    while True:
        rid = RecoveryId(f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:8]}")
        if rid not in known:
            return rid
        text += "|"
