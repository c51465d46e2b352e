"""What a room that tests nodes adds to their recovery; by default no node is tested."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

from msgspec import Struct

from hpctl.engine.kinds import OperatorOrder, return_no_candidates
from hpctl.engine.test_results import ReadResults, return_empty_acceptance_test_results
from hpctl.engine.view import PlanningView, RecoveryCandidate
from hpctl.nodes.actors import NodeCase
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.node_recovery import NodeRecoverySignal
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import Next, RecoveryPhaseMove

_UNKNOWN = "this hpctl tests no nodes"


def require_no_node_test(c: NodeCase) -> Next | None:  # noqa: ARG001
    """Return None: a healthy node needs nothing before it serves."""
    return None


def end_unsupported_test(c: NodeCase) -> Next:  # noqa: ARG001
    """End a test that an hpctl with tests has begun."""
    return RecoveryPhaseMove(NodeRecoverySignal.UNTESTED, _UNKNOWN)


def escalate_leftover_reservation(c: NodeCase) -> Next:  # noqa: ARG001
    """Call a person to delete the reservation that an hpctl with tests has made."""
    return RecoveryPhaseMove(
        NodeRecoverySignal.NEEDS_HUMAN, f"{_UNKNOWN}: delete the reservation of its test"
    )


def find_no_failed_burn_in_candidates(
    view: PlanningView,  # noqa: ARG001
    treated: Collection[NodeName],  # noqa: ARG001
) -> list[RecoveryCandidate]:
    """Return no nodes: none has failed a test."""
    return []


class SuspectedNode(Struct, frozen=True):
    """A node that the verdicts on several jobs name. `since`: when the newest of them failed."""

    node: NodeName
    since: datetime
    why: str


FindSuspicions = Callable[[PlanningView, datetime], Iterable[SuspectedNode]]
"""Returns the nodes that the verdicts on several jobs name."""

FindSuspected = Callable[
    [PlanningView, RecoveryPolicy, Collection[NodeName], FindSuspicions, datetime],
    list[RecoveryCandidate],
]


def find_no_node_suspicions(view: PlanningView, now: datetime) -> Iterable[SuspectedNode]:  # noqa: ARG001
    """Return no nodes: for an engine without recoveries of jobs."""
    return ()


def find_no_suspected_node_candidates(
    view: PlanningView,  # noqa: ARG001
    policy: RecoveryPolicy,  # noqa: ARG001
    treated: Collection[NodeName],  # noqa: ARG001
    find_suspicions: FindSuspicions,  # noqa: ARG001
    now: datetime,  # noqa: ARG001
) -> list[RecoveryCandidate]:
    """Return no nodes: none is tested."""
    return []


class NodeTestFunctions(Struct, frozen=True, kw_only=True):
    """How nodes are tested as part of their recovery.

    `come_before_service` returns what a healthy node still needs before it serves, if anything.
    `accept` and `unreserve` treat the phases ACCEPTING and UNRESERVING. `read_results` returns the
    judged results of a test. `find_burned` returns the nodes that failed a test outside a recovery,
    `find_untested` those that are to be tested, `find_suspected` the one that the failures of jobs
    point to; `orders` are what operators may ask for.
    """

    come_before_service: Callable[[NodeCase], Next | None] = require_no_node_test
    accept: Callable[[NodeCase], Next] = end_unsupported_test
    unreserve: Callable[[NodeCase], Next] = escalate_leftover_reservation
    read_results: ReadResults = return_empty_acceptance_test_results
    find_burned: Callable[[PlanningView, Collection[NodeName]], list[RecoveryCandidate]] = (
        find_no_failed_burn_in_candidates
    )
    find_untested: Callable[
        [PlanningView, RecoveryPolicy, Collection[NodeName], datetime], list[RecoveryCandidate]
    ] = return_no_candidates
    find_suspected: FindSuspected = find_no_suspected_node_candidates
    orders: Mapping[str, OperatorOrder] = {}


NO_TESTING = NodeTestFunctions()
