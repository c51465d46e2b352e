"""The acceptance test as the daemon's recoveries use it: see `hpctl.nodes.testing`."""

from hpctl.engine.kinds import Order
from hpctl.engine.view import View, jobs_on
from hpctl.nodes.acceptance import decide
from hpctl.nodes.acceptance.limits import (
    ORDERS,
    find_burned,
    find_untested,
    judge_results,
    list_measured_nodes,
    list_results,
)
from hpctl.nodes.testing import NodeTesting
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.model import Finding
from hpctl.vocabulary.policy import Policy
from hpctl.vocabulary.reason import reason_owner
from hpctl.vocabulary.slurm_facts import SlurmNode


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


def refuse_test(node: SlurmNode, view: View) -> str:
    """Return why a node cannot be tested now: a test takes a whole node, and waits for no job."""
    here = jobs_on([node.name], view.scheduler.jobs)[node.name]
    job = next((j for j in here if j.running or j.completing), None)
    if job is not None:
        return f"job {job.shown} is on {node.name}: ask again when it has ended"
    if node.closed and reason_owner(node.reason) is None:
        return f"{node.name} is closed by another operator or tool (Reason {node.reason!r})"
    if node.down or not node.responding:
        return f"the slurmd of {node.name} does not answer"
    if node.name not in view.health:
        return f"no agent speaks for {node.name}, and it is the agent that tells the result"
    return ""


ACCEPTANCE = NodeTesting(
    come_before_service=decide.come_before_service,
    accept=decide.advance_accepting,
    unreserve=decide.advance_unreserving,
    read_results=read_results,
    find_burned=find_burned,
    find_untested=find_untested,
    orders={verb: Order(fault, refuse_test) for verb, fault in ORDERS.items()},
)
