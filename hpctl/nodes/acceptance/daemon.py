"""The acceptance test as the daemon's recoveries use it: see `hpctl.nodes.testing`."""

from hpctl.engine.kinds import Order
from hpctl.engine.view import View
from hpctl.nodes.acceptance import decide
from hpctl.nodes.acceptance.limits import (
    ORDERS,
    find_failed_burn_in_nodes,
    find_untested_nodes,
    judge_results,
    list_limit_findings,
    list_newest_measurements,
)
from hpctl.nodes.acceptance.suspected import explain_test_refusal, find_suspected_nodes
from hpctl.nodes.testing import NodeTestFunctions
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.model import Finding
from hpctl.vocabulary.policy import RecoveryPolicy


def list_test_findings(
    test: str, node: NodeName, view: View, policy: RecoveryPolicy
) -> tuple[Finding, ...]:
    """Return the results that a node's agent has reported of a test, judged by the fleet's figures
    and by the floors.

    Nothing until the agent has reported all of them.
    """
    health = view.health.get(node)
    found = list_limit_findings(test, health.findings) if health is not None else ()
    if not found:
        return ()
    floors = policy.acceptance.floors
    return judge_results(found, view.instance_type(node), list_newest_measurements(view), floors)


ACCEPTANCE = NodeTestFunctions(
    come_before_service=decide.decide_before_service,
    accept=decide.advance_accepting,
    unreserve=decide.advance_unreserving,
    read_results=list_test_findings,
    find_burned=find_failed_burn_in_nodes,
    find_untested=find_untested_nodes,
    find_suspected=find_suspected_nodes,
    orders={verb: Order(fault, explain_test_refusal) for verb, fault in ORDERS.items()},
)
