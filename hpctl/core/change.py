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

from hpctl.core.bounds import later, natural
from hpctl.core.compat import StrEnum
from hpctl.core.model import (
    ENDED,
    TEST,
    TEST_SUMMARY,
    Finding,
    Instance,
    InstanceGroup,
    InstanceId,
    InstanceStatus,
    JobId,
    NodeName,
    Outcome,
    RecoveryId,
    SlurmJob,
    SlurmNode,
    Verdict,
    reason_owner,
)
from hpctl.core.policy import Policy
from hpctl.core.recovery import (
    Case,
    Do,
    Look,
    Move,
    Next,
    Repeat,
    StepKind,
    StepRecord,
    Trail,
    Wait,
    answer_text,
    in_time,
    next_phase,
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
    BURN_IN = "burn_in"
    """An idle node is tested until a user wants it."""


class ChangePhase(StrEnum):
    """Where a change stands. The last three are ends."""

    OPEN = "open"
    ARRIVING = "arriving"
    TESTING = "testing"
    CLOSED = "closed"
    LEAVING = "leaving"
    GIVING_BACK = "giving_back"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDS: Final = frozenset({ChangePhase.DONE, ChangePhase.FAILED, ChangePhase.CANCELLED})


class ChangeSignal(StrEnum):
    """An observed fact that moves a change."""

    ORDER_TAKEN = "order_taken"
    ARRIVED = "arrived"
    CLOSED_SEEN = "closed_seen"
    GONE = "gone"
    SET_SEEN = "set_seen"
    IN_USE = "in_use"
    TESTED = "tested"
    BACK = "back"
    REFUSED = "refused"
    DEADLINE = "deadline"
    OPERATOR_TOOK_OVER = "operator_took_over"


TRANSITIONS: Final[Mapping[tuple[Kind, ChangePhase, ChangeSignal], ChangePhase]] = {
    (Kind.ADD, ChangePhase.OPEN, ChangeSignal.ORDER_TAKEN): ChangePhase.ARRIVING,
    (Kind.ADD, ChangePhase.OPEN, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (Kind.ADD, ChangePhase.OPEN, ChangeSignal.DEADLINE): ChangePhase.FAILED,
    (Kind.ADD, ChangePhase.ARRIVING, ChangeSignal.ARRIVED): ChangePhase.DONE,
    (Kind.ADD, ChangePhase.ARRIVING, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (Kind.ADD, ChangePhase.ARRIVING, ChangeSignal.DEADLINE): ChangePhase.FAILED,
    (Kind.REMOVE, ChangePhase.OPEN, ChangeSignal.IN_USE): ChangePhase.CANCELLED,
    (Kind.REMOVE, ChangePhase.OPEN, ChangeSignal.CLOSED_SEEN): ChangePhase.CLOSED,
    (Kind.REMOVE, ChangePhase.OPEN, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (Kind.REMOVE, ChangePhase.OPEN, ChangeSignal.DEADLINE): ChangePhase.GIVING_BACK,
    (Kind.REMOVE, ChangePhase.CLOSED, ChangeSignal.IN_USE): ChangePhase.GIVING_BACK,
    (Kind.REMOVE, ChangePhase.CLOSED, ChangeSignal.ORDER_TAKEN): ChangePhase.LEAVING,
    (Kind.REMOVE, ChangePhase.CLOSED, ChangeSignal.GONE): ChangePhase.DONE,
    (Kind.REMOVE, ChangePhase.CLOSED, ChangeSignal.REFUSED): ChangePhase.GIVING_BACK,
    (Kind.REMOVE, ChangePhase.CLOSED, ChangeSignal.DEADLINE): ChangePhase.FAILED,
    (Kind.REMOVE, ChangePhase.LEAVING, ChangeSignal.GONE): ChangePhase.DONE,
    (Kind.REMOVE, ChangePhase.LEAVING, ChangeSignal.DEADLINE): ChangePhase.FAILED,
    (Kind.REMOVE, ChangePhase.GIVING_BACK, ChangeSignal.BACK): ChangePhase.CANCELLED,
    (Kind.REMOVE, ChangePhase.GIVING_BACK, ChangeSignal.GONE): ChangePhase.DONE,
    (Kind.REMOVE, ChangePhase.GIVING_BACK, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (Kind.REMOVE, ChangePhase.GIVING_BACK, ChangeSignal.DEADLINE): ChangePhase.FAILED,
    # Whoever takes a node over that we have closed keeps it; the instance is not ours any more.
    **{
        (Kind.REMOVE, phase, ChangeSignal.OPERATOR_TOOK_OVER): ChangePhase.CANCELLED
        for phase in (ChangePhase.OPEN, ChangePhase.CLOSED, ChangePhase.GIVING_BACK)
    },
    (Kind.RETURN, ChangePhase.OPEN, ChangeSignal.BACK): ChangePhase.DONE,
    (Kind.RETURN, ChangePhase.OPEN, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (Kind.RETURN, ChangePhase.OPEN, ChangeSignal.DEADLINE): ChangePhase.FAILED,
    (Kind.BURN_IN, ChangePhase.OPEN, ChangeSignal.ORDER_TAKEN): ChangePhase.TESTING,
    (Kind.BURN_IN, ChangePhase.OPEN, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (Kind.BURN_IN, ChangePhase.OPEN, ChangeSignal.IN_USE): ChangePhase.LEAVING,
    (Kind.BURN_IN, ChangePhase.OPEN, ChangeSignal.DEADLINE): ChangePhase.LEAVING,
    (Kind.BURN_IN, ChangePhase.TESTING, ChangeSignal.TESTED): ChangePhase.DONE,
    (Kind.BURN_IN, ChangePhase.TESTING, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (Kind.BURN_IN, ChangePhase.TESTING, ChangeSignal.IN_USE): ChangePhase.LEAVING,
    (Kind.BURN_IN, ChangePhase.TESTING, ChangeSignal.DEADLINE): ChangePhase.LEAVING,
    (Kind.BURN_IN, ChangePhase.LEAVING, ChangeSignal.GONE): ChangePhase.CANCELLED,
    (Kind.BURN_IN, ChangePhase.LEAVING, ChangeSignal.DEADLINE): ChangePhase.FAILED,
    (Kind.SPARES, ChangePhase.OPEN, ChangeSignal.SET_SEEN): ChangePhase.DONE,
    (Kind.SPARES, ChangePhase.OPEN, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (Kind.SPARES, ChangePhase.OPEN, ChangeSignal.DEADLINE): ChangePhase.FAILED,
}


class ChangeOpened(Struct, frozen=True):
    """`plan_capacity` decided on a change.

    ADD: `count` instances more in `group`, which has `size` then. REMOVE: `node` and its
    `instance` leave. RETURN: `node` is closed with the Reason of the removal `cause`. SPARES:
    the group's reservation holds `nodes` from now on; `released` is how many of them were given
    up for the job recovery `cause`. BURN_IN: the idle `node` is tested in partition `group`.
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
    phase: ChangePhase
    since: datetime
    steps: tuple[StepRecord, ...] = ()
    trail: tuple[Trail, ...] = ()
    tests: tuple[Finding, ...] = ()
    """What failed in its burn-in."""

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

    def on(self, seen: str, at: datetime, why: str, _: object = None) -> Change:
        """The change after a signal. Raises IllegalSignal for what is not in the table."""
        signal = ChangeSignal(seen)
        phase = next_phase(TRANSITIONS, self.id, self.opened.kind, self.phase, signal)
        trail = (*self.trail, Trail(at, signal, phase, why))
        return replace(self, phase=phase, since=at, trail=trail)


def ordered(change: Change) -> bool:
    """Whether its instances may be coming or going: an order was taken, or nobody can say.

    A later refusal takes no doubt away: `NodeIdInUse` is what a deletion under way looks like.
    """
    kind = StepKind.ADD if change.opened.kind is Kind.ADD else StepKind.REMOVE
    return any(s.in_doubt or s.accepted for s in change.steps if s.kind is kind)


def open_change(event: ChangeOpened) -> Change:
    """A change at its beginning."""
    return Change(event, ChangePhase.OPEN, event.at)


RESERVE_DEADLINE_S: Final = 60.0


class ChangeFacts(Struct, frozen=True):
    """What is known now of what a change is about.

    `cloud_at`: when the provider was read. `cloud_fresh`: that is young enough to act on.
    `instances`: those of the group. `unregistered`: nodes of running ones that Slurm does not
    serve yet. `busy`: why the node is not idle, empty where it is. `unwanted`: why the change is
    wanted no more. `reserved`: what the reservation holds. `job`: that of its
    test, and `results` what the node's agent tells of it, once it tells all. `able_since`: see
    `View`.
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
    job: SlurmJob | None = None
    results: tuple[Finding, ...] = ()
    able_since: datetime | None = None


_Case = Case[Change, ChangeFacts]


def advance(change: Change, facts: ChangeFacts, policy: Policy, now: datetime) -> Next:
    """What the facts make of a change: a move, a step, or waiting. Total over open phases."""
    node = policy.node
    deadline = in_time(deadline_of(change, policy), facts.able_since, policy.ages.silent_s)
    repeat = Repeat(node.step_retry_s, node.step_attempts, node.doubt_window_s)
    c = Case(change, facts, policy, now, deadline, repeat)
    # What was closed for nothing is given back; what may be going is left to a person.
    vain = change.phase is ChangePhase.CLOSED and not ordered(change)
    answer = _PHASES[change.opened.kind, change.phase](c)
    return c.timed(answer, ChangeSignal.REFUSED if vain else ChangeSignal.DEADLINE)


def deadline_of(change: Change, policy: Policy) -> datetime:
    """When an open change has been in its phase for too long."""
    return later(change.since, _deadline_s(change, policy))


def _deadline_s(change: Change, policy: Policy) -> float:
    scale, node = policy.autoscale, policy.node
    if change.opened.kind is Kind.BURN_IN and change.phase is not ChangePhase.OPEN:
        test = policy.acceptance
        return test.limit_s(policy.idle.level) + test.result_s + node.doubt_window_s
    return {
        ChangePhase.OPEN: RESERVE_DEADLINE_S
        if change.opened.kind is Kind.SPARES
        else node.step_attempts * node.doubt_window_s,
        ChangePhase.TESTING: policy.acceptance.limit_s(policy.idle.level),
        ChangePhase.ARRIVING: scale.arrive_deadline_s,
        ChangePhase.CLOSED: scale.leave_deadline_s,
        ChangePhase.LEAVING: scale.leave_deadline_s,
        ChangePhase.GIVING_BACK: node.cordon_deadline_s,
    }[change.phase]


def _taken(c: _Case, kind: StepKind) -> bool:
    last = c.last(kind)
    return last is not None and last.accepted


_NOT_RESUMED: Final = "slurmctld will not resume the node"

# --- a group grows ------------------------------------------------------------------------------


def _add(c: _Case) -> Next:
    about = c.rec.opened
    if _taken(c, StepKind.ADD):
        return Move(ChangeSignal.ORDER_TAKEN, f"the service took the order for {about.count} more")
    if c.facts.unwanted:
        return Move(ChangeSignal.REFUSED, c.facts.unwanted)
    if not c.facts.cloud_fresh:
        return c.wait("the cloud's view is too old to act on", Look.SLOWLY)
    cannot, size = f"cannot add to {about.group}", {"count": about.count, "size": about.size}
    return c.take(StepKind.ADD, about.group, ChangeSignal.REFUSED, cannot, about.why, **size)


def _arriving(c: _Case) -> Next:
    about, group = c.rec.opened, c.facts.group
    if c.facts.cloud_at <= c.rec.since or group is None:
        return c.wait("the cloud was not read since", Look.SLOWLY)
    if group.target < about.size:
        # Not ordered yet; or the service took a part only, or somebody has taken it back. That is
        # not to be ordered again at once.
        why = f"{about.group} is ordered to have {group.target}, not {about.size}"
        settled = later(c.rec.since, c.policy.node.doubt_window_s)
        return (
            Move(ChangeSignal.REFUSED, why) if c.now >= settled else Wait(settled, why, Look.SLOWLY)
        )
    running = [i for i in c.facts.instances if i.status is InstanceStatus.RUNNING]
    if len(running) < about.size:
        waits = [i for i in c.facts.instances if i.status is not InstanceStatus.RUNNING]
        message = next((i.message for i in waits if i.message), "")
        why = f"{len(running)} of {about.size} instances of {about.group} run. {message}"
        return c.wait(why.strip(), Look.SLOWLY)
    if c.facts.unregistered:
        names = ",".join(c.facts.unregistered)
        return c.wait(f"{names} not in Slurm yet", Look.SLOWLY)
    return Move(ChangeSignal.ARRIVED, f"{len(running)} instances of {about.group} run")


# --- a node leaves ------------------------------------------------------------------------------


def _remove(c: _Case) -> Next:
    node, about = c.facts.node, c.rec.opened
    if node is not None and node.drained and reason_owner(node.reason) == c.rec.id:
        return Move(ChangeSignal.CLOSED_SEEN, "slurmctld shows DRAIN with our Reason")
    if node is not None and node.drained:
        return Move(ChangeSignal.OPERATOR_TOOK_OVER, f"drained by somebody else: {node.reason!r}")
    if _taken(c, StepKind.DRAIN):
        return Move(ChangeSignal.OPERATOR_TOOK_OVER, "somebody resumed the node at once")
    if c.facts.busy or c.facts.unwanted:
        return Move(ChangeSignal.IN_USE, c.facts.busy or c.facts.unwanted)
    cannot = "slurmctld will not drain the node"
    return c.take(StepKind.DRAIN, str(about.node), ChangeSignal.REFUSED, cannot, "scale down")


def _closed(c: _Case) -> Next:
    if gone := _gone(c):
        return gone
    if _taken(c, StepKind.REMOVE):
        return Move(
            ChangeSignal.ORDER_TAKEN, f"the service accepted to delete {c.rec.opened.instance}"
        )
    # Once an order may be under way, nobody gives the node work any more.
    if not ordered(c.rec):
        if how := taken_over(c.facts.node, c.rec.id):
            return Move(ChangeSignal.OPERATOR_TOOK_OVER, how)
        if c.facts.busy or c.facts.unwanted:
            return Move(ChangeSignal.IN_USE, c.facts.busy or c.facts.unwanted)
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


def _leaving(c: _Case) -> Next:
    return _gone(c) or c.wait(f"{c.rec.opened.instance} still listed", Look.SLOWLY)


def _giving_back(c: _Case) -> Next:
    node = c.facts.node
    if gone := _gone(c):
        return gone
    if node is None or not node.drained:
        return Move(ChangeSignal.BACK, "slurmctld shows the node in service")
    if how := taken_over(node, c.rec.id):
        return Move(ChangeSignal.OPERATOR_TOOK_OVER, how)
    return c.take(StepKind.RETURN, str(c.rec.opened.node), ChangeSignal.REFUSED, _NOT_RESUMED)


def _gone(c: _Case) -> Move | None:
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


def _return(c: _Case) -> Next:
    node, cause = c.facts.node, c.rec.opened.cause
    if node is None or not node.drained or reason_owner(node.reason) != cause:
        return Move(ChangeSignal.BACK, "its Reason is not the removal's any more")
    target = str(c.rec.opened.node)
    return c.take(StepKind.RETURN, target, ChangeSignal.REFUSED, _NOT_RESUMED, owner=cause)


# --- spares -------------------------------------------------------------------------------------


def _spares(c: _Case) -> Next:
    about = c.rec.opened
    if c.facts.reserved == frozenset(about.nodes):
        return Move(
            ChangeSignal.SET_SEEN, f"the reservation holds {','.join(about.nodes) or 'nothing'}"
        )
    if c.facts.busy:
        # slurmctld would refuse it whole, and a victim must not wait while it is asked again.
        return Move(ChangeSignal.REFUSED, c.facts.busy)
    retry_s, cannot = c.policy.job.step_retry_s, "slurmctld will not reserve"
    c = replace(c, repeat=Repeat(retry_s, c.policy.node.step_attempts, retry_s))
    nodes = about.nodes
    return c.take(
        StepKind.RESERVE, about.group, ChangeSignal.REFUSED, cannot, about.why, nodes=nodes
    )


# --- burn-in ------------------------------------------------------------------------------------

TEST_NAME: Final = "hpctl-burn-in-"
"""How the name of a burn-in's job begins; the change's id follows."""
_SHOWN: Final = 3


def test_job(change: Change) -> JobId | None:
    """The id of a burn-in's job, once slurmctld has told it."""
    step = next((s for s in reversed(change.steps) if s.kind is StepKind.TEST), None)
    if step is None or step.outcome is None or not step.accepted:
        return None
    return JobId(natural(step.outcome.detail))


def _burn_in(c: _Case) -> Next:
    about, idle = c.rec.opened, c.policy.idle
    if _taken(c, StepKind.TEST):
        return Move(ChangeSignal.ORDER_TAKEN, f"job {test_job(c.rec)}")
    if c.facts.unwanted:
        return Move(ChangeSignal.IN_USE, c.facts.unwanted)
    return c.take(
        StepKind.TEST,
        TEST_NAME + c.rec.id,
        ChangeSignal.REFUSED,
        "slurmctld does not take the test",
        about.why,
        nodes=(about.node,),
        partition=idle.partition or about.group,
        command=f"{c.policy.acceptance.command} --level {idle.level} --id {c.rec.id}",
        limit_s=c.policy.acceptance.limit_s(idle.level),
        idle=True,
        qos=idle.qos,
    )


def _testing(c: _Case) -> Next:
    job, taken = c.facts.job, c.last(StepKind.TEST)
    since = taken.resolved if taken and taken.resolved else c.rec.since
    tests = [f for f in c.facts.results if f.check != TEST_SUMMARY]
    if failed := tuple(f for f in tests if f.verdict is Verdict.FAIL):
        texts = (f"{f.check.removeprefix(TEST)}: {f.detail or 'failed'}" for f in failed[:_SHOWN])
        return Move(ChangeSignal.TESTED, f"failed: {'; '.join(texts)}", failed)
    forgotten = job is None and c.now >= later(since, c.policy.node.step_retry_s)
    if forgotten or (job is not None and job.state in ENDED):
        return _ended(c, since)
    if c.facts.unwanted:
        return Move(ChangeSignal.IN_USE, c.facts.unwanted)
    return c.wait(f"job {test_job(c.rec)} {job.state if job else ''}".strip(), Look.OFTEN)


def _ended(c: _Case, since: datetime) -> Next:
    """Its job has ended: its result may be on its way. A command of the site's may tell none."""
    job = c.facts.job
    how = f"job {job.id} ended as {job.state}" if job else "slurmctld has forgotten its job"
    if c.facts.results:
        return Move(ChangeSignal.TESTED, f"nothing failed; {how}")
    if job is not None and job.state not in ("COMPLETED", "FAILED"):
        return Move(ChangeSignal.REFUSED, how)
    end = max(since, job.end) if job is not None and job.end is not None else since
    if c.now < later(end, c.policy.acceptance.result_s):
        return c.wait(f"{how}; its node's agent has told no result", Look.SLOWLY)
    done = job is not None and job.state == "COMPLETED"
    signal = ChangeSignal.TESTED if done else ChangeSignal.REFUSED
    return Move(signal, f"{how}, and its node's agent told no result")


def _ending(c: _Case) -> Next:
    """Its job is canceled by its name: one that was never answered may be there."""
    job, ended = c.facts.job, c.last(StepKind.END_TEST)
    if ended is not None and ended.accepted and (job is None or job.state in ENDED):
        return Move(ChangeSignal.GONE, "its job has ended")
    name = TEST_NAME + c.rec.id
    if ended is None:
        return Do(StepKind.END_TEST, name, 1)
    if c.now < later(ended.resolved or ended.started, 1.0):
        return c.wait("its job to end", Look.SOON)
    return Do(StepKind.END_TEST, name, ended.attempt + 1)


_PHASES: Final[Mapping[tuple[Kind, ChangePhase], Callable[[_Case], Next]]] = {
    (Kind.ADD, ChangePhase.OPEN): _add,
    (Kind.ADD, ChangePhase.ARRIVING): _arriving,
    (Kind.REMOVE, ChangePhase.OPEN): _remove,
    (Kind.REMOVE, ChangePhase.CLOSED): _closed,
    (Kind.REMOVE, ChangePhase.LEAVING): _leaving,
    (Kind.REMOVE, ChangePhase.GIVING_BACK): _giving_back,
    (Kind.RETURN, ChangePhase.OPEN): _return,
    (Kind.SPARES, ChangePhase.OPEN): _spares,
    (Kind.BURN_IN, ChangePhase.OPEN): _burn_in,
    (Kind.BURN_IN, ChangePhase.TESTING): _testing,
    (Kind.BURN_IN, ChangePhase.LEAVING): _ending,
}
