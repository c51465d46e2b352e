"""What is done about a run's trouble: one pure function for supervisor, daemon and `policy test`.

DEFAULTS has what each kind of trouble gets where no policy says otherwise, with the reason. The
policy of one job is in its Comment (`hpctl:{...}`), where `hpctl sbatch` writes it.
"""

import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.run_policy import (
    CERTAIN,
    JITTER,
    LEAVES_ALIVE,
    RESTARTS,
    STOPS,
    UNPLANNED,
    WHY_CHARS,
    RunAction,
    RunActionDecision,
    RunPolicy,
    TroubleTreatment,
)
from hpctl.vocabulary.trouble import Trouble, TroubleKind


class PastJobFailure(Struct, frozen=True):
    """One trouble of the same job that was treated before, oldest first in a history."""

    trouble: Trouble
    action: RunAction


class RestartResources(Struct, frozen=True):
    """What is possible here and now.

    `process`: a launcher inside the step can restart its ranks, and all its nodes live. `step`:
    there is an allocation to launch in. `nodes`: healthy nodes in that allocation, those that would
    be excluded still counted; `names` are those very nodes, and a caller that has them should pass
    them: without names, every excluded node is taken to be one of the counted. `wanted`: how many
    the step needs. `requeue`: Slurm would take the job back. `pool`: how many healthy nodes a
    requeued job could get, excluded ones counted; 0 if unknown. `healed`: nodes that were replaced
    or repaired since their trouble, so that it no longer counts against them. `alive`: whether the
    ranks still run and could save; None: the kind of trouble decides.
    """

    process: bool = False
    step: bool = False
    nodes: int = 0
    wanted: int = 0
    requeue: bool = True
    names: tuple[NodeName, ...] = ()
    pool: int = 0
    healed: tuple[NodeName, ...] = ()
    alive: bool | None = None


def decide_job_failure_action(
    policy: RunPolicy,
    past: Sequence[PastJobFailure],
    trouble: Trouble,
    means: RestartResources,
    now: datetime,
) -> RunActionDecision:
    """Return the answer to one trouble, given what was done before. Total; time and history are
    values.

    An END or a HOLD in the past starts the count afresh: a person has looked, and had the job run
    again.
    """
    treatment = policy.treatment(trouble.kind)
    fruitless = list_failures_since_last_progress(policy, past, trouble)
    rungs = _list_remaining_escalation_actions(treatment, fruitless, trouble)
    if rungs[0] in (RunAction.NONE, RunAction.NOTIFY):
        return RunActionDecision(rungs[0], _format_text_as_single_line(trouble.why))
    lives = means.alive if means.alive is not None else trouble.kind in LEAVES_ALIVE
    save_s = policy.save_grace_s if treatment.save_first and lives else 0.0
    tried = len(_list_past_restarts(fruitless))
    stops_at_once = rungs[0] in STOPS and not tried
    over = (
        ""
        if stops_at_once
        else _describe_exceeded_restart_budget(policy, past, fruitless, trouble, now)
    )
    if over or rungs[0] in STOPS:
        times = f"{trouble.kind} {tried + 1} times without progress"
        reason = "" if stops_at_once else over or times
        action = policy.find_last_resort_action(trouble.kind) if over else rungs[0]
        return _make_job_stop_decision(action, reason, trouble, save_s)
    for leave in _list_node_exclusions(policy, past, trouble, means, now):
        for action in rungs:
            if not _is_restart_possible(action, policy, trouble, means, leave):
                continue
            if action in (RunAction.NONE, RunAction.NOTIFY):
                return RunActionDecision(action, _format_text_as_single_line(trouble.why))
            return RunActionDecision(
                action,
                _format_text_as_single_line(
                    f"{trouble.why}"
                    f" ({_describe_restart_budget_usage(policy, past, fruitless, trouble, now)})"
                ),
                after_s=_compute_restart_delay(policy, treatment, fruitless, trouble),
                exclude=leave.nodes,
                size=_choose_restart_node_count(policy, means, leave)
                if action is RunAction.STEP
                else 0,
                save_first_s=save_s,
            )
    short = RunAction.STEP in rungs and means.step
    why = "too few healthy nodes, and no requeue" if short else "no further restart is possible"
    return _make_job_stop_decision(
        policy.find_last_resort_action(trouble.kind), why, trouble, save_s
    )


def _make_job_stop_decision(
    action: RunAction, reason: str, trouble: Trouble, save_s: float
) -> RunActionDecision:
    """Return the answer that restarts nothing. Only a HOLD's reason goes into the job's Comment."""
    prefix = "hpctl: " if action is RunAction.HOLD else ""
    text = f"{reason}: {trouble.why}" if reason else trouble.why or str(trouble.kind)
    return RunActionDecision(
        action, _format_text_as_single_line(f"{prefix}{text}"), save_first_s=save_s
    )


def is_restart_on_more_nodes_worthwhile(
    policy: RunPolicy, have: int, could: int, remaining_s: float, restart_cost_s: float
) -> bool:
    """Return whether a smaller run should start again on more nodes, at its next checkpoint.

    `remaining_s` is how long it still has to run on the `have` nodes, `restart_cost_s` what one
    restart takes from fault to first new step. The work is taken to divide evenly by nodes; that
    `grow_gain` is over 1 pays for where it does not.
    """
    if policy.nodes is None:
        return False
    could = min(could, policy.nodes[1])
    if not 0 < have < could:
        return False
    saved_s = remaining_s * (1 - have / could)
    return saved_s > 0 and saved_s >= policy.grow_gain * restart_cost_s


def list_failures_since_last_progress(
    policy: RunPolicy, past: Sequence[PastJobFailure], trouble: Trouble
) -> tuple[PastJobFailure, ...]:
    """Return what was done since the run last made progress, or since a person had it run again.

    A newer checkpoint is progress; where no checkpoint is known, a later training step; where
    neither is known, `proven_s` without trouble. The end of a time limit proves nothing: a run that
    saves nothing would be repeated without a limit.
    """
    checkpoint = step = -1
    since, ran_from = 0, None
    for index, one in enumerate((*(p.trouble for p in past), trouble)):
        if index and past[index - 1].action in STOPS:
            since, ran_from = index, None
        if one.progress is not None:
            on = one.progress > checkpoint
        elif one.step is not None:
            on = one.step > step
        else:
            quiet = one.at - ran_from if ran_from else timedelta(0)
            on = quiet.total_seconds() >= policy.proven_s and one.kind is not TroubleKind.TIME_LIMIT
        if on and one.kind is not TroubleKind.NO_PROGRESS:
            since = index
        checkpoint = max(checkpoint, -1 if one.progress is None else one.progress)
        step = max(step, -1 if one.step is None else one.step)
        if index < len(past) and past[index].action in RESTARTS:
            ran_from = one.at
    return tuple(past[since:])


def is_repeated_job_failure(before: Trouble, trouble: Trouble) -> bool:
    """Return whether a trouble has the kind and the signature of one before."""
    return (before.kind, before.signature) == (trouble.kind, trouble.signature)


def has_same_failed_rank_and_step(before: Trouble, trouble: Trouble) -> bool:
    """Return whether a trouble of the same kind hit the same rank at the same training step."""
    known = trouble.step is not None and trouble.rank is not None
    return (
        known
        and before.kind is trouble.kind
        and (before.step, before.rank) == (trouble.step, trouble.rank)
    )


def has_rank_failed_across_nodes(before: Trouble, trouble: Trouble) -> bool:
    """Return whether the same rank failed at the same step on another node: no node explains
    that."""
    moved = None not in (before.node, trouble.node) and before.node != trouble.node
    return (
        moved
        and has_same_failed_rank_and_step(before, trouble)
        and trouble.kind is not TroubleKind.NODE
    )


class _NodesToExclude(Struct, frozen=True):
    """Nodes to stay off: those proven bad, and those suspected, longest ago first."""

    certain: tuple[NodeName, ...]
    suspected: tuple[NodeName, ...]

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        return tuple(sorted((*self.certain, *self.suspected)))


def _list_past_restarts(past: Sequence[PastJobFailure]) -> list[PastJobFailure]:
    return [p for p in past if p.action in RESTARTS]


def _list_remaining_escalation_actions(
    treatment: TroubleTreatment, fruitless: Sequence[PastJobFailure], trouble: Trouble
) -> tuple[RunAction, ...]:
    """Return what is left of the ladder, at least its last rung; then, where it never stops the
    job, what was tried."""
    ladder, at = treatment.ladder, 0
    for before in fruitless:
        other_node = None not in (before.trouble.node, trouble.node) and (
            before.trouble.node != trouble.node
        )
        # Where the node leaves at once, trouble on another one is not the same trouble again.
        if before.trouble.kind is not trouble.kind or (treatment.exclude == 1 and other_node):
            continue
        if before.action in ladder[at:]:
            at = ladder.index(before.action, at) + 1
    if trouble.kind is TroubleKind.FINAL:
        ladder = tuple(a for a in ladder if a not in RESTARTS) or (RunAction.NONE,)
    at = min(at, len(ladder) - 1)
    return ladder[at:] if ladder[-1] in STOPS else (*ladder[at:], *reversed(ladder[:at]))


def _describe_exceeded_restart_budget(
    policy: RunPolicy,
    past: Sequence[PastJobFailure],
    fruitless: Sequence[PastJobFailure],
    trouble: Trouble,
    now: datetime,
) -> str:
    """Return which budget forbids another restart, in words; empty for none."""
    lately = _count_recent_restarts(policy, past, now)
    if trouble.kind in UNPLANNED and lately >= policy.restarts:
        return f"{lately} restarts in {_format_duration(policy.window_s)}"
    again = _list_past_restarts(fruitless)
    if policy.treatment(trouble.kind).hold_same:
        same = 1 + sum(is_repeated_job_failure(p.trouble, trouble) for p in again)
        if same >= policy.same_signature:
            return f"the same {trouble.kind} {same} times without progress"
    moved = 1 + sum(has_rank_failed_across_nodes(p.trouble, trouble) for p in again)
    if moved > 1 and moved >= policy.same_signature:
        where = f"rank {trouble.rank} at step {trouble.step}"
        return f"{trouble.kind} of {where} {moved} times, on different nodes"
    most = policy.treatment(trouble.kind).max
    mine = sum(p.trouble.kind is trouble.kind for p in again)
    if most and mine >= most:
        return f"{mine} restarts for {trouble.kind} without progress (max: {most})"
    if len(again) >= policy.without_progress:
        return f"{len(again)} restarts without progress"
    return ""


def list_unreachable_escalation_actions(policy: RunPolicy) -> list[str]:
    """Return what the treatments promise and the budgets never let happen, one line each."""
    found = []
    for kind, treatment in sorted(policy.treatments.items()):
        rungs = [rung for rung in treatment.ladder if rung in RESTARTS]
        most = min(policy.without_progress, treatment.max or policy.without_progress)
        what = "without_progress" if most == policy.without_progress else f"on.{kind}.max"
        if len(rungs) > most:
            left = ", ".join(rungs[most:])
            found.append(f"on.{kind}.ladder: {left} is never reached: {what}: {most} stops the job")
        elif treatment.hold_same and len(rungs) >= policy.same_signature:
            left = ", ".join(rungs[policy.same_signature - 1 :])
            found.append(
                f"on.{kind}.ladder: {left} is reached only when the signature changes: hold_same"
                f" with same_signature: {policy.same_signature} stops the job before; for a number"
                " of restarts set hold_same: false and max"
            )
    return found


def _count_recent_restarts(policy: RunPolicy, past: Sequence[PastJobFailure], now: datetime) -> int:
    """Return the restarts in the window since the job was last stopped, planned ones not
    counted."""
    count = 0
    for p in past:
        if p.action in STOPS:
            count = 0
        elif p.action in RESTARTS and p.trouble.kind in UNPLANNED:
            count += (now - p.trouble.at).total_seconds() < policy.window_s
    return count


def _list_node_exclusions(
    policy: RunPolicy,
    past: Sequence[PastJobFailure],
    trouble: Trouble,
    means: RestartResources,
    now: datetime,
) -> Iterator[_NodesToExclude]:
    """Yield the nodes to stay off; then, for a run that could not go on so, always one fewer.

    Who is proven bad is always among them. A suspicion ends with the window, or when the node
    was replaced or repaired.
    """
    named: list[tuple[NodeName, TroubleKind]] = []
    for p in past:
        old = (now - p.trouble.at).total_seconds() >= policy.window_s
        if p.trouble.node is not None and not old and p.trouble.node not in means.healed:
            named.append((p.trouble.node, p.trouble.kind))
    if trouble.node is not None:
        named.append((trouble.node, trouble.kind))
    counting = [(node, kind) for node, kind in named if policy.treatment(kind).exclude]
    times = Counter(node for node, _ in counting)
    out = {n: None for n, k in counting if times[n] >= policy.treatment(k).exclude}
    surely_bad = {node for node, kind in counting if kind in CERTAIN}
    certain = tuple(node for node in out if node in surely_bad)
    last = {node: place for place, (node, _) in enumerate(counting)}
    suspected = sorted((n for n in out if n not in certain), key=last.__getitem__)
    suspected = suspected[max(0, len(suspected) - policy.most_excluded) :]
    for dropped in range(len(suspected) + 1):
        yield _NodesToExclude(certain, tuple(suspected[dropped:]))


def _is_restart_possible(
    action: RunAction,
    policy: RunPolicy,
    trouble: Trouble,
    means: RestartResources,
    leave: _NodesToExclude,
) -> bool:
    match action:
        case RunAction.PROCESS:
            return means.process and trouble.node not in leave.nodes
        case RunAction.STEP:
            return means.step and _count_remaining_healthy_nodes(
                means, leave
            ) >= _count_nodes_required_for_restart(policy, means)
        case RunAction.REQUEUE:
            left = means.pool - len(leave.nodes)
            enough = (
                not means.pool
                or not leave.suspected
                or left >= _count_nodes_required_for_restart(policy, means)
            )
            return means.requeue and enough
        case RunAction.END | RunAction.HOLD:
            return False  # only by climbing there, or when nothing else is possible at all
    return True


def _count_remaining_healthy_nodes(means: RestartResources, leave: _NodesToExclude) -> int:
    """Return how many healthy nodes of the allocation are not left out."""
    if means.names:
        return len(set(means.names) - set(leave.nodes))
    return means.nodes - len(leave.nodes)


def _count_nodes_required_for_restart(policy: RunPolicy, means: RestartResources) -> int:
    least = means.wanted if policy.nodes is None else min(means.wanted, policy.nodes[0])
    return max(1, least)


def _choose_restart_node_count(
    policy: RunPolicy, means: RestartResources, leave: _NodesToExclude
) -> int:
    room = _count_remaining_healthy_nodes(means, leave)
    most = means.wanted or room
    return min(room, most if policy.nodes is None else min(most, policy.nodes[1]))


def _compute_restart_delay(
    policy: RunPolicy,
    treatment: TroubleTreatment,
    fruitless: Sequence[PastJobFailure],
    trouble: Trouble,
) -> float:
    """Return seconds before the restart. The jitter comes from the values, so replays agree."""
    again = sum(policy.treatment(p.trouble.kind).backoff for p in _list_past_restarts(fruitless))
    if not treatment.backoff or not again:
        return 0.0
    wait = policy.backoff.first_s
    for _ in range(again - 1):
        if wait >= policy.backoff.cap_s:
            break
        wait *= policy.backoff.factor
    seed = f"{trouble.at.isoformat()} {trouble.kind} {trouble.signature} {trouble.node} {again}"
    share = zlib.crc32(seed.encode()) / 2**32
    return min(policy.backoff.cap_s, wait * (1 + JITTER * share))


def _describe_restart_budget_usage(
    policy: RunPolicy,
    past: Sequence[PastJobFailure],
    fruitless: Sequence[PastJobFailure],
    trouble: Trouble,
    now: datetime,
) -> str:
    """Return how much of the budgets this restart uses up."""
    again = len(_list_past_restarts(fruitless)) + 1
    reason = f"restart {again} of {policy.without_progress} without progress"
    if trouble.kind not in UNPLANNED:
        return reason
    lately = _count_recent_restarts(policy, past, now) + 1
    return f"{reason}, {lately} of {policy.restarts} in {_format_duration(policy.window_s)}"


def _format_duration(seconds: float) -> str:
    """Return a length of time for a person: `24 h`."""
    for unit, length in (("h", 3600.0), ("min", 60.0)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s"


def _format_text_as_single_line(text: str) -> str:
    """Return one line that squeue can show."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= WHY_CHARS else flat[: WHY_CHARS - 3] + "..."
