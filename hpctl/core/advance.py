"""All open recoveries against one view: the moves they make, the steps they want, the waits."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from hpctl.core import job_advance, node_advance, node_recovery
from hpctl.core.acceptance import judge_results
from hpctl.core.bounds import later
from hpctl.core.capacity import change_facts
from hpctl.core.catalogue import OWN_HARDWARE
from hpctl.core.change import Change
from hpctl.core.change import advance as advance_change
from hpctl.core.gates import correlated_since
from hpctl.core.job_recovery import JobRecovery
from hpctl.core.journal import SignalSeen
from hpctl.core.model import Attempt, Generation, JobId, NodeName, RecoveryId, SlurmJob
from hpctl.core.node_actors import NodeFacts, passed_by_itself
from hpctl.core.node_recovery import NodeRecovery
from hpctl.core.policy import Mode, Policy
from hpctl.core.recovery import Do, Move, Next, StepKind, Wait
from hpctl.core.view import View, job_facts, jobs_on, node_facts
from hpctl.core.walls import Flaw, each

KILL_S = 45.0
"""A slurmd ends a job sooner: KillWait is 30 s as it comes."""


class Due(Struct, frozen=True):
    """A step that a recovery wants now. `attempt`: of the job, for a job's step."""

    recovery: RecoveryId
    do: Do
    attempt: Attempt | None = None


class Progress(Struct, frozen=True):
    """One pass over all open recoveries. While there are `moves`, another pass is needed."""

    moves: tuple[SignalSeen, ...] = ()
    due: tuple[Due, ...] = ()
    waits: tuple[Wait, ...] = ()
    flaws: tuple[Flaw, ...] = ()


class _Next(Struct, frozen=True):
    """What one recovery answered. `generation`: the new one, where it saw one."""

    recovery: RecoveryId
    answer: Next
    attempt: Attempt | None = None
    generation: Generation | None = None


def advance_all(view: View, policy: Policy, now: datetime) -> Progress:
    """What each open recovery does next. Nothing moves on an old view, nor of what is flawed."""
    if not view.current:
        return Progress()
    state = view.state
    here = jobs_on(list(state.open_nodes), view.scheduler.jobs)
    correlated = correlated_since(view, policy, now)

    def node(rec: NodeRecovery) -> _Next:
        facts = node_facts(rec, view, here[rec.node], policy, now)
        facts = _tested(_of_others(rec, facts, correlated.get(rec.id, "")), rec, view, policy)
        answer = node_advance.advance(rec, facts, policy, now)
        if (
            isinstance(answer, Move)
            and answer.signal is node_recovery.NodeSignal.NEW_GENERATION_SEEN
        ):
            return _Next(rec.id, answer, generation=node_advance.new_generation(rec, facts))
        return _Next(rec.id, answer)

    def job(rec: JobRecovery) -> _Next:
        answer = job_advance.advance(rec, job_facts(rec, view, policy), policy, now)
        return _Next(rec.id, answer, rec.attempt)

    def change(rec: Change) -> _Next:
        facts = change_facts(rec, view, policy, now)
        return _Next(rec.id, advance_change(rec, facts, policy, now))

    nodes = [state.nodes[i] for n, i in state.open_nodes.items() if not view.aside(n)]
    jobs = [state.jobs[i] for j, i in state.open_jobs.items() if not view.aside(j)]
    changes = [state.changes[i] for i in state.open_changes.values()]
    changes = [rec for rec in changes if not view.aside(rec.opened.node)]
    found = (
        each("advance", nodes, lambda rec: rec.node, node),
        each("advance", jobs, lambda rec: rec.attempt.job, job),
        each("advance", changes, lambda rec: rec.opened.node or rec.opened.group, change),
    )
    steps = [step for made, _ in found for step in made]
    return Progress(
        tuple(
            SignalSeen(now, s.recovery, s.answer.signal, s.answer.why, s.generation, s.answer.tests)
            for s in steps
            if isinstance(s.answer, Move)
        ),
        _due(steps, view, policy, here, now),
        tuple(s.answer for s in steps if isinstance(s.answer, Wait)),
        tuple(flaw for _, flaws in found for flaw in flaws),
    )


Here = Mapping[NodeName, Sequence[SlurmJob]]
"""The jobs on each node under treatment."""


def _due(
    steps: Sequence[_Next], view: View, policy: Policy, here: Here, now: datetime
) -> tuple[Due, ...]:
    """The steps that are wanted. A pause stops effects, not looking: what is observed meanwhile
    still moves a recovery. So does mode observe, in which recoveries are open where it was set
    while they were."""
    if view.stopped or view.state.paused_by or policy.mode is Mode.OBSERVE:
        return ()
    wanted = [Due(s.recovery, s.answer, s.attempt) for s in steps if isinstance(s.answer, Do)]
    return _ended_once(wanted, view, here, now)


def _ended_once(due: Sequence[Due], view: View, here: Here, now: datetime) -> tuple[Due, ...]:
    """The steps without DOWN for a node whose slurmd is about to end a job that Slurm requeues.

    One DOWN requeues a job of several nodes. Set the last of the others DOWN, and slurmctld 22.05
    forgets to clear the job's GRES (kill_running_job_by_node_name does not call
    batch_requeue_fini): its next run fails, and its GPUs stay allocated. So nodes that are silent
    go first, while a living one still completes, and of the living ones the one that the job's
    own recovery goes by.
    """
    downs = [d for d in due if d.do.kind is StepKind.DOWN]
    nodes = {d.recovery: view.state.nodes[d.recovery] for d in downs}
    causes = {view.state.jobs[rid].cause for rid in view.state.open_jobs.values()}

    def alive(one: Due) -> bool:
        node = view.scheduler.nodes.get(nodes[one.recovery].node)
        return node is not None and node.responding and not node.down

    downs.sort(key=lambda one: (alive(one), one.recovery not in causes))
    sent, ended = [d for d in due if d.do.kind is not StepKind.DOWN], set[JobId]()
    for one in downs:
        rec = nodes[one.recovery]
        running = {j.id for j in here[rec.node] if j.running}
        completing = any(j.completing and j.state == "PENDING" for j in here[rec.node])
        wait = now < later(rec.opened, KILL_S) and (completing or running & ended)
        if not (wait and alive(one)):
            sent.append(one)
            ended |= running
    return tuple(sent)


def _tested(facts: NodeFacts, rec: NodeRecovery, view: View, policy: Policy) -> NodeFacts:
    """The facts with the node's test judged by what the fleet has measured, and by the floors."""
    if not facts.results:
        return facts
    floors, of_type = policy.acceptance.floors, view.instance_type(rec.node)
    return replace(facts, results=judge_results(facts.results, of_type, view.measured(), floors))


def _of_others(rec: NodeRecovery, facts: NodeFacts, why: str) -> NodeFacts:
    """The facts with what the mass event that `why` tells of means for this one."""
    if why and rec.rule in OWN_HARDWARE:
        return replace(facts, blocked=why)
    return replace(facts, correlated=why or passed_by_itself(rec, facts))
