"""What moves a change of capacity: one pure function, one small one for each phase.

Looking comes before doing, as in a recovery: is the effect there to be seen, and only then the
step. An instance is removed by its id, which names no other machine ever after; an addition bears
the change's id as its client token. So a repeat adds or removes nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from hpctl.core.bounds import later
from hpctl.core.change import Change, Kind, Phase, Signal, ordered
from hpctl.core.model import (
    Instance,
    InstanceGroup,
    InstanceStatus,
    NodeName,
    Outcome,
    OutcomeKind,
    SlurmNode,
    reason_owner,
)
from hpctl.core.policy import Policy
from hpctl.core.recovery import (
    Look,
    Move,
    Next,
    Repeat,
    StepKind,
    Wait,
    answer_text,
    attempt_step,
    in_time,
    last_step,
    taken_over,
)

RESERVE_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """What is known now of what a change is about.

    `cloud_at`: when the provider was read. `cloud_fresh`: that is young enough to act on.
    `instances`: those of the group. `unregistered`: nodes of running ones that Slurm does not
    serve yet. `busy`: why the node is not idle, empty where it is. `unwanted`: why the change is
    wanted no more. `reserved`: what the reservation holds. `able_since`: see `View`.
    """

    cloud_at: datetime
    cloud_fresh: bool = False
    group: InstanceGroup | None = None
    instances: tuple[Instance, ...] = ()
    unregistered: tuple[NodeName, ...] = ()
    node: SlurmNode | None = None
    busy: str = ""
    unwanted: str = ""
    reserved: frozenset[NodeName] = frozenset()
    able_since: datetime | None = None


def advance(change: Change, facts: ChangeFacts, policy: Policy, now: datetime) -> Next:
    """What the facts make of a change: a move, a step, or waiting. Total over open phases."""
    deadline = in_time(deadline_of(change, policy), facts.able_since, policy.ages.silent_s)
    answer = _PHASES[change.opened.kind, change.phase](change, facts, policy, now, deadline)
    if isinstance(answer, Wait):
        if now >= deadline:
            # What was closed for nothing is given back; what may be going is left to a person.
            vain = change.phase is Phase.CLOSED and not ordered(change)
            signal = Signal.REFUSED if vain else Signal.DEADLINE
            return Move(signal, f"{change.phase} for too long: {answer.why}")
        return replace(answer, until=min(answer.until, deadline))
    return answer


def deadline_of(change: Change, policy: Policy) -> datetime:
    """When an open change has been in its phase for too long."""
    return later(change.since, _deadline_s(change, policy))


def _deadline_s(change: Change, policy: Policy) -> float:
    scale, node = policy.autoscale, policy.node
    return {
        Phase.OPEN: RESERVE_DEADLINE_S
        if change.opened.kind is Kind.SPARES
        else node.step_attempts * node.doubt_window_s,
        Phase.ARRIVING: scale.arrive_deadline_s,
        Phase.CLOSED: scale.leave_deadline_s,
        Phase.LEAVING: scale.leave_deadline_s,
        Phase.GIVING_BACK: node.cordon_deadline_s,
    }[change.phase]


def _repeat(policy: Policy) -> Repeat:
    node = policy.node
    return Repeat(node.step_retry_s, node.step_attempts, node.doubt_window_s)


def _taken(change: Change, kind: StepKind) -> bool:
    last = last_step(change.steps, kind)
    outcome = last.outcome if last else None
    return outcome is not None and outcome.kind is OutcomeKind.ACCEPTED


# --- a group grows ------------------------------------------------------------------------------


def _add(
    change: Change, facts: ChangeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    about = change.opened
    if _taken(change, StepKind.ADD):
        return Move(Signal.ORDER_TAKEN, f"the service took the order for {about.count} more")
    if facts.unwanted:
        return Move(Signal.REFUSED, facts.unwanted)
    if not facts.cloud_fresh:
        return Wait(deadline, "the cloud's view is too old to act on", look=Look.SLOWLY)
    answer = attempt_step(change.steps, StepKind.ADD, about.group, _repeat(policy), now, about.why)
    if isinstance(answer, Outcome):
        return Move(Signal.REFUSED, f"cannot add to {about.group}: {answer_text(answer)}")
    if isinstance(answer, Wait):
        return answer
    return replace(answer, count=about.count, size=about.size)


def _arriving(
    change: Change, facts: ChangeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    about, group = change.opened, facts.group
    if facts.cloud_at <= change.since or group is None:
        return Wait(deadline, "the cloud was not read since", look=Look.SLOWLY)
    if group.target < about.size:
        # Not ordered yet; or the service took a part only, or somebody has taken it back. That is
        # not to be ordered again at once.
        why = f"{about.group} is ordered to have {group.target}, not {about.size}"
        settled = later(change.since, policy.node.doubt_window_s)
        return Move(Signal.REFUSED, why) if now >= settled else Wait(settled, why, Look.SLOWLY)
    running = [i for i in facts.instances if i.status is InstanceStatus.RUNNING]
    if len(running) < about.size:
        waits = [i for i in facts.instances if i.status is not InstanceStatus.RUNNING]
        message = next((i.message for i in waits if i.message), "")
        why = f"{len(running)} of {about.size} instances of {about.group} run. {message}"
        return Wait(deadline, why.strip(), look=Look.SLOWLY)
    if facts.unregistered:
        names = ",".join(facts.unregistered)
        return Wait(deadline, f"{names} not in Slurm yet", look=Look.SLOWLY)
    return Move(Signal.ARRIVED, f"{len(running)} instances of {about.group} run")


# --- a node leaves ------------------------------------------------------------------------------


def _remove(
    change: Change, facts: ChangeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    node, about = facts.node, change.opened
    if node is not None and node.drained and reason_owner(node.reason) == change.id:
        return Move(Signal.CLOSED_SEEN, "slurmctld shows DRAIN with our Reason")
    if node is not None and node.drained:
        return Move(Signal.OPERATOR_TOOK_OVER, f"drained by somebody else: {node.reason!r}")
    if _taken(change, StepKind.DRAIN):
        return Move(Signal.OPERATOR_TOOK_OVER, "somebody resumed the node at once")
    if facts.busy or facts.unwanted:
        return Move(Signal.IN_USE, facts.busy or facts.unwanted)
    target = str(about.node)
    answer = attempt_step(change.steps, StepKind.DRAIN, target, _repeat(policy), now, "scale down")
    if not isinstance(answer, Outcome):
        return answer
    return Move(Signal.REFUSED, f"slurmctld will not drain the node: {answer_text(answer)}")


def _closed(
    change: Change, facts: ChangeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    gone = _gone(change, facts)
    if gone is not None:
        return gone
    if _taken(change, StepKind.REMOVE):
        return Move(Signal.ORDER_TAKEN, f"the service accepted to delete {change.opened.instance}")
    # Once an order may be under way, nobody gives the node work any more.
    if not ordered(change):
        taken_over = _taken_over(change, facts)
        if taken_over is not None:
            return taken_over
        if facts.busy or facts.unwanted:
            return Move(Signal.IN_USE, facts.busy or facts.unwanted)
    if not facts.cloud_fresh:
        return Wait(deadline, "the cloud's view is too old to act on", look=Look.SLOWLY)
    target = str(change.opened.instance)
    if facts.unwanted:
        return Wait(deadline, f"in doubt, and not asked again: {facts.unwanted}", look=Look.SLOWLY)
    answer = attempt_step(
        change.steps, StepKind.REMOVE, target, _repeat(policy), now, change.opened.why
    )
    if not isinstance(answer, Outcome):
        return answer
    if answer.code == "NodeIdNotFound":
        return Wait(deadline, f"{target} is gone; the list still has it", look=Look.SLOWLY)
    if ordered(change):
        return Wait(deadline, f"nobody can say whether {target} goes", look=Look.SLOWLY)
    return Move(Signal.REFUSED, f"cannot delete {target}: {answer_text(answer)}")


def _leaving(
    change: Change, facts: ChangeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    gone = _gone(change, facts)
    return gone or Wait(deadline, f"{change.opened.instance} still listed", look=Look.SLOWLY)


def _giving_back(
    change: Change, facts: ChangeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    node = facts.node
    gone = _gone(change, facts)
    if gone is not None:
        return gone
    if node is None or not node.drained:
        return Move(Signal.BACK, "slurmctld shows the node in service")
    taken_over = _taken_over(change, facts)
    if taken_over is not None:
        return taken_over
    target = str(change.opened.node)
    answer = attempt_step(change.steps, StepKind.RETURN, target, _repeat(policy), now)
    if not isinstance(answer, Outcome):
        return answer
    return Move(Signal.REFUSED, f"slurmctld will not resume the node: {answer_text(answer)}")


def _gone(change: Change, facts: ChangeFacts) -> Move | None:
    """The instance is not listed by a view that is newer than the change, or on its way out."""
    if facts.cloud_at <= change.since:
        return None
    listed = next((i for i in facts.instances if i.id == change.opened.instance), None)
    if listed is None:
        return Move(Signal.GONE, f"{change.opened.instance} is not listed any more")
    if listed.status is InstanceStatus.SHUTTING_DOWN:
        return Move(Signal.GONE, f"{change.opened.instance} is shutting down")
    return None


def _taken_over(change: Change, facts: ChangeFacts) -> Move | None:
    how = taken_over(facts.node, change.id)
    return Move(Signal.OPERATOR_TOOK_OVER, how) if how else None


def _return(
    change: Change, facts: ChangeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    node, cause = facts.node, change.opened.cause
    if node is None or not node.drained or reason_owner(node.reason) != cause:
        return Move(Signal.BACK, "its Reason is not the removal's any more")
    target = str(change.opened.node)
    answer = attempt_step(change.steps, StepKind.RETURN, target, _repeat(policy), now)
    if isinstance(answer, Outcome):
        return Move(Signal.REFUSED, f"slurmctld will not resume the node: {answer_text(answer)}")
    return answer if isinstance(answer, Wait) else replace(answer, owner=cause)


# --- spares -------------------------------------------------------------------------------------


def _spares(
    change: Change, facts: ChangeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    about = change.opened
    if facts.reserved == frozenset(about.nodes):
        return Move(Signal.SET_SEEN, f"the reservation holds {','.join(about.nodes) or 'nothing'}")
    if facts.busy:
        # slurmctld would refuse it whole, and a victim must not wait while it is asked again.
        return Move(Signal.REFUSED, facts.busy)
    repeat = Repeat(policy.job.step_retry_s, policy.node.step_attempts, policy.job.step_retry_s)
    answer = attempt_step(change.steps, StepKind.RESERVE, about.group, repeat, now, about.why)
    if isinstance(answer, Outcome):
        return Move(Signal.REFUSED, f"slurmctld will not reserve: {answer_text(answer)}")
    if isinstance(answer, Wait):
        return answer
    return replace(answer, nodes=about.nodes)


_Phase = Callable[[Change, ChangeFacts, Policy, datetime, datetime], Next]

_PHASES: Final[Mapping[tuple[Kind, Phase], _Phase]] = {
    (Kind.ADD, Phase.OPEN): _add,
    (Kind.ADD, Phase.ARRIVING): _arriving,
    (Kind.REMOVE, Phase.OPEN): _remove,
    (Kind.REMOVE, Phase.CLOSED): _closed,
    (Kind.REMOVE, Phase.LEAVING): _leaving,
    (Kind.REMOVE, Phase.GIVING_BACK): _giving_back,
    (Kind.RETURN, Phase.OPEN): _return,
    (Kind.SPARES, Phase.OPEN): _spares,
}
