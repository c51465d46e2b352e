"""What is done about maintenance windows: facts in, moves, steps and candidates out. Pure."""

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from hpctl.engine.maintenance import is_hpctl_reservation
from hpctl.engine.maintenance_times import (
    END_LEAD_S,
    SAME,
    find_next_maintenance_window_action_time,
    get_maintenance_window_lead_s,
)
from hpctl.engine.requests import find_node_generation_for_order
from hpctl.engine.view import PlanningView, RecoveryCandidate, group_jobs_by_node
from hpctl.toolkit.bounds import EARLIEST, LATEST, add_seconds_within_bounds
from hpctl.vocabulary.assessment import FaultClass, Remedy, Urgency
from hpctl.vocabulary.change import (
    ChangeKind,
    ChangeOpened,
    ClusterChange,
    ClusterChangePhase,
    ClusterChangeSignal,
    has_maintenance_window_begun,
    is_maintenance_window,
)
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.node_recovery import MAINTENANCE_BEGINS, MAINTENANCE_OVER
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.recovery import (
    Next,
    RecheckInterval,
    RecoveryDecisionContext,
    RecoveryPhaseMove,
    StepKind,
    StepRetryRule,
    WaitDecision,
    make_recovery_id,
)
from hpctl.vocabulary.slurm_facts import SlurmReservation

_LADDER: Final = (Remedy.NONE, Remedy.ASK_HUMAN)
BEGINS: Final = FaultClass(
    MAINTENANCE_BEGINS,
    "a maintenance window begins",
    Urgency.NOW,
    _LADDER,
    source="hpctl maintenance",
)
OVER: Final = FaultClass(
    MAINTENANCE_OVER,
    "a maintenance window ends",
    Urgency.AFTER_JOBS,
    _LADDER,
    source="hpctl maintenance",
)
VERIFIED_WITHIN: Final = timedelta(days=1)
"""How long after a window a node of it is still verified, where something has kept it from that."""
LOOK_S: Final = 30.0
CLOSE_S: Final = 30.0
"""Seconds that the end of a window waits for its nodes to be closed."""

Window = RecoveryDecisionContext[ClusterChange, SlurmReservation | None]


def make_admin_reservation_windows(
    view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> Iterator[ChangeOpened]:
    """Yield a change for each maintenance reservation that has begun and that none follows yet."""
    if policy.mode is OperatingMode.OBSERVE or view.scheduler.reservations is None:
        return
    for one in view.scheduler.reservations.values():
        if (
            not one.maintenance
            or is_hpctl_reservation(one)
            or f"{ChangeKind.MAINTENANCE} {one.name}" in (view.state.open_changes)
        ):
            continue
        if one.start is None or one.end is None or now >= one.end:
            continue
        before = _find_newest_admin_changed_window(one.name, view)
        if before is None and now < one.start:
            continue
        rid = make_recovery_id("m", one.name, one.start, len(view.state.changes), known=view.state)
        opened = ChangeOpened(
            at=now,
            recovery=rid,
            kind=ChangeKind.MAINTENANCE,
            group=one.name,
            why="reserved with scontrol",
            nodes=one.nodes,
            start=one.start,
            end=one.end,
            own=False,
        )
        if before is not None:
            about = before.opened
            opened = replace(opened, why=about.why, by=about.by, own=about.own, cause=before.id)
        yield opened


def _find_newest_admin_changed_window(name: str, view: PlanningView) -> ClusterChange | None:
    """Return the newest change of a reservation, where an admin has changed the reservation."""
    mine = [
        c
        for c in view.state.changes.values()
        if is_maintenance_window(c) and c.opened.group == name
    ]
    if not mine:
        return None
    return mine[-1] if _has_admin_changed_reservation(mine[-1]) else None


def _has_admin_changed_reservation(window: ClusterChange) -> bool:
    """Return whether a window has ended because an admin changed its reservation: another follows
    it."""
    return bool(window.trail) and window.trail[-1].signal == ClusterChangeSignal.CHANGED


def advance_window(
    window: ClusterChange, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> Next:
    """Return what an open window does next. Total over open phases."""
    if view.scheduler.reservations is None:
        return WaitDecision(
            add_seconds_within_bounds(now, LOOK_S),
            "the reservations are not read yet",
            RecheckInterval.SLOWLY,
        )
    seen = view.scheduler.reservations.get(window.opened.group)
    if seen is not None and not seen.maintenance:
        seen = None
    node = policy.node
    repeat = StepRetryRule(node.step_retry_s, node.step_attempts, node.doubt_window_s)
    c = RecoveryDecisionContext(window, seen, policy, now, LATEST, repeat)
    if (
        window.phase is ClusterChangePhase.ENDING
        and (waits := _wait_for_drains(c, view)) is not None
    ):
        return waits
    return _PHASES[window.phase](c)


def _wait_for_drains(c: Window, view: PlanningView) -> WaitDecision | None:
    """Wait for the nodes to be closed, so that no job comes before they are verified."""
    until = add_seconds_within_bounds(c.rec.since, CLOSE_S)
    if c.facts is None or c.now >= until or not has_maintenance_window_begun(c.rec):
        return None
    still_open = []
    for name in _find_undrained_window_nodes(c.rec, OVER, view):
        if not view.scheduler.nodes[name].closed:
            still_open.append(name)
    if not still_open:
        return None
    return WaitDecision(until, f"{len(still_open)} nodes are to be closed", RecheckInterval.SOON)


def _advance_open_window(c: Window) -> Next:
    about, seen = c.rec.opened, c.facts
    if seen is not None:
        return RecoveryPhaseMove(ClusterChangeSignal.RESERVED, f"reservation {about.group}")
    if c.now >= _find_window_end(c):
        why = "its end passed before slurmctld had its reservation"
        return RecoveryPhaseMove(ClusterChangeSignal.DEADLINE, why)
    if not about.own:
        return RecoveryPhaseMove(ClusterChangeSignal.REFUSED, "the reservation is gone")
    cannot = "slurmctld refuses the reservation"
    return c.take(
        StepKind.MAINTAIN,
        about.group,
        ClusterChangeSignal.REFUSED,
        cannot,
        about.why,
        nodes=about.nodes,
        start=about.start,
        end=about.end,
    )


def _advance_scheduled_window(c: Window) -> Next:
    start = c.rec.opened.start
    begins = start is not None and c.now >= start
    if (
        begins
        and c.facts is None
        and c.now < add_seconds_within_bounds(_find_window_end(c), -END_LEAD_S)
    ):
        # A daemon that runs sees it begin. Whether it was deleted before that is not known.
        return RecoveryPhaseMove(
            ClusterChangeSignal.GONE, "its reservation was deleted while no daemon ran"
        )
    if begins:
        return RecoveryPhaseMove(
            ClusterChangeSignal.BEGAN, f"until {_find_window_end(c):%Y-%m-%d %H:%M:%S} UTC"
        )
    if c.facts is None:
        return RecoveryPhaseMove(
            ClusterChangeSignal.GONE, "its reservation was deleted before it began"
        )
    return _detect_admin_reservation_change(c) or _make_window_wait(c, "the window begins")


def _advance_begun_window(c: Window) -> Next:
    if c.now >= _find_window_end(c) and (
        c.facts is None or c.facts.end is None or c.now >= c.facts.end
    ):
        return RecoveryPhaseMove(ClusterChangeSignal.GONE, "it came to its end")
    if c.facts is None:
        return RecoveryPhaseMove(
            ClusterChangeSignal.GONE, "its reservation was deleted before its end"
        )
    return _detect_admin_reservation_change(c) or _make_window_wait(c, "the window ends")


def _advance_ending_window(c: Window) -> Next:
    if c.facts is None:
        return RecoveryPhaseMove(ClusterChangeSignal.GONE, "its end was asked for")
    cannot = "slurmctld will not delete the reservation"
    return c.take(StepKind.UNRESERVE, c.rec.opened.group, ClusterChangeSignal.REFUSED, cannot)


_PHASES: Final = {
    ClusterChangePhase.OPEN: _advance_open_window,
    ClusterChangePhase.SCHEDULED: _advance_scheduled_window,
    ClusterChangePhase.BEGUN: _advance_begun_window,
    ClusterChangePhase.ENDING: _advance_ending_window,
}


def _find_window_end(c: Window) -> datetime:
    return c.rec.opened.end or EARLIEST


def _detect_admin_reservation_change(c: Window) -> RecoveryPhaseMove | None:
    """Say what an admin has changed of the reservation."""
    about, seen = c.rec.opened, c.facts
    if seen is None or seen.end is None or seen.start is None:
        return None
    changed = []
    if set(seen.nodes) != set(about.nodes):
        changed.append(f"{len(seen.nodes)} nodes")
    if abs(seen.end - _find_window_end(c)) > SAME:
        changed.append(f"its end is {seen.end:%Y-%m-%d %H:%M:%S} UTC")
    moved = about.start is not None and abs(seen.start - about.start) > SAME
    if moved and c.now < seen.start:
        changed.append(f"it begins at {seen.start:%Y-%m-%d %H:%M:%S} UTC")
    if not changed:
        return None
    return RecoveryPhaseMove(
        ClusterChangeSignal.CHANGED, f"changed with scontrol: {', '.join(changed)}"
    )


def _make_window_wait(c: Window, what: str) -> WaitDecision:
    until = find_next_maintenance_window_action_time(
        c.rec, c.policy, c.now
    ) or add_seconds_within_bounds(c.now, LOOK_S)
    return WaitDecision(until, what, RecheckInterval.WOKEN)


def find_window_candidates(
    view: PlanningView, policy: RecoveryPolicy, treated: Collection[NodeName], now: datetime
) -> list[RecoveryCandidate]:
    """Return the nodes that make room for a window, and those to be verified after one."""
    found: dict[NodeName, RecoveryCandidate] = {}
    for window in view.state.changes.values():
        if not is_maintenance_window(window):
            continue
        fault = find_due_window_fault_class(window, policy, now)
        if fault is None:
            continue
        for node in _find_undrained_window_nodes(window, fault, view):
            free = node not in treated or _has_candidate_held_for_maintenance(node, view)
            if free and node not in found and not view.is_quarantined(node):
                found[node] = _make_window_candidate(window, fault, node, view, now)
    return list(found.values())


def _has_candidate_held_for_maintenance(node: NodeName, view: PlanningView) -> bool:
    """Return whether another candidate for a node is certain to be held, by the gate
    `maintenance`."""
    return node in view.begun and node not in view.state.open_nodes


def find_due_window_fault_class(
    window: ClusterChange, policy: RecoveryPolicy, now: datetime
) -> FaultClass | None:
    """Return the reason why the nodes of a window are closed now; None where they are not."""
    start, end = window.opened.start, window.opened.end
    if start is None or end is None:
        return None
    if window.phase is ClusterChangePhase.SCHEDULED:
        due = (
            window.opened.own
            and add_seconds_within_bounds(start, -get_maintenance_window_lead_s(policy))
            <= now
            < start
        )
        return BEGINS if due else None
    if not has_maintenance_window_begun(window):
        return None
    if window.phase in (ClusterChangePhase.BEGUN, ClusterChangePhase.ENDING):
        due = (
            now >= add_seconds_within_bounds(end, -END_LEAD_S)
            or window.phase is ClusterChangePhase.ENDING
        )
        return OVER if due else None
    return OVER if window.ended and now < window.since + VERIFIED_WITHIN else None


def _find_undrained_window_nodes(
    window: ClusterChange, fault: FaultClass, view: PlanningView
) -> Iterator[NodeName]:
    """Yield the nodes of a window that were not closed for it before, as far as Slurm has them."""
    known = [name for name in window.opened.nodes if name in view.scheduler.nodes]
    if fault is BEGINS:
        for name in known:
            rid = view.state.last_of_node.get(name)
            last = view.state.nodes[rid] if rid is not None else None
            asked = last is not None and last.rule == MAINTENANCE_BEGINS
            if not (asked and last is not None and last.opened >= window.opened.at):
                yield name
        return
    due = _find_verification_start(window)
    ran_through = _find_nodes_with_jobs_before_window(window, known, view)
    for name in known:
        rid = view.state.last_of_node.get(name)
        last = view.state.nodes[rid] if rid is not None else None
        looked_after = last is not None and last.ended and last.since >= due
        held = view.begun.get(name)
        followed = held is not None and _has_admin_changed_reservation(window)
        elsewhere = followed or (held is not None and held.name != window.opened.group)
        if not (looked_after or elsewhere or name in ran_through):
            yield name


def _find_verification_start(window: ClusterChange) -> datetime:
    """Return since when what ended on a node of the window counts as its verification."""
    end = window.since if window.ended else window.opened.end or window.since
    return add_seconds_within_bounds(min(end, window.opened.end or end), -END_LEAD_S)


def _find_nodes_with_jobs_before_window(
    window: ClusterChange, nodes: Collection[NodeName], view: PlanningView
) -> frozenset[NodeName]:
    """Return the nodes on which a job runs that was there before the window: they never stopped."""
    start = window.opened.start or EARLIEST
    here = group_jobs_by_node(list(nodes), view.scheduler.jobs)
    found = set()
    for name, jobs in here.items():
        if any(j.running and j.start is not None and j.start < start for j in jobs):
            found.add(name)
    return frozenset(found)


def _make_window_candidate(
    window: ClusterChange, fault: FaultClass, name: NodeName, view: PlanningView, now: datetime
) -> RecoveryCandidate:
    node = view.scheduler.nodes[name]
    about = window.opened
    why = f"maintenance window {about.group}: {about.why}"
    by = about.by or "hpctl"
    return RecoveryCandidate(
        find_node_generation_for_order("return", name, view), node, fault, now, why, by=by
    )
