"""Which changes of capacity may open: the autoscaler's, the spares' and burn-ins. Pure.

Spares are K idle healthy nodes of a group in a reservation of Slurm's, so that no other job takes
them. A job whose recovery is about to start it again, and that finds too few free nodes, gets as
many of them as it has lost, those nearest to it first. When nodes are idle again the reservation is
filled up.

A burn-in tests an idle node: the one with the worst forecast, then the oldest test. It is a change
like others: its job goes out as a journaled step, and is canceled as soon as a user's job waits
that could use the node. Slurm's own preemption needs nothing of it: without any, as slurm.conf
comes, the job is behind all others and its node is free within seconds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Final

from hpctl.capacity.autoscale import Decision, ScaleDown, ScaleUp, decide_group_autoscaling
from hpctl.capacity.facts import (
    explain_burn_in_conflict,
    explain_capacity_change_stop,
    is_node_idle,
    list_group_nodes,
    list_group_partitions,
    make_scaling_input,
)
from hpctl.capacity.removals import open_node_removal
from hpctl.engine.journal.events import NodeRecoveryOpened
from hpctl.engine.restart_time import find_earliest_job_restart_time
from hpctl.engine.test_reservation import choose_acceptance_test_level
from hpctl.engine.view import PlanningView, is_timestamp_fresh
from hpctl.toolkit.bounds import EARLIEST, add_seconds_within_bounds
from hpctl.toolkit.hostlist import sort_nodes_by_leaf_proximity
from hpctl.vocabulary.change import ChangeKind, ChangeOpened, ClusterChange, ClusterChangePhase
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.isolation import ItemProcessingFailure, process_items_capturing_failures
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoveryPhase
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.recovery import make_recovery_id
from hpctl.vocabulary.slurm_facts import SlurmNode
from hpctl.vocabulary.spares_reservation import RESERVATION

RankRisks = Callable[[PlanningView, datetime, set[NodeName]], Mapping[NodeName, float]]
"""How likely each of some nodes breaks within a week, where that is known."""


def make_empty_node_risks(
    view: PlanningView,  # noqa: ARG001
    now: datetime,  # noqa: ARG001
    nodes: set[NodeName],  # noqa: ARG001
) -> Mapping[NodeName, float]:
    """Return nothing: no node is known to be more likely to break than another."""
    return {}


REFUSED_S: Final = 30.0
"""Seconds before a refused reservation is tried again."""

_ABOUT_TO_START: Final = (JobRecoveryPhase.RELEASED, JobRecoveryPhase.STARTING)


def plan_spare_reservation_changes(
    view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> Iterator[ChangeOpened]:
    """Yield the reservations that should hold other nodes than they do."""
    # What was kept for a group that is no longer in the configuration is dropped.
    ours = [
        name.removeprefix(RESERVATION) for name in view.reservations if name.startswith(RESERVATION)
    ]
    for group, count in {**dict.fromkeys(ours, 0), **policy.spares}.items():
        if f"{ChangeKind.SPARES} {group}" in view.state.open_changes:
            continue
        change = _plan_group_spare_reservation_change(group, count, view, policy, now)
        if change is not None:
            yield change


def _plan_group_spare_reservation_change(
    group: str, count: int, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> ChangeOpened | None:
    held = view.reservations.get(RESERVATION + group, ())
    nodes = {node.name: node for node, _ in list_group_nodes(group, view)}
    ready = [n for n in held if n in nodes and is_node_idle(nodes[n], view, reserved=True)]
    good = [
        n
        for n in held
        if n in ready or (n in nodes and _is_node_returning_soon(nodes[n], view, policy))
    ]
    victim = _find_job_short_of_nodes(group, ready, view, now)
    released: Sequence[NodeName] = ()
    cause = None
    if victim is not None:
        cause, released = victim
    keep = max(0, count - _count_unused_released_spares(group, view) - len(released))
    stays = [n for n in good if n not in released]
    elsewhere = set(chain.from_iterable(view.reservations.values())) - set(held)
    free = sorted(
        n
        for n, node in nodes.items()
        if n not in held and n not in elsewhere and is_node_idle(node, view)
    )
    back = sorted(
        n
        for n, node in nodes.items()
        if n not in held and _is_node_returning_soon(node, view, policy)
    )
    wanted = tuple(sorted([*stays, *free, *back][:keep]))
    if set(wanted) == set(held) or (
        not released and _was_spare_release_refused(group, wanted, view, now)
    ):
        return None
    why = _explain_spare_reservation_change(
        count, held, wanted, released, cause.attempt.job if cause else None
    )
    return ChangeOpened(
        at=now,
        recovery=make_recovery_id(
            "k", group, wanted, held, len(view.state.changes), known=view.state
        ),
        kind=ChangeKind.SPARES,
        group=group,
        why=why,
        nodes=wanted,
        released=tuple(released),
        cause=cause.id if cause else None,
    )


def _is_node_returning_soon(node: SlurmNode, view: PlanningView, policy: RecoveryPolicy) -> bool:
    """Return whether a node is about to be given back: reserved now, no job that waits is quicker.

    One that is tested before is in the reservation of its test until then.
    """
    rec = view.state.node_recovery(node.name)
    verifying = rec is not None and rec.phase is NodeRecoveryPhase.VERIFYING
    if rec is None or choose_acceptance_test_level(rec, policy):
        return False
    return verifying and node.drained and not node.down


def _explain_spare_reservation_change(
    count: int,
    held: Sequence[NodeName],
    wanted: Sequence[NodeName],
    released: Sequence[NodeName],
    job: int | None,
) -> str:
    if released:
        return f"{','.join(released)} released to job {job}"
    lost = [n for n in held if n not in wanted]
    if lost:
        return f"{','.join(lost)} is no longer a spare; {len(wanted)} of {count} kept"
    return f"{len(wanted)} of {count} kept"


def _find_job_short_of_nodes(
    group: str, good: Sequence[NodeName], view: PlanningView, now: datetime
) -> tuple[JobRecovery, list[NodeName]] | None:
    """Return the first job that is about to start and short of nodes, and the spares that it
    gets."""
    partitions = set(list_group_partitions(group, view))
    # The flag RESERVED comes seconds after the reservation.
    reserved = set(chain.from_iterable(view.reservations.values()))
    for rid in sorted(view.state.open_jobs.values()):
        rec = view.state.jobs[rid]
        job = view.scheduler.jobs.get(rec.attempt.job)
        if rec.phase not in _ABOUT_TO_START or job is None or job.state != "PENDING":
            continue
        theirs = set(job.partition.split(","))
        if job.completing or rec.over_budget or not theirs & partitions:
            continue
        # START_NOW waits for the same.
        if rec.phase is JobRecoveryPhase.RELEASED and now < find_earliest_job_restart_time(
            rec, view
        ):
            continue
        if rec.start_at is not None and now < rec.start_at:
            continue
        lost = len(set(rec.bad_nodes) | set(rec.exclude)) - _count_spares_released_for_recovery(
            rec, view
        )
        barred = {*job.excluded, *rec.bad_nodes, *rec.exclude}
        free = sum(
            n.name not in barred | reserved
            and bool(theirs & set(n.partitions))
            and is_node_idle(n, view)
            for n in view.scheduler.nodes.values()
        )
        mine = {*job.nodes, *rec.ran_on, *rec.bad_nodes}
        fit = sort_nodes_by_leaf_proximity((n for n in good if n not in barred), mine, view.leaves)
        take = min(lost, max(job.wants, 1) - free, len(fit))
        if take > 0:
            return rec, fit[:take]
    return None


def _count_spares_released_for_recovery(rec: JobRecovery, view: PlanningView) -> int:
    """Return how many spares this recovery has had already."""
    mine = (c for c in view.state.changes.values() if c.opened.cause == rec.id)
    return sum(len(c.opened.released) for c in mine if c.phase is not ClusterChangePhase.FAILED)


def _count_unused_released_spares(group: str, view: PlanningView) -> int:
    """Return the spares that were released to jobs which have not started yet: not to be taken
    back."""
    waiting = {
        rid
        for rid in view.state.open_jobs.values()
        if view.state.jobs[rid].phase in _ABOUT_TO_START
    }
    return sum(
        len(c.opened.released)
        for c in view.state.changes.values()
        if c.opened.group == group
        and c.opened.cause in waiting
        and c.phase is not ClusterChangePhase.FAILED
    )


def _was_spare_release_refused(
    group: str, wanted: Sequence[NodeName], view: PlanningView, now: datetime
) -> bool:
    """Return whether this was refused a moment ago."""
    for change in view.state.changes.values():
        opened = change.opened
        if opened.kind is not ChangeKind.SPARES or opened.group != group:
            continue
        lately = now < add_seconds_within_bounds(change.since, REFUSED_S)
        if (
            change.phase is ClusterChangePhase.FAILED
            and lately
            and set(opened.nodes) == set(wanted)
        ):
            return True
    return False


def plan_all_capacity_changes(
    view: PlanningView, policy: RecoveryPolicy, now: datetime, rank_risks: RankRisks
) -> tuple[tuple[ChangeOpened | NodeRecoveryOpened, ...], tuple[ItemProcessingFailure, ...]]:
    """Return what opens now, and what could not be decided. Nothing in mode observe, on old facts,
    or where hpctl is stopped."""
    if policy.mode is OperatingMode.OBSERVE or explain_capacity_change_stop(view, policy, now):
        return (), ()
    taken: set[NodeName] = set()

    def plan_spare_reservations() -> list[ChangeOpened]:
        found = list(plan_spare_reservation_changes(view, policy, now))
        taken.update(*(change.nodes for change in found))
        return found

    def plan_scaling_changes() -> list[ChangeOpened | NodeRecoveryOpened]:
        decided = decide_scaling_of_all_groups(view, policy, now)
        opens = chain.from_iterable(
            _open_scaling_changes(one, view, policy, now) for one in decided
        )
        return [
            one
            for one in opens
            if isinstance(one, ChangeOpened) or one.generation.node not in taken
        ]

    def plan_burn_in_tests() -> list[ChangeOpened]:
        return [
            one for one in plan_burn_ins(view, policy, now, rank_risks) if one.node not in taken
        ]

    parts: dict[str, Callable[[], Sequence[ChangeOpened | NodeRecoveryOpened]]] = {
        "spares": plan_spare_reservations,
        "autoscale": plan_scaling_changes,
        "burn-in": plan_burn_in_tests,
    }
    opens, flaws = process_items_capturing_failures("plan", parts, str, lambda part: parts[part]())
    return tuple(chain.from_iterable(opens)), tuple(flaws)


def decide_scaling_of_all_groups(
    view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> tuple[Decision, ...]:
    """Return what autoscaling answers for each group; what `hpctl cluster autoscale explain`
    prints."""
    if not policy.autoscale.groups:
        return ()
    return decide_group_autoscaling(make_scaling_input(view, policy, now), policy.autoscale, now)


def _open_scaling_changes(
    decision: Decision, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> Iterator[ChangeOpened | NodeRecoveryOpened]:
    if isinstance(decision, ScaleUp):
        up, number = decision, len(view.state.changes)
        yield ChangeOpened(
            at=now,
            recovery=make_recovery_id(
                "s", ChangeKind.ADD, up.group, up.size, now, number, known=view.state
            ),
            kind=ChangeKind.ADD,
            group=up.group,
            why=up.why,
            count=up.count,
            size=up.size,
        )
    elif isinstance(decision, ScaleDown):
        for one in decision.nodes:
            yield open_node_removal(one, decision, view, policy, now)


def plan_burn_ins(
    view: PlanningView, policy: RecoveryPolicy, now: datetime, rank_risks: RankRisks
) -> Iterator[ChangeOpened]:
    """Yield the tests that begin now."""
    state, wanted = view.state, policy.idle
    running = sum(key.startswith(f"{ChangeKind.BURN_IN} ") for key in state.open_changes)
    if wanted.every_s <= 0 or running >= wanted.at_once:
        return
    tested, tried = find_last_burn_in_times(view)
    reserved = set(chain.from_iterable(view.reservations.values()))
    due = {
        node.name: node
        for node in view.scheduler.nodes.values()
        if node.name not in reserved
        and now >= add_seconds_within_bounds(tried.get(node.name, EARLIEST), wanted.retry_s)
        and now >= add_seconds_within_bounds(tested.get(node.name, EARLIEST), wanted.every_s)
        and _is_node_ready_for_burn_in(node, view, policy, now)
    }
    if not due:
        return
    risks = rank_risks(view, now, set(due))
    ordered = sorted(due, key=lambda n: (-risks.get(n, 0.0), tested.get(n, EARLIEST), n))
    for name in ordered[: wanted.at_once - running]:
        instance, last = view.instance(name), tested.get(name)
        why = ["idle", f"last tested {last:%Y-%m-%d %H:%M}" if last else "not tested yet"]
        if name in risks:
            why.append(f"{risks[name]:.1%} to break within 7 d")
        yield ChangeOpened(
            at=now,
            recovery=make_recovery_id("b", name, now, len(state.changes), known=state),
            kind=ChangeKind.BURN_IN,
            group=due[name].partitions[0],
            why="; ".join(why),
            node=name,
            instance=instance.id if instance else view.health[name].generation.instance,
        )


def find_last_burn_in_times(
    view: PlanningView,
) -> tuple[dict[NodeName, datetime], dict[NodeName, datetime]]:
    """Return when each node was tested to the end, and when that was last tried: its present
    instance."""
    tested: dict[NodeName, datetime] = {}
    tried: dict[NodeName, datetime] = {}
    for change in view.state.changes.values():
        node = change.opened.node
        if (
            change.opened.kind is ChangeKind.BURN_IN
            and node is not None
            and _is_tested_instance_unchanged(change, view)
        ):
            tried[node] = max(change.since, tried.get(node, EARLIEST))
            if change.phase is ClusterChangePhase.DONE:
                tested[node] = max(change.since, tested.get(node, EARLIEST))
    return tested, tried


def _is_tested_instance_unchanged(change: ClusterChange, view: PlanningView) -> bool:
    health = view.health.get(change.opened.node) if change.opened.node else None
    return health is not None and health.generation.instance == change.opened.instance


def _is_node_ready_for_burn_in(
    node: SlurmNode, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> bool:
    """Return whether a node is unused, not set apart and not waited for, and its agent reports."""
    health, instance = view.health.get(node.name), view.instance(node.name)
    busy = node.last_busy
    return (
        is_node_idle(node, view)
        and not view.is_quarantined(node.name)
        and node.name not in policy.node.protected
        and not (instance is not None and instance.protected)
        and bool(node.partitions)
        and (not policy.partitions or not policy.partitions.isdisjoint(node.partitions))
        and (busy is None or now >= add_seconds_within_bounds(busy, policy.idle.idle_s))
        and health is not None
        and is_timestamp_fresh(health.last_heard, policy.ages.report_s, now)
        and not explain_burn_in_conflict(node.name, None, view, now)
    )
