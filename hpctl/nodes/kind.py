"""The recoveries of nodes as the engine drives them: see `hpctl.engine.kinds`."""

from collections.abc import Collection
from datetime import datetime

from msgspec.structs import replace

from hpctl.engine.gates import correlated_since
from hpctl.engine.kinds import Answer, Answers, JobsByNode, Kind, Order
from hpctl.engine.view import Candidate, View, jobs_on
from hpctl.faults.catalogue import OWN_HARDWARE
from hpctl.nodes import advance
from hpctl.nodes.acceptance.limits import (
    ORDERS,
    find_burned,
    find_untested,
    judge_results,
    measured,
)
from hpctl.nodes.actors import NodeFacts, passed_by_itself
from hpctl.nodes.facts import node_facts
from hpctl.nodes.stuck import find_stuck
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.isolation import each
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeSignal
from hpctl.vocabulary.policy import Policy
from hpctl.vocabulary.reason import reason_owner
from hpctl.vocabulary.recovery import Move
from hpctl.vocabulary.slurm_facts import SlurmNode


def advance_nodes(view: View, policy: Policy, here: JobsByNode, now: datetime) -> Answers:
    """What each open recovery of a node does next."""
    state = view.state
    correlated = correlated_since(view, policy, now)

    def node(rec: NodeRecovery) -> Answer:
        facts = node_facts(rec, view, here[rec.node], policy, now)
        facts = _tested(_of_others(rec, facts, correlated.get(rec.id, "")), rec, view, policy)
        answer = advance.advance(rec, facts, policy, now)
        if isinstance(answer, Move) and answer.signal is NodeSignal.NEW_GENERATION_SEEN:
            return Answer(rec.id, answer, generation=advance.new_generation(rec, facts))
        return Answer(rec.id, answer)

    nodes = [state.nodes[i] for n, i in state.open_nodes.items() if not view.aside(n)]
    return each("advance", nodes, lambda rec: rec.node, node)


def _tested(facts: NodeFacts, rec: NodeRecovery, view: View, policy: Policy) -> NodeFacts:
    """The facts with the node's test judged by what the fleet has measured, and by the floors."""
    if not facts.results:
        return facts
    floors, of_type = policy.acceptance.floors, view.instance_type(rec.node)
    return replace(facts, results=judge_results(facts.results, of_type, measured(view), floors))


def _of_others(rec: NodeRecovery, facts: NodeFacts, why: str) -> NodeFacts:
    """The facts with what the mass event that `why` tells of means for this one."""
    if why and rec.rule in OWN_HARDWARE:
        return replace(facts, blocked=why)
    return replace(facts, correlated=why or passed_by_itself(rec, facts))


def find_candidates(
    view: View, policy: Policy, treated: Collection[NodeName], now: datetime
) -> list[Candidate]:
    """Nodes that are not assessed faulty: those that failed a burn-in, that keep a job from its
    restart, or that are to be tested."""
    burned = find_burned(view, treated)
    treated = {*treated, *(candidate.node.name for candidate in burned)}
    stuck = find_stuck(view, policy, treated, now)
    treated = {*treated, *(candidate.node.name for candidate in stuck)}
    return [*burned, *stuck, *find_untested(view, policy, treated, now)]


def refuse_test(node: SlurmNode, view: View) -> str:
    """Why a node cannot be tested now: a test takes a whole node, and waits for no job."""
    here = jobs_on([node.name], view.scheduler.jobs)[node.name]
    job = next((j for j in here if j.running or j.completing), None)
    if job is not None:
        return f"job {job.shown} is on {node.name}: ask again when it has ended"
    if node.closed and reason_owner(node.reason) is None:
        return f"{node.name} is closed by somebody else (Reason {node.reason!r})"
    if node.down or not node.responding:
        return f"the slurmd of {node.name} does not answer"
    if node.name not in view.health:
        return f"no agent speaks for {node.name}, and it is the agent that tells the result"
    return ""


NODES = Kind(
    advance=advance_nodes,
    find_candidates=find_candidates,
    orders={verb: Order(fault, refuse_test) for verb, fault in ORDERS.items()},
)
