"""What becomes of an operator's request. Pure: a request and the world in, events out."""

from collections.abc import Sequence
from datetime import datetime

from hpctl.core import acceptance, job_recovery, node_recovery
from hpctl.core.gates import Candidate, tally
from hpctl.core.journal import Event, HoldNoted, RequestTaken, SignalSeen
from hpctl.core.model import (
    BootId,
    FaultClass,
    Generation,
    InstanceId,
    NodeName,
    RecoveryId,
    Remedy,
    RuleId,
    SlurmNode,
    Urgency,
    reason_owner,
)
from hpctl.core.plan import decide
from hpctl.core.policy import Policy
from hpctl.core.view import Request, View, jobs_on
from hpctl.core.walls import Flaw, walled

NOW = "-now"
"""How the verb ends that does not wait until the jobs on the node have ended."""
ORDERS: dict[str, FaultClass] = {
    verb + ending: FaultClass(
        RuleId(f"operator-{verb}"), meaning, urgency, (remedy,), source="an operator"
    )
    for verb, meaning, remedy in (
        ("replace", "an operator asked for a replacement", Remedy.REPLACE),
        ("reboot", "an operator asked for a reboot", Remedy.REBOOT),
        ("return", "an operator asked for the node's return", Remedy.NONE),
    )
    for ending, urgency in ((NOW, Urgency.NOW), ("", Urgency.AFTER_JOBS))
    if not (verb == "return" and ending)
} | acceptance.ORDERS


def take(request: Request, view: View, policy: Policy, now: datetime) -> list[Event]:
    """The events of one request: what it changes, then its answer."""
    ok, answer, events = _answer(request, view, policy, now)
    by = request.by or "operator"
    taken = RequestTaken(
        now, request.id, request.verb, request.target, by, answer, ok, request.proof
    )
    return [*events, taken]


def taken(request: Request, view: View, policy: Policy, now: datetime) -> list[Event]:
    """`take` inside a wall: a request that raises is answered so, and is not asked again."""
    events = walled("request", request.target, lambda r: take(r, view, policy, now), request)
    if not isinstance(events, Flaw):
        return events
    answer = f"internal error: {events.error} (input {events.digest}); see the daemon's log"
    by = request.by or "operator"
    return [RequestTaken(now, request.id, request.verb, request.target, by, answer, False)]


def _answer(
    request: Request, view: View, policy: Policy, now: datetime
) -> tuple[bool, str, Sequence[Event]]:
    if not request.proof:
        return False, f"nothing proves that {request.by!r} asked: ask again while a daemon runs", []
    if request.verb == "pause":
        return True, "paused: nothing new is opened and no step is taken", []
    if request.verb == "resume":
        return True, "resumed", []
    if request.verb == "approve":
        return _approve(request, view, policy)
    if request.verb == "cancel":
        return _cancel(request, view, now)
    if request.verb in ORDERS:
        return _order(request, view, policy, now)
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
    request: Request, view: View, policy: Policy, now: datetime
) -> tuple[bool, str, Sequence[Event]]:
    name = NodeName(request.target)
    node = view.scheduler.nodes.get(name)
    if node is None:
        return False, f"Slurm knows no node {request.target!r}", []
    already = view.state.node_recovery(name)
    if already is not None:
        return False, f"{already.id} treats {name} already ({already.phase}); cancel it first", []
    if request.verb == "return" and not (node.drained and reason_owner(node.reason)):
        return False, f"{name} is not drained by hpctl (Reason {node.reason!r})", []
    if request.verb in acceptance.ORDERS and (why := _not_testable(node, view)):
        return False, why, []
    fault = ORDERS[request.verb]
    by = request.by or "operator"
    generation = generation_for(request.verb, name, view)
    candidate = Candidate(generation, node, fault, now, f"asked for by {by}", by=by)
    decision = decide(candidate, view, tally(view, [candidate], policy, now), policy, now)
    if isinstance(decision, HoldNoted):
        return False, f"held by {decision.gate}: {decision.why}", []
    return True, f"recovery {decision.recovery} opened", [decision]


def _not_testable(node: SlurmNode, view: View) -> str:
    """Why a node cannot be tested now: a test takes a whole node, and waits for no job."""
    here = jobs_on([node.name], view.scheduler.jobs)[node.name]
    job = next((j for j in here if j.running or j.completing), None)
    if job is not None:
        return f"job {job.id} is on {node.name}: ask again when it has ended"
    if node.closed and reason_owner(node.reason) is None:
        return f"{node.name} is closed by somebody else (Reason {node.reason!r})"
    if node.down or not node.responding:
        return f"the slurmd of {node.name} does not answer"
    if node.name not in view.health:
        return f"no agent speaks for {node.name}, and it is the agent that tells the result"
    return ""


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
