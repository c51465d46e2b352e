"""What the engine asks of a kind of recovery: which may open, and what an open one does next.

The engine drives the recoveries of nodes, of jobs and of capacity alike and imports none of them.
The composition root hands it one explicit list of kinds (`hpctl.daemon.kinds`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from hpctl.engine.journal.events import Event, GateBlocked, JobRecoveryOpened, NodeRecoveryOpened
from hpctl.engine.journal.state import EngineState
from hpctl.engine.view import PlanningView, RecoveryCandidate, Request
from hpctl.vocabulary.assessment import FaultClass
from hpctl.vocabulary.change import ChangeOpened
from hpctl.vocabulary.identity import JobAttempt, NodeGeneration, NodeName, RecoveryId
from hpctl.vocabulary.isolation import ItemProcessingFailure
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import Next, StepStartDecision
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode

JobsByNode = Mapping[NodeName, Sequence[SlurmJob]]
"""The jobs that hold, or last held, each node with an open recovery."""


class RecoveryPlan(Struct, frozen=True):
    """What may open, what is held and why, and what could not be decided."""

    opens: tuple[NodeRecoveryOpened | JobRecoveryOpened | ChangeOpened, ...] = ()
    holds: tuple[GateBlocked, ...] = ()
    flaws: tuple[ItemProcessingFailure, ...] = ()
    candidates: tuple[RecoveryCandidate, ...] = ()
    """What the gates were asked about, each with an open or a hold."""


class DueRecoveryStep(Struct, frozen=True):
    """A step that a recovery wants now. `attempt`: of the job, for a job's step."""

    recovery: RecoveryId
    do: StepStartDecision
    attempt: JobAttempt | None = None


class RecoveryAdvanceResult(Struct, frozen=True):
    """What one recovery answered. `generation`: the new one, where it saw one."""

    recovery: RecoveryId
    answer: Next
    attempt: JobAttempt | None = None
    generation: NodeGeneration | None = None


Answers = tuple[list[RecoveryAdvanceResult], list[ItemProcessingFailure]]
"""The answers of all open recoveries of one kind, and what could not be advanced."""


def return_no_candidates(
    view: PlanningView,  # noqa: ARG001
    policy: RecoveryPolicy,  # noqa: ARG001
    treated: Collection[NodeName],  # noqa: ARG001
    now: datetime,  # noqa: ARG001
) -> list[RecoveryCandidate]:
    """Return no candidates: for a kind that treats no nodes."""
    return []


def return_empty_recovery_plan(
    view: PlanningView,  # noqa: ARG001
    policy: RecoveryPolicy,  # noqa: ARG001
    here: JobsByNode,  # noqa: ARG001
    now: datetime,  # noqa: ARG001
) -> RecoveryPlan:
    """Return an empty plan."""
    return RecoveryPlan()


Withdrawn = tuple[Mapping[NodeName, str], Sequence[ItemProcessingFailure]]
"""Why the recoveries of nodes are taken back, and what could not be decided."""


def withdraw_no_recoveries(
    view: PlanningView,  # noqa: ARG001
    policy: RecoveryPolicy,  # noqa: ARG001
    now: datetime,  # noqa: ARG001
) -> Withdrawn:
    """Take no recovery back."""
    return {}, ()


class OperatorOrder(Struct, frozen=True):
    """An order for one node that an operator may give by a request.

    `refuse` returns why the order cannot be given for this node now, "" where it can.
    """

    fault: FaultClass
    refuse: Callable[[SlurmNode, PlanningView], str]


Answered = tuple[bool, str, Sequence[Event]]
"""Whether a request is agreed to, the answer to its operator, and the events that it causes."""

AnswerRequest = Callable[[Request, PlanningView, RecoveryPolicy, datetime], Answered]


class RecoveryKind(Struct, frozen=True):
    """One kind of recovery.

    `advance` asks each open recovery of the kind for its next move, step or wait.
    `find_candidates` names nodes beyond those that are assessed faulty; the gates judge them.
    `plan` decides what may open beside the nodes' recoveries, on the same view.
    `plan_after` does so after the journal has what the other kinds opened.
    `find_withdrawn` names the nodes whose recovery is taken back before its remedy is ordered, and
    why.
    `orders` are what operators may ask for of a node, by the request's verb; `requests` answer what
    they may ask for otherwise.
    `pair_instances` yields what the journal keeps together until both ended.
    """

    advance: Callable[[PlanningView, RecoveryPolicy, JobsByNode, datetime], Answers]
    find_candidates: Callable[
        [PlanningView, RecoveryPolicy, Collection[NodeName], datetime], list[RecoveryCandidate]
    ] = return_no_candidates
    plan: Callable[[PlanningView, RecoveryPolicy, JobsByNode, datetime], RecoveryPlan] = (
        return_empty_recovery_plan
    )
    plan_after: Callable[[PlanningView, RecoveryPolicy, JobsByNode, datetime], RecoveryPlan] = (
        return_empty_recovery_plan
    )
    find_withdrawn: Callable[[PlanningView, RecoveryPolicy, datetime], Withdrawn] = (
        withdraw_no_recoveries
    )
    orders: Mapping[str, OperatorOrder] = {}
    requests: Mapping[str, AnswerRequest] = {}
    pair_instances: Callable[[EngineState], Iterable[tuple[RecoveryId, RecoveryId | None]]] = (
        lambda _state: ()
    )
