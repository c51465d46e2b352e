"""How far each node of an order is, in the words of the command: from its recovery."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from hpctl.clusters.fleet import NodeRow
from hpctl.clusters.node_order_plan import NodeOrderTarget
from hpctl.clusters.order_terms import NodeAction, find_fix_for_refusal_code
from hpctl.clusters.progress import FAILURE, RUNNING
from hpctl.engine.node_history import find_last_instance_order, has_unresolved_instance_order
from hpctl.nodes.by_hand import MOVING
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase, NodeRecoverySignal
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import StepKind, find_last_step_attempt


class NodeOrderPhase(StrEnum):
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
        NodeOrderPhase.DONE,
        NodeOrderPhase.LEFT,
        NodeOrderPhase.LET_GO,
        NodeOrderPhase.REFUSED,
        NodeOrderPhase.FAILED,
        NodeOrderPhase.IN_DOUBT,
    }
)

BEFORE_ORDER = frozenset(
    {NodeRecoveryPhase.OPEN, NodeRecoveryPhase.CORDONED, NodeRecoveryPhase.VACATED}
)


class NodeOrderProgress(Struct, frozen=True):
    """One node of an order. `code` is the service's word for a refusal, `fix` what to do then.

    `left_drained` is the Reason under which Slurm still has it closed, where that is ours.
    """

    node: str
    group: str
    instance_id: str
    phase: NodeOrderPhase
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


def describe_node_order_progress(
    target: NodeOrderTarget, rec: NodeRecovery, facts: NodeOrderFacts
) -> NodeOrderProgress:
    """Return how far one node is."""
    one = NodeOrderProgress(
        node=target.row.display_name,
        group=target.row.group,
        instance_id=target.instance,
        phase=NodeOrderPhase.JOBS,
        new_instance_id=_find_replacement_instance_id(target, facts),
    )
    if rec.ended:
        found = _describe_finished_order(one, rec, facts)
    elif rec.phase in BEFORE_ORDER and not _has_sent_order(rec):
        found = _describe_pending_order(one, rec, facts)
    else:
        found = _describe_sent_order(one, rec, target, facts)
    code_moves = found.phase is NodeOrderPhase.REFUSED and found.code in MOVING
    stays = (
        found.phase in (NodeOrderPhase.LEFT, NodeOrderPhase.FAILED, NodeOrderPhase.IN_DOUBT)
        or code_moves
    )
    reason = target.reason
    if facts.by_daemon:
        # What is under way the daemon gives back without this command.
        reason = (
            format_hpctl_node_reason(rec.id, rec.meaning)
            if rec.phase is NodeRecoveryPhase.ESCALATED
            else ""
        )
    if rec.phase is NodeRecoveryPhase.CANCELLED or found.phase is NodeOrderPhase.LET_GO:
        stays = _is_withdrawn_node_still_drained(rec, facts)
    return replace(
        found,
        fix=found.fix or find_fix_for_refusal_code(found.code),
        left_drained=reason if stays else "",
    )


def _is_withdrawn_node_still_drained(rec: NodeRecovery, facts: NodeOrderFacts) -> bool:
    """Return whether a node whose order was taken back could not be given back."""
    given = find_last_step_attempt(rec.steps, StepKind.RETURN)
    untouched = not rec.drains or bool(facts.closed_by) or not facts.tracked
    taken_over = rec.ended and rec.trail[-1].signal != NodeRecoverySignal.WITHDRAWN
    return not (taken_over or untouched or (given is not None and given.accepted))


def describe_unaccepted_node_order(target: NodeOrderTarget, refusal: str) -> NodeOrderProgress:
    """Return a node without a recovery: the loop refused its order, or never took it."""
    return NodeOrderProgress(
        node=target.row.display_name,
        group=target.row.group,
        instance_id=target.instance,
        phase=NodeOrderPhase.REFUSED if refusal else NodeOrderPhase.LET_GO,
        text=refusal or "nothing was ordered for it",
    )


def describe_unreadable_node_order(target: NodeOrderTarget, trouble: str) -> NodeOrderProgress:
    """Return a node whose order the daemon has taken, while what became of it cannot be read."""
    return NodeOrderProgress(
        node=target.row.display_name,
        group=target.row.group,
        instance_id=target.instance,
        phase=NodeOrderPhase.JOBS,
        text=f"the daemon has the order; {trouble}",
    )


def _find_replacement_instance_id(target: NodeOrderTarget, facts: NodeOrderFacts) -> str:
    row = facts.row
    if row is None or not row.instance_id or row.instance_id == target.instance:
        return ""
    return row.instance_id if row.logical_id != target.instance else ""


def _has_sent_order(rec: NodeRecovery) -> bool:
    """Return whether an order was sent that may have been accepted."""
    step = find_last_instance_order(rec)
    return step is not None and (step.accepted or has_unresolved_instance_order(rec))


def _describe_pending_order(
    one: NodeOrderProgress, rec: NodeRecovery, facts: NodeOrderFacts
) -> NodeOrderProgress:
    if facts.interrupted and facts.by_daemon:
        return replace(one, phase=NodeOrderPhase.LEFT)
    if facts.interrupted:
        text = "nothing was ordered for it"
        if facts.trouble:
            text += f"; it was not given back: {facts.trouble}"
        return replace(one, phase=NodeOrderPhase.LET_GO, text=text)
    jobs = tuple(facts.jobs) if rec.phase is not NodeRecoveryPhase.VACATED else ()
    return replace(one, text=facts.trouble, jobs=jobs)


def _describe_sent_order(
    one: NodeOrderProgress, rec: NodeRecovery, target: NodeOrderTarget, facts: NodeOrderFacts
) -> NodeOrderProgress:
    doubt = rec.phase in BEFORE_ORDER and not _is_order_accepted(rec)
    if facts.interrupted and facts.by_daemon:
        return replace(one, phase=NodeOrderPhase.LEFT)
    if facts.interrupted:
        text = "interrupted while it was being ordered" if doubt else ""
        return replace(
            one, phase=NodeOrderPhase.IN_DOUBT if doubt else NodeOrderPhase.LEFT, text=text
        )
    if doubt:
        why = "the reply was lost; looking whether the service accepted the order"
        return replace(one, phase=NodeOrderPhase.ORDERED, text=why)
    if not facts.waits:
        return replace(one, phase=NodeOrderPhase.LEFT)
    if facts.late:
        text = facts.late
        if facts.verb is NodeAction.REBOOT and target.under_way:
            text += ": it is unknown whether the earlier command ordered its reboot"
        return replace(one, phase=NodeOrderPhase.LEFT, text=text)
    return _FOLLOW[facts.verb](one, rec, facts)


def _is_order_accepted(rec: NodeRecovery) -> bool:
    step = find_last_instance_order(rec)
    return step is not None and step.accepted


def _describe_replacement_progress(
    one: NodeOrderProgress, rec: NodeRecovery, facts: NodeOrderFacts
) -> NodeOrderProgress:
    row = facts.row
    if row is None or not one.new_instance_id:
        text = f"the old instance is {facts.old.status}" if facts.old else ""
        return replace(one, phase=NodeOrderPhase.ORDERED, text=facts.trouble or text)
    if row.status in FAILURE:
        return replace(one, phase=NodeOrderPhase.FAILED, text=facts.failure, fix=facts.failure_fix)
    if row.status != RUNNING:
        return replace(one, phase=NodeOrderPhase.COMING, text=facts.trouble or row.status)
    return _describe_node_joining_progress(one, rec, facts)


def _describe_reboot_progress(
    one: NodeOrderProgress, rec: NodeRecovery, facts: NodeOrderFacts
) -> NodeOrderProgress:
    row = facts.row
    if row is None or row.status == "Failure":
        text = row.message if row is not None else "the instance is gone"
        return replace(one, phase=NodeOrderPhase.FAILED, text=text)
    if not facts.tracked:
        # EC2 says Running all the while: without Slurm the end of a reboot is not seen.
        text = "ordered; the API does not tell when a reboot ends"
        return replace(one, phase=NodeOrderPhase.LEFT, text=text)
    return _describe_node_joining_progress(one, rec, facts)


def _describe_deletion_progress(
    one: NodeOrderProgress,
    rec: NodeRecovery,  # noqa: ARG001
    facts: NodeOrderFacts,
) -> NodeOrderProgress:
    text = facts.trouble or (facts.row.status if facts.row else "")
    return replace(one, phase=NodeOrderPhase.ORDERED, text=text)


def _describe_node_joining_progress(
    one: NodeOrderProgress, rec: NodeRecovery, facts: NodeOrderFacts
) -> NodeOrderProgress:
    given = find_last_step_attempt(rec.steps, StepKind.RETURN)
    refused = given is not None and given.outcome is not None and not given.accepted
    text = given.outcome.detail if refused and given and given.outcome else ""
    text = facts.trouble or text or "its slurmd has not registered yet"
    return replace(one, phase=NodeOrderPhase.JOINING, text=text)


_FOLLOW = {
    NodeAction.REPLACE: _describe_replacement_progress,
    NodeAction.REBOOT: _describe_reboot_progress,
    NodeAction.DELETE: _describe_deletion_progress,
}


def _describe_finished_order(
    one: NodeOrderProgress, rec: NodeRecovery, facts: NodeOrderFacts
) -> NodeOrderProgress:
    last, order = rec.trail[-1], find_last_instance_order(rec)
    outcome = order.outcome if order is not None and order.outcome else Outcome.accepted()
    refused = outcome.kind is OutcomeKind.REJECTED
    if rec.phase is NodeRecoveryPhase.REMOVED:
        return replace(one, phase=NodeOrderPhase.DONE, text="deleted")
    if rec.phase is NodeRecoveryPhase.RETURNED:
        return replace(one, phase=NodeOrderPhase.DONE, text=_describe_node_return_to_service(facts))
    if rec.phase is NodeRecoveryPhase.ESCALATED:
        asked = len(rec.trail) > 1 and rec.trail[-2].phase not in BEFORE_ORDER
        if asked or order is None:
            return replace(one, phase=NodeOrderPhase.FAILED, text=last.why)
        if has_unresolved_instance_order(rec):
            text = f"it is unknown whether the service accepted the order: {outcome.detail}"
            return replace(one, phase=NodeOrderPhase.IN_DOUBT, text=text, code=outcome.code)
        if refused:
            return replace(
                one, phase=NodeOrderPhase.REFUSED, text=outcome.detail, code=outcome.code
            )
        return replace(one, phase=NodeOrderPhase.FAILED, text=last.why)
    if last.signal == NodeRecoverySignal.WITHDRAWN:
        if refused:
            return replace(
                one, phase=NodeOrderPhase.REFUSED, text=outcome.detail, code=outcome.code
            )
        return replace(one, phase=NodeOrderPhase.LET_GO, text=last.why)
    return _describe_operator_takeover(one, rec)


def _describe_operator_takeover(one: NodeOrderProgress, rec: NodeRecovery) -> NodeOrderProgress:
    """Return an operator resumed the node, or gave it another Reason: it is theirs."""
    why = rec.trail[-1].why
    before = rec.trail[-2].phase if len(rec.trail) > 1 else NodeRecoveryPhase.OPEN
    if before in BEFORE_ORDER and not _has_sent_order(rec):
        return replace(
            one, phase=NodeOrderPhase.REFUSED, text=f"not ordered: {why}", code="given_back"
        )
    if before == NodeRecoveryPhase.VERIFYING:
        return replace(one, phase=NodeOrderPhase.DONE, text=f"back; {why}")
    if before in BEFORE_ORDER:
        text = f"{why} before it was known whether the service accepted the order"
        return replace(one, phase=NodeOrderPhase.IN_DOUBT, text=text)
    return replace(one, phase=NodeOrderPhase.LEFT, text=why)


def _describe_node_return_to_service(facts: NodeOrderFacts) -> str:
    if facts.closed_by:
        return f"back; it stays closed by another: {facts.closed_by}"
    return "back in service" if facts.tracked else "the new instance is Running"
