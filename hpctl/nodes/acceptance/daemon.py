"""The acceptance test as the daemon's recoveries use it: see `hpctl.nodes.testing`."""

from hpctl.engine.kinds import OperatorOrder
from hpctl.engine.view import PlanningView
from hpctl.nodes.acceptance import decide
from hpctl.nodes.acceptance.limits import (
    ORDERS,
    find_failed_burn_in_candidates,
    find_untested_node_candidates,
    judge_test_results_by_limits,
    list_complete_test_findings,
    list_newest_measurements,
)
from hpctl.nodes.acceptance.suspected import explain_test_refusal, find_suspected_node_candidates
from hpctl.nodes.testing import NodeTestFunctions
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.model import Finding
from hpctl.vocabulary.policy import RecoveryPolicy


def judge_reported_test_findings(
    test: str, node: NodeName, view: PlanningView, policy: RecoveryPolicy
) -> tuple[Finding, ...]:
    """Return the results that a node's agent has reported of a test, judged by the fleet's figures
    and by the floors.

    Nothing until the agent has reported all of them.
    """
    health = view.health.get(node)
    found = list_complete_test_findings(test, health.findings) if health is not None else ()
    if not found:
        return ()
    floors = policy.acceptance.floors
    return judge_test_results_by_limits(
        found, view.instance_type(node), list_newest_measurements(view), floors
    )


ACCEPTANCE = NodeTestFunctions(
    come_before_service=decide.choose_step_before_return_to_service,
    accept=decide.advance_acceptance_test,
    unreserve=decide.advance_reservation_removal,
    read_results=judge_reported_test_findings,
    find_burned=find_failed_burn_in_candidates,
    find_untested=find_untested_node_candidates,
    find_suspected=find_suspected_node_candidates,
    orders={verb: OperatorOrder(fault, explain_test_refusal) for verb, fault in ORDERS.items()},
)
