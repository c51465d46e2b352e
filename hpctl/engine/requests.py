"""What becomes of an operator's request. Pure: a request and the world in, events out."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from hpctl.engine.gates import tally
from hpctl.engine.journal.events import LIFTS_PAUSE, Event, HoldNoted, RequestTaken, SignalSeen
from hpctl.engine.kinds import Kind, Order
from hpctl.engine.plan import decide
from hpctl.engine.view import Candidate, Request, View
from hpctl.vocabulary import job_recovery, node_recovery
from hpctl.vocabulary.assessment import Condition, FaultClass, Remedy, Urgency
from hpctl.vocabulary.identity import BootId, Generation, InstanceId, NodeName, RecoveryId, RuleId
from hpctl.vocabulary.isolation import Flaw, walled
from hpctl.vocabulary.policy import Mode, Policy
from hpctl.vocabulary.reason import reason_owner
from hpctl.vocabulary.slurm_facts import SlurmNode


def _refuse_nothing(node: SlurmNode, view: View) -> str:  # noqa: ARG001
    """Return no reason to refuse."""
    return ""


NOW = "-now"
"""How the verb ends that does not wait until the jobs on the node have ended."""
ORDERS: dict[str, Order] = {
    verb + ending: Order(
        FaultClass(RuleId(f"operator-{verb}"), meaning, urgency, (remedy,), source="an operator"),
        _refuse_nothing,
    )
    for verb, meaning, remedy in (
        ("replace", "an operator asked for a replacement", Remedy.REPLACE),
        ("reboot", "an operator asked for a reboot", Remedy.REBOOT),
        ("return", "an operator asked for the node's return", Remedy.NONE),
    )
    for ending, urgency in ((NOW, Urgency.NOW), ("", Urgency.AFTER_JOBS))
    if not (verb == "return" and ending)
}
"""The orders that concern every node, whatever kinds of recovery there are."""


def collect_orders(kinds: Sequence[Kind]) -> Mapping[str, Order]:
    """Return every order that an operator may give, by the request's verb."""
    orders = dict(ORDERS)
    for kind in kinds:
        orders.update(kind.orders)
    return orders


def take(
    request: Request,
    view: View,
    policy: Policy,
    now: datetime,
    orders: Mapping[str, Order] = ORDERS,
) -> list[Event]:
    """The events of one request: what it changes, then its answer."""
    ok, answer, events = _answer(request, view, policy, now, orders)
    by = request.by or "operator"
    taken = RequestTaken(
        now, request.id, request.verb, request.target, by, answer, ok, request.proof
    )
    return [*events, taken]


def taken(
    request: Request, view: View, policy: Policy, now: datetime, orders: Mapping[str, Order]
) -> list[Event]:
    """`take` inside a wall: a request that raises is answered so, and is not asked again."""
    events = walled(
        "request", request.target, lambda r: take(r, view, policy, now, orders), request
    )
    if not isinstance(events, Flaw):
        return events
    answer = f"internal error: {events.error} (input {events.digest}); see the daemon's log"
    by = request.by or "operator"
    return [RequestTaken(now, request.id, request.verb, request.target, by, answer, False)]


def _answer(
    request: Request, view: View, policy: Policy, now: datetime, orders: Mapping[str, Order]
) -> tuple[bool, str, Sequence[Event]]:
    if not request.proof:
        return False, f"nothing proves that {request.by!r} asked: ask again while a daemon runs", []
    if request.verb == "pause":
        return True, "paused: nothing new is opened and no step is taken", []
    if request.verb in LIFTS_PAUSE:
        return True, "the pause is lifted", []
    if request.verb == "approve":
        return _approve(request, view, policy)
    if request.verb == "cancel":
        return _cancel(request, view, now)
    if request.verb in orders:
        return _order(request, view, policy, now, orders[request.verb])
    return False, f"no such request: {request.verb!r}", []


def _approve(request: Request, view: View, policy: Policy) -> tuple[bool, str, Sequence[Event]]:
    hold = view.state.holds.get(request.target)
    if hold is None:
        held = ", ".join(sorted(view.state.holds)) or "nothing"
        return False, f"nothing is held for {request.target!r}; held now: {held}", []
    if not hold.approvable:
        return False, f"held by {hold.gate}, which no approval can lift: {hold.why}", []
    hours = policy.budgets.approval_s / 3600
    return True, f"approved for {hours:g} h; {hold.gate} is waved", []


def _cancel(request: Request, view: View, now: datetime) -> tuple[bool, str, Sequence[Event]]:
    rid = RecoveryId(request.target)
    rid = view.state.open_nodes.get(NodeName(request.target), rid)
    why = f"cancelled by {request.by or 'an operator'}"
    node = view.state.nodes.get(rid)
    if node is not None and node.phase is node_recovery.NodePhase.UNRESERVING:
        return False, f"{rid} deletes the reservation of its test: ask again in some seconds", []
    if node is not None and not node.ended:
        signal = node_recovery.NodeSignal.OPERATOR_CANCELLED
        text = (
            f"{rid} cancelled; {node.node} stays drained: `hpctl return {node.node}` gives it back"
        )
        return True, text, [SignalSeen(now, rid, signal, why)]
    job = view.state.jobs.get(rid)
    if job is not None and not job.ended:
        return (
            True,
            f"{rid} cancelled",
            [SignalSeen(now, rid, job_recovery.JobSignal.OPERATOR_CANCELLED, why)],
        )
    return False, f"no open recovery {request.target!r}", []


def _order(
    request: Request, view: View, policy: Policy, now: datetime, order: Order
) -> tuple[bool, str, Sequence[Event]]:
    name = NodeName(request.target)
    node = view.scheduler.nodes.get(name)
    if node is None:
        return False, f"Slurm knows no node {request.target!r}", []
    already = view.state.node_recovery(name)
    if already is not None:
        return False, f"{already.id} treats {name} already ({already.phase}); cancel it first", []
    if request.verb == "return" and _accepts_fault(node, view):
        return True, f"{name} is in service; its known fault is accepted", []
    if request.verb == "return" and not (node.drained and reason_owner(node.reason)):
        return False, f"{name} is not drained by hpctl (Reason {node.reason!r})", []
    fault = order.fault
    if why := order.refuse(node, view) or _refuse_in_assist(name, fault, view, policy):
        return False, why, []
    by = request.by or "operator"
    generation = generation_for(request.verb, name, view)
    candidate = Candidate(generation, node, fault, now, f"asked for by {by}", by=by)
    decision = decide(candidate, view, tally(view, [candidate], policy, now), policy, now)
    if isinstance(decision, HoldNoted):
        return False, f"held by {decision.gate}: {decision.why}", []
    return True, f"recovery {decision.recovery} opened", [decision]


def _accepts_fault(node: SlurmNode, view: View) -> bool:
    """Whether a return concerns a node that an operator keeps in service with a known fault."""
    judged = view.assessments.get(node.name)
    rid = view.state.last_of_node.get(node.name)
    treated = rid is not None and view.state.nodes[rid].ended
    faulty = judged is not None and judged.condition is Condition.FAULTY
    return node.in_service and treated and faulty and node.name not in view.state.holds


def _refuse_in_assist(name: NodeName, fault: FaultClass, view: View, policy: Policy) -> str:
    """Return why mode assist cannot carry an order out; empty where the mode does not matter.

    The recovery would drain the node and wait until its deadline: the service's own recovery acts
    on the faults that it finds itself, and on no order.
    """
    remedy = fault.ladder[0]
    ordered = {Remedy.REPLACE: "replaces", Remedy.REBOOT: "reboots"}.get(remedy)
    if policy.mode is not Mode.ASSIST or not view.provider.present or ordered is None:
        return ""
    return (
        f"in mode assist the daemon {ordered} no instance, HyperPod does where it finds a fault"
        f" itself: `hpctl cluster {remedy} {name}` {ordered} it from here"
    )


def generation_for(verb: str, name: NodeName, view: View) -> Generation:
    """What an order for this node means: the agent's word, or else the cloud's.

    An instance that never came up has no agent to speak for it; the last word heard under the
    node's name is its predecessor's then, and it is the new one that an operator wants gone.
    """
    health, instance = view.health.get(name), view.instance(name)
    if health is not None:
        listed = instance is None or instance.id == health.generation.instance
        if listed or verb == "return":
            return health.generation
    return Generation(name, instance.id if instance else InstanceId(""), BootId(""))
