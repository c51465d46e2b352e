"""A node leaves its group, or is given back."""

from __future__ import annotations

from hpctl.capacity.change_facts import NOT_RESUMED, ChangeCase, was_taken
from hpctl.vocabulary.change import ChangeSignal, ordered
from hpctl.vocabulary.cloud_facts import InstanceStatus
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.reason import reason_owner
from hpctl.vocabulary.recovery import Look, Move, Next, StepKind, answer_text, taken_over


def close_node(c: ChangeCase) -> Next:
    """Return the step that drains the node, or the move once Slurm shows it."""
    node, about = c.facts.node, c.rec.opened
    if node is not None and node.drained and reason_owner(node.reason) == c.rec.id:
        return Move(ChangeSignal.CLOSED_SEEN, "slurmctld shows DRAIN with our Reason")
    if node is not None and node.drained:
        return Move(ChangeSignal.OPERATOR_TOOK_OVER, f"drained by somebody else: {node.reason!r}")
    if was_taken(c, StepKind.DRAIN):
        return Move(ChangeSignal.OPERATOR_TOOK_OVER, "somebody resumed the node at once")
    if c.facts.busy or c.facts.unwanted:
        return Move(ChangeSignal.IN_USE, c.facts.busy or c.facts.unwanted)
    cannot = "slurmctld will not drain the node"
    return c.take(StepKind.DRAIN, str(about.node), ChangeSignal.REFUSED, cannot, "scale down")


def await_vacancy(c: ChangeCase) -> Next:
    """Wait until the node is empty, then ask the service to delete its instance."""
    if gone := _gone(c):
        return gone
    if was_taken(c, StepKind.REMOVE):
        return Move(
            ChangeSignal.ORDER_TAKEN, f"the service accepted to delete {c.rec.opened.instance}"
        )
    # Once an order may be under way, the node gets no work any more.
    if not ordered(c.rec) and (kept := _kept(c)):
        return kept
    if not c.facts.cloud_fresh:
        return c.wait("the cloud's view is too old to act on", Look.SLOWLY)
    target = str(c.rec.opened.instance)
    if c.facts.unwanted:
        return c.wait(f"in doubt, and not asked again: {c.facts.unwanted}", Look.SLOWLY)
    answer = c.attempt(StepKind.REMOVE, target, c.rec.opened.why)
    if not isinstance(answer, Outcome):
        return answer
    if answer.code == "NodeIdNotFound":
        return c.wait(f"{target} is gone; the list still has it", Look.SLOWLY)
    if ordered(c.rec):
        return c.wait(f"nobody can say whether {target} goes", Look.SLOWLY)
    return Move(ChangeSignal.REFUSED, f"cannot delete {target}: {answer_text(answer)}")


def _kept(c: ChangeCase) -> Move | None:
    """Why the node stays, before its deletion was ordered."""
    if how := taken_over(c.facts.node, c.rec.id):
        return Move(ChangeSignal.OPERATOR_TOOK_OVER, how)
    if c.facts.busy or c.facts.unwanted:
        return Move(ChangeSignal.IN_USE, c.facts.busy or c.facts.unwanted)
    return None


def await_departure(c: ChangeCase) -> Next:
    """Wait until the service no longer lists the instance."""
    return _gone(c) or c.wait(f"{c.rec.opened.instance} still listed", Look.SLOWLY)


def give_back_node(c: ChangeCase) -> Next:
    """Return the step that resumes a node that stays."""
    node = c.facts.node
    if gone := _gone(c):
        return gone
    if node is None or not node.drained:
        return Move(ChangeSignal.BACK, "slurmctld shows the node in service")
    if how := taken_over(node, c.rec.id):
        return Move(ChangeSignal.OPERATOR_TOOK_OVER, how)
    return c.take(StepKind.RETURN, str(c.rec.opened.node), ChangeSignal.REFUSED, NOT_RESUMED)


def _gone(c: ChangeCase) -> Move | None:
    """The instance is not listed by a view that is newer than the change, or on its way out."""
    if c.facts.cloud_at <= c.rec.since:
        return None
    mine = c.rec.opened.instance
    listed = next((i for i in c.facts.instances if i.id == mine), None)
    if listed is None:
        return Move(ChangeSignal.GONE, f"{mine} is not listed any more")
    if listed.status is InstanceStatus.SHUTTING_DOWN:
        return Move(ChangeSignal.GONE, f"{mine} is shutting down")
    return None


def return_node(c: ChangeCase) -> Next:
    """Return the step that resumes a node whose Reason a removal left behind."""
    node, cause = c.facts.node, c.rec.opened.cause
    if node is None or not node.drained or reason_owner(node.reason) != cause:
        return Move(ChangeSignal.BACK, "its Reason is not the removal's any more")
    target = str(c.rec.opened.node)
    return c.take(StepKind.RETURN, target, ChangeSignal.REFUSED, NOT_RESUMED, owner=cause)
