"""The acceptance test as the daemon's recoveries use it: see `hpctl.nodes.testing`."""

from hpctl.engine.kinds import Order
from hpctl.engine.view import View
from hpctl.nodes.acceptance import decide
from hpctl.nodes.acceptance.limits import (
    ORDERS,
    find_burned,
    find_untested,
    judge_results,
    list_measured_nodes,
    list_results,
)
from hpctl.nodes.acceptance.suspected import find_suspected, refuse_test
from hpctl.nodes.testing import NodeTesting
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.model import Finding
from hpctl.vocabulary.policy import Policy


def read_results(test: str, node: NodeName, view: View, policy: Policy) -> tuple[Finding, ...]:
    """Return the results that a node's agent has reported of a test, judged by the fleet's figures
    and by the floors.

    Nothing until the agent has reported all of them.
    """
    health = view.health.get(node)
    found = list_results(test, health.findings) if health is not None else ()
    if not found:
        return ()
    floors = policy.acceptance.floors
    return judge_results(found, view.instance_type(node), list_measured_nodes(view), floors)


ACCEPTANCE = NodeTesting(
    come_before_service=decide.come_before_service,
    accept=decide.advance_accepting,
    unreserve=decide.advance_unreserving,
    read_results=read_results,
    find_burned=find_burned,
    find_untested=find_untested,
    find_suspected=find_suspected,
    orders={verb: Order(fault, refuse_test) for verb, fault in ORDERS.items()},
)
