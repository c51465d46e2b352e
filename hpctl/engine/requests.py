"""What becomes of an operator's request. Pure: a request and the world in, events out."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from hpctl.engine.gates import build_recovery_gate_counts
from hpctl.engine.journal.events import LIFTS_PAUSE, Event, GateBlocked, RequestTaken, SignalSeen
from hpctl.engine.kinds import AnswerRequest, OperatorOrder, RecoveryKind
from hpctl.engine.plan import decide_candidate
from hpctl.engine.view import PlanningView, RecoveryCandidate, Request
from hpctl.toolkit.bounds import EARLIEST
from hpctl.toolkit.hostlist import expand_hostlist
from hpctl.vocabulary import job_recovery, node_recovery
from hpctl.vocabulary.assessment import FaultClass, NodeCondition, Remedy, Urgency
from hpctl.vocabulary.identity import (
    BootId,
    InstanceId,
    NodeGeneration,
    NodeName,
    RecoveryId,
    RuleId,
)
from hpctl.vocabulary.isolation import ItemProcessingFailure, call_and_capture_failure
from hpctl.vocabulary.pause import (
    OF_PARTITION,
    Pause,
    PauseRequest,
    find_active_pauses,
    parse_pause_request,
)
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SlurmNode


def _accept_order_for_any_node(node: SlurmNode, view: PlanningView) -> str:  # noqa: ARG001
    """Return no reason to refuse."""
    return ""


NOW = "-now"
"""How the verb ends that does not wait until the jobs on the node have ended."""


def _make_operator_order(
    verb: str, meaning: str, urgency: Urgency, remedy: Remedy
) -> OperatorOrder:
    """Return an order that an operator may give for every node."""
    rule = RuleId(f"operator-{verb}")
    fault = FaultClass(rule, meaning, urgency, (remedy,), source="an operator")
    return OperatorOrder(fault, _accept_order_for_any_node)


_REPLACEMENT: Final = "an operator asked for a replacement"
_REBOOT: Final = "an operator asked for a reboot"
_RETURN: Final = "an operator asked for the node's return"
ORDERS: dict[str, OperatorOrder] = {
    "replace" + NOW: _make_operator_order("replace", _REPLACEMENT, Urgency.NOW, Remedy.REPLACE),
    "replace": _make_operator_order("replace", _REPLACEMENT, Urgency.AFTER_JOBS, Remedy.REPLACE),
    "reboot" + NOW: _make_operator_order("reboot", _REBOOT, Urgency.NOW, Remedy.REBOOT),
    "reboot": _make_operator_order("reboot", _REBOOT, Urgency.AFTER_JOBS, Remedy.REBOOT),
    "return": _make_operator_order("return", _RETURN, Urgency.AFTER_JOBS, Remedy.NONE),
}
"""The orders that concern every node, whatever kinds of recovery there are."""


def map_verbs_to_operator_orders(kinds: Sequence[RecoveryKind]) -> Mapping[str, OperatorOrder]:
    """Return every order that an operator may give, by the request's verb."""
    orders = dict(ORDERS)
    for kind in kinds:
        orders.update(kind.orders)
    return orders


NO_ANSWERS: Final[Mapping[str, AnswerRequest]] = {}


def map_verbs_to_request_handlers(kinds: Sequence[RecoveryKind]) -> Mapping[str, AnswerRequest]:
    """Return what answers the requests of the kinds, by verb."""
    found: dict[str, AnswerRequest] = {}
    for kind in kinds:
        found.update(kind.requests)
    return found


def process_operator_request(  # noqa: PLR0913 -- pure: all that decides is an argument
    request: Request,
    view: PlanningView,
    policy: RecoveryPolicy,
    now: datetime,
    orders: Mapping[str, OperatorOrder] = ORDERS,
    answers: Mapping[str, AnswerRequest] = NO_ANSWERS,
) -> list[Event]:
    """Return the events of one request: what it changes, then its answer."""
    if request.verb in ("pause", *LIFTS_PAUSE) and request.proof:
        return [_process_pause_request(request, view, now)]
    if request.verb in answers and request.proof:
        ok, answer, events = answers[request.verb](request, view, policy, now)
    else:
        ok, answer, events = _execute_operator_request(request, view, policy, now, orders)
    return [*events, _make_request_answer(request, now, answer, ok)]


def _make_request_answer(request: Request, now: datetime, answer: str, ok: bool) -> RequestTaken:
    by = request.by or "operator"
    return RequestTaken(
        now, request.id, request.verb, request.target, by, answer, ok, request.proof
    )


def _process_pause_request(request: Request, view: PlanningView, now: datetime) -> RequestTaken:
    """Take a pause, or the end of one: the answer carries its scope, reason and end."""
    try:
        asked = parse_pause_request(request.detail)
    except ValueError as error:
        return _make_request_answer(request, now, str(error), False)
    scope = asked.scope
    if request.verb == "pause":
        why_not = _explain_pause_refusal(asked, view, now)
        answer = why_not or _format_pause_answer(asked)
    else:
        why_not = _explain_unpause_refusal(scope, view, now)
        answer = why_not or _format_unpause_answer(scope, view, now)
    taken = replace(_make_request_answer(request, now, answer, not why_not), target=scope)
    return replace(taken, why=asked.why, until=asked.until) if taken.ok else taken


def _explain_pause_refusal(asked: PauseRequest, view: PlanningView, now: datetime) -> str:
    """Return why a pause cannot be taken; empty where it can."""
    if asked.until is not None and asked.until <= now:
        return f"its end, {asked.until:%Y-%m-%d %H:%M:%S} UTC, is past"
    known = view.scheduler.nodes
    if asked.partition and not any(asked.partition in node.partitions for node in known.values()):
        return f"Slurm knows no partition {asked.partition!r} with nodes"
    missing = [name for name in expand_hostlist(asked.nodes) if NodeName(name) not in known]
    return f"Slurm knows no node {missing[0]!r}" if missing else ""


def _format_pause_answer(asked: PauseRequest) -> str:
    what = Pause(asked.scope, "", EARLIEST).what
    of = "" if not asked.scope else f" for {what}"
    until = ""
    if asked.until is not None:
        until = f" until {asked.until:%Y-%m-%d %H:%M:%S} UTC"
    return f"paused{until}: nothing new is opened and no step is taken{of}"


def _explain_unpause_refusal(scope: str, view: PlanningView, now: datetime) -> str:
    """Return why no pause can be lifted; empty where one can, or where all are asked for."""
    if not scope:
        return ""
    active = find_active_pauses(view.state.pauses, now)
    if any(pause.scope == scope for pause in active):
        return ""
    named = set() if scope.startswith(OF_PARTITION) else {*expand_hostlist(scope)}
    if any(not named.isdisjoint(pause.nodes) for pause in active):
        return ""
    wider = [f"{pause.text} (`{pause.lift_command}`)" for pause in active]
    what = Pause(scope, "", EARLIEST).what
    return f"no pause of {what} is open; open: {'; '.join(wider) or 'none'}"


def _format_unpause_answer(scope: str, view: PlanningView, now: datetime) -> str:
    if scope:
        return f"the pause of {Pause(scope, '', EARLIEST).what} is lifted"
    count = len(find_active_pauses(view.state.pauses, now))
    return f"all {count} pauses are lifted" if count > 1 else "the pause is lifted"


def process_request_catching_errors(  # noqa: PLR0913 -- pure: all that decides is an argument
    request: Request,
    view: PlanningView,
    policy: RecoveryPolicy,
    now: datetime,
    orders: Mapping[str, OperatorOrder],
    answers: Mapping[str, AnswerRequest] = NO_ANSWERS,
) -> list[Event]:
    """Take a request in isolation: one that raises is answered so, and is not asked again."""
    events = call_and_capture_failure(
        "request",
        request.target,
        lambda r: process_operator_request(r, view, policy, now, orders, answers),
        request,
    )
    if not isinstance(events, ItemProcessingFailure):
        return events
    answer = f"internal error: {events.error} (input {events.digest}); see the daemon's log"
    by = request.by or "operator"
    return [RequestTaken(now, request.id, request.verb, request.target, by, answer, False)]


def _execute_operator_request(
    request: Request,
    view: PlanningView,
    policy: RecoveryPolicy,
    now: datetime,
    orders: Mapping[str, OperatorOrder],
) -> tuple[bool, str, Sequence[Event]]:
    if not request.proof:
        return False, f"nothing proves that {request.by!r} asked: ask again while a daemon runs", []
    if request.verb == "approve":
        return _process_approve_request(request, view, policy)
    if request.verb == "cancel":
        return _process_cancel_request(request, view, now)
    if request.verb in orders:
        return _process_operator_order(request, view, policy, now, orders[request.verb])
    return False, f"no such request: {request.verb!r}", []


def _process_approve_request(
    request: Request, view: PlanningView, policy: RecoveryPolicy
) -> tuple[bool, str, Sequence[Event]]:
    hold = view.state.holds.get(request.target)
    if hold is None:
        held = ", ".join(sorted(view.state.holds)) or "nothing"
        return False, f"nothing is held for {request.target!r}; held now: {held}", []
    if not hold.approvable:
        return False, f"held by {hold.gate}, which no approval can lift: {hold.why}", []
    hours = policy.budgets.approval_s / 3600
    return True, f"approved for {hours:g} h: the gate {hold.gate} is waived", []


def _process_cancel_request(
    request: Request, view: PlanningView, now: datetime
) -> tuple[bool, str, Sequence[Event]]:
    rid = RecoveryId(request.target)
    rid = view.state.open_nodes.get(NodeName(request.target), rid)
    why = f"cancelled by {request.by or 'an operator'}"
    node = view.state.nodes.get(rid)
    if node is not None and node.phase is node_recovery.NodeRecoveryPhase.UNRESERVING:
        return False, f"{rid} deletes the reservation of its test: ask again in some seconds", []
    if node is not None and not node.ended:
        signal = node_recovery.NodeRecoverySignal.OPERATOR_CANCELLED
        text = (
            f"{rid} cancelled; {node.node} stays drained: `hpctl undrain {node.node}` gives it back"
        )
        return True, text, [SignalSeen(now, rid, signal, why)]
    job = view.state.jobs.get(rid)
    if job is not None and not job.ended:
        return (
            True,
            f"{rid} cancelled",
            [SignalSeen(now, rid, job_recovery.JobRecoverySignal.OPERATOR_CANCELLED, why)],
        )
    return False, f"no open recovery {request.target!r}", []


def _process_operator_order(
    request: Request,
    view: PlanningView,
    policy: RecoveryPolicy,
    now: datetime,
    order: OperatorOrder,
) -> tuple[bool, str, Sequence[Event]]:
    name = NodeName(request.target)
    node = view.scheduler.nodes.get(name)
    if node is None:
        return False, f"Slurm knows no node {request.target!r}", []
    already = view.state.node_recovery(name)
    if already is not None:
        return False, f"{already.id} treats {name} already ({already.phase}); cancel it first", []
    if request.verb == "return" and _is_node_returned_with_known_fault(node, view):
        return True, f"{name} is in service; its known fault is accepted", []
    if request.verb == "return" and not (
        node.drained and parse_recovery_id_from_reason(node.reason)
    ):
        return False, f"{name} is not drained by hpctl (Reason {node.reason!r})", []
    fault = order.fault
    why = order.refuse(node, view) or _explain_assist_mode_refusal(name, fault, view, policy)
    if why:
        return False, why, []
    by = request.by or "operator"
    generation = find_node_generation_for_order(request.verb, name, view)
    candidate = RecoveryCandidate(generation, node, fault, now, f"asked for by {by}", by=by)
    decision = decide_candidate(
        candidate, view, build_recovery_gate_counts(view, [candidate], policy, now), policy, now
    )
    if isinstance(decision, GateBlocked):
        return False, f"held by {decision.gate}: {decision.why}", []
    return True, f"recovery {decision.recovery} opened", [decision]


def _is_node_returned_with_known_fault(node: SlurmNode, view: PlanningView) -> bool:
    """Return whether a return concerns a node that an operator keeps in service with a known
    fault."""
    judged = view.assessments.get(node.name)
    rid = view.state.last_of_node.get(node.name)
    treated = rid is not None and view.state.nodes[rid].ended
    faulty = judged is not None and judged.condition is NodeCondition.FAULTY
    return node.in_service and treated and faulty and node.name not in view.state.holds


def _explain_assist_mode_refusal(
    name: NodeName, fault: FaultClass, view: PlanningView, policy: RecoveryPolicy
) -> str:
    """Return why mode assist cannot carry an order out; empty where the mode does not matter.

    The recovery would drain the node and wait until its deadline: the service's own recovery acts
    on the faults that it finds itself, and on no order.
    """
    remedy = fault.ladder[0]
    ordered = {Remedy.REPLACE: "replaces", Remedy.REBOOT: "reboots"}.get(remedy)
    if policy.mode is not OperatingMode.ASSIST or not view.provider.present or ordered is None:
        return ""
    return (
        f"in mode assist the daemon {ordered} no instance, HyperPod does where it finds a fault"
        f" itself: `hpctl cluster {remedy} {name}` {ordered} it from here"
    )


def find_node_generation_for_order(verb: str, name: NodeName, view: PlanningView) -> NodeGeneration:
    """Return the generation that an order for this node means, by its agent, else by the cloud.

    An instance that never came up has no agent to speak for it; the last word heard under the
    node's name is its predecessor's then, and it is the new one that an operator wants gone.
    """
    health, instance = view.health.get(name), view.instance(name)
    if health is not None:
        listed = instance is None or instance.id == health.generation.instance
        if listed or verb == "return":
            return health.generation
    return NodeGeneration(name, instance.id if instance else InstanceId(""), BootId(""))
