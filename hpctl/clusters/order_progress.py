"""How far each node of an order is, in the words of the command: from its recovery."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from hpctl.clusters.fleet import NodeRow
from hpctl.clusters.node_order_plan import OrderTarget
from hpctl.clusters.order_terms import NodeAction, find_refusal_fix
from hpctl.clusters.progress import FAILURE, RUNNING
from hpctl.engine.node_history import find_last_cloud_order, has_unresolved_order
from hpctl.nodes.by_hand import MOVING
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.node_recovery import NodePhase, NodeRecovery, NodeSignal
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.reason import format_own_reason
from hpctl.vocabulary.recovery import StepKind, find_last_step


class OrderPhase(StrEnum):
    """How far one node is."""

    JOBS = "jobs"
    """Drained, and waiting for its jobs to end."""
    ORDERED = "ordered"
    """The service has accepted the order, or its reply was lost and is looked for."""
    COMING = "coming"
    """The new instance is there and not Running yet."""
    JOINING = "joining"
    """The instance is Running, and its slurmd has not registered yet."""
    DONE = "done"
    LEFT = "left"
    """Ordered, and the command waits for it no longer."""
    LET_GO = "let_go"
    """Not ordered, because the order was interrupted or no longer needed: given back."""
    REFUSED = "refused"
    FAILED = "failed"
    IN_DOUBT = "in_doubt"


ENDED = frozenset(
    {
        OrderPhase.DONE,
        OrderPhase.LEFT,
        OrderPhase.LET_GO,
        OrderPhase.REFUSED,
        OrderPhase.FAILED,
        OrderPhase.IN_DOUBT,
    }
)

BEFORE_ORDER = frozenset({NodePhase.OPEN, NodePhase.CORDONED, NodePhase.VACATED})


class OrderNodeProgress(Struct, frozen=True):
    """One node of an order. `code` is the service's word for a refusal, `fix` what to do then.

    `left_drained` is the Reason under which Slurm still has it closed, where that is ours.
    """

    node: str
    group: str
    instance_id: str
    phase: OrderPhase
    text: str = ""
    new_instance_id: str = ""
    code: str = ""
    fix: str = ""
    jobs: tuple[int, ...] = ()
    left_drained: str = ""

    @property
    def has_ended(self) -> bool:
        """Return whether nothing more will come of it."""
        return self.phase in ENDED


class NodeOrderFacts(Struct, frozen=True):
    """What is known of one node beside its recovery.

    `row` is the node now, `old` the instance of the order where it is still listed. `tracked`:
    Slurm tells of it. `closed_by`: the Reason of another operator or tool. `trouble`: why Slurm or
    the service was not read. `late`: it was not back in time. `waits`: the command waits for it.
    `interrupted`: an operator ended the wait. `failure` and `failure_fix`: why its new instance
    failed. `by_daemon`: the daemon carries the order out, whether the command waits or not.
    """

    verb: NodeAction
    row: NodeRow | None = None
    old: NodeRow | None = None
    jobs: Sequence[int] = ()
    tracked: bool = True
    closed_by: str = ""
    trouble: str = ""
    late: str = ""
    waits: bool = True
    interrupted: bool = False
    failure: str = ""
    failure_fix: str = ""
    by_daemon: bool = False


def describe_order_progress(
    target: OrderTarget, rec: NodeRecovery, facts: NodeOrderFacts
) -> OrderNodeProgress:
    """Return how far one node is."""
    one = OrderNodeProgress(
        node=target.row.display_name,
        group=target.row.group,
        instance_id=target.instance,
        phase=OrderPhase.JOBS,
        new_instance_id=_find_new_instance(target, facts),
    )
    if rec.ended:
        found = _describe_finished_order(one, rec, facts)
    elif rec.phase in BEFORE_ORDER and not _has_sent_order(rec):
        found = _describe_pending_order(one, rec, facts)
    else:
        found = _describe_sent_order(one, rec, target, facts)
    code_moves = found.phase is OrderPhase.REFUSED and found.code in MOVING
    stays = found.phase in (OrderPhase.LEFT, OrderPhase.FAILED, OrderPhase.IN_DOUBT) or code_moves
    reason = target.reason
    if facts.by_daemon:
        # What is under way the daemon gives back without this command.
        reason = format_own_reason(rec.id, rec.meaning) if rec.phase is NodePhase.ESCALATED else ""
    if rec.phase is NodePhase.CANCELLED or found.phase is OrderPhase.LET_GO:
        stays = _is_left_drained(rec, facts)
    return replace(
        found, fix=found.fix or find_refusal_fix(found.code), left_drained=reason if stays else ""
    )


def _is_left_drained(rec: NodeRecovery, facts: NodeOrderFacts) -> bool:
    """Return whether a node whose order was taken back could not be given back."""
    given = find_last_step(rec.steps, StepKind.RETURN)
    untouched = not rec.drains or bool(facts.closed_by) or not facts.tracked
    taken_over = rec.ended and rec.trail[-1].signal != NodeSignal.WITHDRAWN
    return not (taken_over or untouched or (given is not None and given.accepted))


def describe_unaccepted_order(target: OrderTarget, refusal: str) -> OrderNodeProgress:
    """Return a node without a recovery: the loop refused its order, or never took it."""
    return OrderNodeProgress(
        node=target.row.display_name,
        group=target.row.group,
        instance_id=target.instance,
        phase=OrderPhase.REFUSED if refusal else OrderPhase.LET_GO,
        text=refusal or "nothing was ordered for it",
    )


def describe_unreadable_order(target: OrderTarget, trouble: str) -> OrderNodeProgress:
    """Return a node whose order the daemon has taken, while what became of it cannot be read."""
    return OrderNodeProgress(
        node=target.row.display_name,
        group=target.row.group,
        instance_id=target.instance,
        phase=OrderPhase.JOBS,
        text=f"the daemon has the order; {trouble}",
    )


def _find_new_instance(target: OrderTarget, facts: NodeOrderFacts) -> str:
    row = facts.row
    if row is None or not row.instance_id or row.instance_id == target.instance:
        return ""
    return row.instance_id if row.logical_id != target.instance else ""


def _has_sent_order(rec: NodeRecovery) -> bool:
    """Return whether an order was sent that may have been accepted."""
    step = find_last_cloud_order(rec)
    return step is not None and (step.accepted or has_unresolved_order(rec))


def _describe_pending_order(
    one: OrderNodeProgress, rec: NodeRecovery, facts: NodeOrderFacts
) -> OrderNodeProgress:
    if facts.interrupted and facts.by_daemon:
        return replace(one, phase=OrderPhase.LEFT)
    if facts.interrupted:
        text = "nothing was ordered for it"
        if facts.trouble:
            text += f"; it was not given back: {facts.trouble}"
        return replace(one, phase=OrderPhase.LET_GO, text=text)
    jobs = tuple(facts.jobs) if rec.phase is not NodePhase.VACATED else ()
    return replace(one, text=facts.trouble, jobs=jobs)


def _describe_sent_order(
    one: OrderNodeProgress, rec: NodeRecovery, target: OrderTarget, facts: NodeOrderFacts
) -> OrderNodeProgress:
    doubt = rec.phase in BEFORE_ORDER and not _is_order_accepted(rec)
    if facts.interrupted and facts.by_daemon:
        return replace(one, phase=OrderPhase.LEFT)
    if facts.interrupted:
        text = "interrupted while it was being ordered" if doubt else ""
        return replace(one, phase=OrderPhase.IN_DOUBT if doubt else OrderPhase.LEFT, text=text)
    if doubt:
        why = "the reply was lost; looking whether the service accepted the order"
        return replace(one, phase=OrderPhase.ORDERED, text=why)
    if not facts.waits:
        return replace(one, phase=OrderPhase.LEFT)
    if facts.late:
        text = facts.late
        if facts.verb is NodeAction.REBOOT and target.under_way:
            text += ": it is unknown whether the earlier command ordered its reboot"
        return replace(one, phase=OrderPhase.LEFT, text=text)
    return _FOLLOW[facts.verb](one, rec, facts)


def _is_order_accepted(rec: NodeRecovery) -> bool:
    step = find_last_cloud_order(rec)
    return step is not None and step.accepted


def _describe_replacement_progress(
    one: OrderNodeProgress, rec: NodeRecovery, facts: NodeOrderFacts
) -> OrderNodeProgress:
    row = facts.row
    if row is None or not one.new_instance_id:
        text = f"the old instance is {facts.old.status}" if facts.old else ""
        return replace(one, phase=OrderPhase.ORDERED, text=facts.trouble or text)
    if row.status in FAILURE:
        return replace(one, phase=OrderPhase.FAILED, text=facts.failure, fix=facts.failure_fix)
    if row.status != RUNNING:
        return replace(one, phase=OrderPhase.COMING, text=facts.trouble or row.status)
    return _describe_joining_progress(one, rec, facts)


def _describe_reboot_progress(
    one: OrderNodeProgress, rec: NodeRecovery, facts: NodeOrderFacts
) -> OrderNodeProgress:
    row = facts.row
    if row is None or row.status == "Failure":
        text = row.message if row is not None else "the instance is gone"
        return replace(one, phase=OrderPhase.FAILED, text=text)
    if not facts.tracked:
        # EC2 says Running all the while: without Slurm the end of a reboot is not seen.
        text = "ordered; the API does not tell when a reboot ends"
        return replace(one, phase=OrderPhase.LEFT, text=text)
    return _describe_joining_progress(one, rec, facts)


def _describe_deletion_progress(
    one: OrderNodeProgress,
    rec: NodeRecovery,  # noqa: ARG001
    facts: NodeOrderFacts,
) -> OrderNodeProgress:
    text = facts.trouble or (facts.row.status if facts.row else "")
    return replace(one, phase=OrderPhase.ORDERED, text=text)


def _describe_joining_progress(
    one: OrderNodeProgress, rec: NodeRecovery, facts: NodeOrderFacts
) -> OrderNodeProgress:
    given = find_last_step(rec.steps, StepKind.RETURN)
    refused = given is not None and given.outcome is not None and not given.accepted
    text = given.outcome.detail if refused and given and given.outcome else ""
    text = facts.trouble or text or "its slurmd has not registered yet"
    return replace(one, phase=OrderPhase.JOINING, text=text)


_FOLLOW = {
    NodeAction.REPLACE: _describe_replacement_progress,
    NodeAction.REBOOT: _describe_reboot_progress,
    NodeAction.DELETE: _describe_deletion_progress,
}


def _describe_finished_order(
    one: OrderNodeProgress, rec: NodeRecovery, facts: NodeOrderFacts
) -> OrderNodeProgress:
    last, order = rec.trail[-1], find_last_cloud_order(rec)
    outcome = order.outcome if order is not None and order.outcome else Outcome.accepted()
    refused = outcome.kind is OutcomeKind.REJECTED
    if rec.phase is NodePhase.REMOVED:
        return replace(one, phase=OrderPhase.DONE, text="deleted")
    if rec.phase is NodePhase.RETURNED:
        return replace(one, phase=OrderPhase.DONE, text=_describe_return(facts))
    if rec.phase is NodePhase.ESCALATED:
        asked = len(rec.trail) > 1 and rec.trail[-2].phase not in BEFORE_ORDER
        if asked or order is None:
            return replace(one, phase=OrderPhase.FAILED, text=last.why)
        if has_unresolved_order(rec):
            text = f"it is unknown whether the service accepted the order: {outcome.detail}"
            return replace(one, phase=OrderPhase.IN_DOUBT, text=text, code=outcome.code)
        if refused:
            return replace(one, phase=OrderPhase.REFUSED, text=outcome.detail, code=outcome.code)
        return replace(one, phase=OrderPhase.FAILED, text=last.why)
    if last.signal == NodeSignal.WITHDRAWN:
        if refused:
            return replace(one, phase=OrderPhase.REFUSED, text=outcome.detail, code=outcome.code)
        return replace(one, phase=OrderPhase.LET_GO, text=last.why)
    return _describe_operator_takeover(one, rec)


def _describe_operator_takeover(one: OrderNodeProgress, rec: NodeRecovery) -> OrderNodeProgress:
    """Return an operator resumed the node, or gave it another Reason: it is theirs."""
    why = rec.trail[-1].why
    before = rec.trail[-2].phase if len(rec.trail) > 1 else NodePhase.OPEN
    if before in BEFORE_ORDER and not _has_sent_order(rec):
        return replace(one, phase=OrderPhase.REFUSED, text=f"not ordered: {why}", code="given_back")
    if before == NodePhase.VERIFYING:
        return replace(one, phase=OrderPhase.DONE, text=f"back; {why}")
    if before in BEFORE_ORDER:
        text = f"{why} before it was known whether the service accepted the order"
        return replace(one, phase=OrderPhase.IN_DOUBT, text=text)
    return replace(one, phase=OrderPhase.LEFT, text=why)


def _describe_return(facts: NodeOrderFacts) -> str:
    if facts.closed_by:
        return f"back; it stays closed by another: {facts.closed_by}"
    return "back in service" if facts.tracked else "the new instance is Running"
