"""A durable change of the capacity at hand: a group grows, a node leaves, spares are set apart.

Built like a recovery: every phase change is in TRANSITIONS, an unknown pair raises, every phase
has a deadline, and a change that has ended never acts again. Nothing here opens one:
`plan_capacity` does. `advance` is one pure function, with one small one for each phase. Looking
comes before doing, as in a recovery: is the effect there to be seen, and only then the step. An
instance is removed by its id, which names no other machine ever after; an addition bears the
change's id as its client token. So a repeat adds or removes nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hpctl.core.bounds import later
from hpctl.core.compat import StrEnum
from hpctl.core.model import (
    Instance,
    InstanceGroup,
    InstanceId,
    InstanceStatus,
    NodeName,
    Outcome,
    OutcomeKind,
    RecoveryId,
    SlurmNode,
    reason_owner,
)
from hpctl.core.policy import Policy
from hpctl.core.recovery import (
    IllegalSignal,
    Look,
    Move,
    Next,
    Repeat,
    StepKind,
    StepRecord,
    Trail,
    Wait,
    answer_text,
    attempt_step,
    in_time,
    last_step,
    taken_over,
)


class Kind(StrEnum):
    """What changes."""

    ADD = "add"
    """A group gets more instances."""
    REMOVE = "remove"
    """One idle node's instance leaves its group."""
    RETURN = "return"
    """A node name that was closed for a removal stands for another instance by now."""
    SPARES = "spares"
    """A reservation holds other nodes than before."""


class Phase(StrEnum):
    """Where a change stands. The last three are ends."""

    OPEN = "open"
    ARRIVING = "arriving"
    CLOSED = "closed"
    LEAVING = "leaving"
    GIVING_BACK = "giving_back"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDS: Final = frozenset({Phase.DONE, Phase.FAILED, Phase.CANCELLED})


class Signal(StrEnum):
    """An observed fact that moves a change."""

    ORDER_TAKEN = "order_taken"
    ARRIVED = "arrived"
    CLOSED_SEEN = "closed_seen"
    GONE = "gone"
    SET_SEEN = "set_seen"
    IN_USE = "in_use"
    BACK = "back"
    REFUSED = "refused"
    DEADLINE = "deadline"
    OPERATOR_TOOK_OVER = "operator_took_over"


TRANSITIONS: Final[Mapping[tuple[Kind, Phase, Signal], Phase]] = {
    (Kind.ADD, Phase.OPEN, Signal.ORDER_TAKEN): Phase.ARRIVING,
    (Kind.ADD, Phase.OPEN, Signal.REFUSED): Phase.FAILED,
    (Kind.ADD, Phase.OPEN, Signal.DEADLINE): Phase.FAILED,
    (Kind.ADD, Phase.ARRIVING, Signal.ARRIVED): Phase.DONE,
    (Kind.ADD, Phase.ARRIVING, Signal.REFUSED): Phase.FAILED,
    (Kind.ADD, Phase.ARRIVING, Signal.DEADLINE): Phase.FAILED,
    (Kind.REMOVE, Phase.OPEN, Signal.IN_USE): Phase.CANCELLED,
    (Kind.REMOVE, Phase.OPEN, Signal.CLOSED_SEEN): Phase.CLOSED,
    (Kind.REMOVE, Phase.OPEN, Signal.REFUSED): Phase.FAILED,
    (Kind.REMOVE, Phase.OPEN, Signal.DEADLINE): Phase.GIVING_BACK,
    (Kind.REMOVE, Phase.CLOSED, Signal.IN_USE): Phase.GIVING_BACK,
    (Kind.REMOVE, Phase.CLOSED, Signal.ORDER_TAKEN): Phase.LEAVING,
    (Kind.REMOVE, Phase.CLOSED, Signal.GONE): Phase.DONE,
    (Kind.REMOVE, Phase.CLOSED, Signal.REFUSED): Phase.GIVING_BACK,
    (Kind.REMOVE, Phase.CLOSED, Signal.DEADLINE): Phase.FAILED,
    (Kind.REMOVE, Phase.LEAVING, Signal.GONE): Phase.DONE,
    (Kind.REMOVE, Phase.LEAVING, Signal.DEADLINE): Phase.FAILED,
    (Kind.REMOVE, Phase.GIVING_BACK, Signal.BACK): Phase.CANCELLED,
    (Kind.REMOVE, Phase.GIVING_BACK, Signal.GONE): Phase.DONE,
    (Kind.REMOVE, Phase.GIVING_BACK, Signal.REFUSED): Phase.FAILED,
    (Kind.REMOVE, Phase.GIVING_BACK, Signal.DEADLINE): Phase.FAILED,
    # Whoever takes a node over that we have closed keeps it; the instance is not ours any more.
    **{
        (Kind.REMOVE, phase, Signal.OPERATOR_TOOK_OVER): Phase.CANCELLED
        for phase in (Phase.OPEN, Phase.CLOSED, Phase.GIVING_BACK)
    },
    (Kind.RETURN, Phase.OPEN, Signal.BACK): Phase.DONE,
    (Kind.RETURN, Phase.OPEN, Signal.REFUSED): Phase.FAILED,
    (Kind.RETURN, Phase.OPEN, Signal.DEADLINE): Phase.FAILED,
    (Kind.SPARES, Phase.OPEN, Signal.SET_SEEN): Phase.DONE,
    (Kind.SPARES, Phase.OPEN, Signal.REFUSED): Phase.FAILED,
    (Kind.SPARES, Phase.OPEN, Signal.DEADLINE): Phase.FAILED,
}


class ChangeOpened(Struct, frozen=True):
    """`plan_capacity` decided on a change.

    ADD: `count` instances more in `group`, which has `size` then. REMOVE: `node` and its
    `instance` leave. RETURN: `node` is closed with the Reason of the removal `cause`. SPARES:
    the group's reservation holds `nodes` from now on; `released` is how many of them were given
    up for the job recovery `cause`.
    """

    at: datetime
    recovery: RecoveryId
    kind: Kind
    group: str
    why: str
    count: int = 0
    size: int = 0
    node: NodeName | None = None
    instance: InstanceId | None = None
    nodes: tuple[NodeName, ...] = ()
    released: tuple[NodeName, ...] = ()
    cause: RecoveryId | None = None


class Change(Struct, frozen=True):
    """One change as the journal tells it."""

    opened: ChangeOpened
    phase: Phase
    since: datetime
    steps: tuple[StepRecord, ...] = ()
    trail: tuple[Trail, ...] = ()

    @property
    def id(self) -> RecoveryId:
        """Its id, which is the client token of its order too."""
        return self.opened.recovery

    @property
    def ended(self) -> bool:
        """Closed for ever."""
        return self.phase in ENDS

    @property
    def key(self) -> str:
        """What at most one open change may be about."""
        about = self.opened
        return f"{about.kind} {about.node or about.group}"

    def on(self, signal: Signal, at: datetime, why: str) -> Change:
        """The change after a signal. Raises IllegalSignal for what is not in the table."""
        phase = TRANSITIONS.get((self.opened.kind, self.phase, signal))
        if phase is None:
            raise IllegalSignal(f"{self.id}: {signal} in phase {self.phase}")
        trail = (*self.trail, Trail(at, signal, phase, why))
        return replace(self, phase=phase, since=at, trail=trail)


def ordered(change: Change) -> bool:
    """Whether its instances may be coming or going: an order was taken, or nobody can say.

    A later refusal takes no doubt away: `NodeIdInUse` is what a deletion under way looks like.
    """
    kind = StepKind.ADD if change.opened.kind is Kind.ADD else StepKind.REMOVE
    return any(
        s.in_doubt or (s.outcome is not None and s.outcome.kind is OutcomeKind.ACCEPTED)
        for s in change.steps
        if s.kind is kind
    )


def open_change(event: ChangeOpened) -> Change:
    """A change at its beginning."""
    return Change(event, Phase.OPEN, event.at)


RESERVE_DEADLINE_S: Final = 60.0


class ChangeFacts(Struct, frozen=True):
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
