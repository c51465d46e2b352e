"""All open recoveries against one view: the moves they make, the steps they want, the waits."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.completing import is_job_stuck_completing
from hpctl.engine.journal.events import SignalSeen
from hpctl.engine.kinds import (
    DueRecoveryStep,
    JobsByNode,
    RecoveryAdvanceResult,
    RecoveryKind,
    Withdrawn,
)
from hpctl.engine.pauses import find_pause_covering_recovery
from hpctl.engine.view import PlanningView, group_jobs_by_node
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.isolation import ItemProcessingFailure
from hpctl.vocabulary.pause import find_active_pauses
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.recovery import RecoveryPhaseMove, StepKind, StepStartDecision, WaitDecision

KILL_S = 45.0
"""A slurmd ends a job sooner: KillWait is 30 s as it comes."""


class RecoveryPassResult(Struct, frozen=True):
    """One pass over all open recoveries. While there are `moves`, another pass is needed."""

    moves: tuple[SignalSeen, ...] = ()
    due: tuple[DueRecoveryStep, ...] = ()
    waits: tuple[WaitDecision, ...] = ()
    flaws: tuple[ItemProcessingFailure, ...] = ()


def advance_open_recoveries(
    view: PlanningView, policy: RecoveryPolicy, now: datetime, kinds: Sequence[RecoveryKind]
) -> RecoveryPassResult:
    """Return what each open recovery does next. Nothing moves on an old view, nor of what is
    flawed."""
    if not view.current:
        return RecoveryPassResult()
    here = group_jobs_by_node(list(view.state.open_nodes), view.scheduler.jobs)
    taken_back = [kind.find_withdrawn(view, policy, now) for kind in kinds]
    flaws = list(chain.from_iterable(flaws for _, flaws in taken_back))
    view = _remove_withdrawn_recoveries(view, taken_back)
    found = [kind.advance(view, policy, here, now) for kind in kinds]
    steps = list(chain.from_iterable(made for made, _ in found))
    flaws.extend(chain.from_iterable(flawed for _, flawed in found))
    return RecoveryPassResult(
        tuple(_make_recovery_signal_events(steps, now)),
        _list_due_steps(steps, view, policy, here, now),
        tuple(step.answer for step in steps if isinstance(step.answer, WaitDecision)),
        tuple(flaws),
    )


def _make_recovery_signal_events(
    steps: Sequence[RecoveryAdvanceResult], now: datetime
) -> Iterator[SignalSeen]:
    """Yield the event of each recovery that moves."""
    for step in steps:
        move = step.answer
        if isinstance(move, RecoveryPhaseMove):
            yield SignalSeen(now, step.recovery, move.signal, move.why, step.generation, move.tests)


def _remove_withdrawn_recoveries(view: PlanningView, found: Sequence[Withdrawn]) -> PlanningView:
    """Return the view with what the kinds take back. What could not be decided on is left alone."""
    withdrawn, flaws = dict(view.withdrawn), dict(view.flaws)
    for why, flawed in found:
        withdrawn.update(why)
        flaws.update({flaw.target: flaw for flaw in flawed})
    return replace(view, withdrawn=withdrawn, flaws=flaws)


def _list_due_steps(
    steps: Sequence[RecoveryAdvanceResult],
    view: PlanningView,
    policy: RecoveryPolicy,
    here: JobsByNode,
    now: datetime,
) -> tuple[DueRecoveryStep, ...]:
    """Return the steps that are wanted. A pause stops effects, not looking: what is observed
    meanwhile still moves a recovery. So does mode observe, in which recoveries are open where it
    was set while they were."""
    if view.stopped or policy.mode is OperatingMode.OBSERVE:
        return ()
    wanted = [
        DueRecoveryStep(s.recovery, s.answer, s.attempt)
        for s in steps
        if isinstance(s.answer, StepStartDecision)
    ]
    if find_active_pauses(view.state.pauses, now):
        wanted = [
            due for due in wanted if find_pause_covering_recovery(due.recovery, view, now) is None
        ]
    return _defer_node_down_steps(wanted, view, here, now)


def _defer_node_down_steps(
    due: Sequence[DueRecoveryStep], view: PlanningView, here: JobsByNode, now: datetime
) -> tuple[DueRecoveryStep, ...]:
    """Return the steps without DOWN for a node whose slurmd is about to end a job that Slurm
    requeues.

    One DOWN requeues a job of several nodes. Set the last of the others DOWN, and slurmctld 22.05
    forgets to clear the job's GRES (kill_running_job_by_node_name does not call
    batch_requeue_fini): its next run fails, and its GPUs stay allocated. So nodes that are silent
    go first, while a living one still completes, and of the living ones the one that the job's
    own recovery goes by.
    """
    downs = [d for d in due if d.do.kind is StepKind.DOWN]
    nodes = {d.recovery: view.state.nodes[d.recovery] for d in downs}
    causes = {view.state.jobs[rid].cause for rid in view.state.open_jobs.values()}

    def is_node_alive(one: DueRecoveryStep) -> bool:
        node = view.scheduler.nodes.get(nodes[one.recovery].node)
        return node is not None and node.responding and not node.down

    downs.sort(key=lambda one: (is_node_alive(one), one.recovery not in causes))
    sent, ended = [d for d in due if d.do.kind is not StepKind.DOWN], set[JobId]()
    for one in downs:
        rec = nodes[one.recovery]
        running = {j.id for j in here[rec.node] if j.running}
        requeued = (j for j in here[rec.node] if j.completing and j.state == "PENDING")
        completing = any(not is_job_stuck_completing(job, KILL_S, now) for job in requeued)
        wait = now < add_seconds_within_bounds(rec.opened, KILL_S) and (
            completing or running & ended
        )
        if not (wait and is_node_alive(one)):
            sent.append(one)
            ended |= running
    return tuple(sent)
