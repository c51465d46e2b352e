"""Which pause keeps hpctl from a recovery, and since when none does. Pure."""

from collections.abc import Collection
from datetime import datetime

from hpctl.engine.journal.events import PAUSE_ENDED, RequestTaken
from hpctl.engine.journal.state import EngineState
from hpctl.engine.view import PlanningView
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.pause import Pause, find_active_pause_covering_targets, find_latest_pause_end

Scope = tuple[Collection[NodeName], Collection[str]]
"""The nodes and the partitions that something is about."""


def find_recovery_scope(recovery: RecoveryId, view: PlanningView) -> Scope:
    """Return the nodes and partitions that a recovery or a change of capacity is about."""
    state = view.state
    node = state.nodes.get(recovery)
    if node is not None:
        return (node.node,), list_node_partitions((node.node,), view)
    job = state.jobs.get(recovery)
    if job is not None:
        seen = view.scheduler.jobs.get(job.attempt.job)
        nodes = {*job.bad_nodes, *job.ran_on, *(seen.nodes if seen is not None else ())}
        return nodes, {*job.partition.split(","), *list_node_partitions(nodes, view)}
    change = state.changes.get(recovery)
    if change is not None:
        about = change.opened
        nodes = {*about.nodes, *about.released}
        nodes.update([about.node] if about.node is not None else [])
        return nodes, list_node_partitions(nodes, view)
    return (), ()


def list_node_partitions(nodes: Collection[NodeName], view: PlanningView) -> set[str]:
    """Return the partitions of these nodes, as far as Slurm lists the nodes."""
    found: set[str] = set()
    for name in nodes:
        node = view.scheduler.nodes.get(name)
        found.update(node.partitions if node is not None else ())
    return found


def find_pause_covering_recovery(
    recovery: RecoveryId, view: PlanningView, now: datetime
) -> Pause | None:
    """Return the pause in force that covers a recovery or a change; None where none does."""
    nodes, partitions = find_recovery_scope(recovery, view)
    return find_active_pause_covering_targets(view.state.pauses, now, nodes, partitions)


def find_recovery_operational_start_time(
    recovery: RecoveryId, view: PlanningView, now: datetime
) -> datetime | None:
    """Return since when hpctl can look at Slurm and act on a recovery; see `View.able_since`."""
    if not view.state.pauses:
        return view.able_since
    nodes, partitions = find_recovery_scope(recovery, view)
    resumed = find_latest_pause_end(view.state.pauses, now, nodes, partitions)
    known = [at for at in (resumed, view.able_since) if at is not None]
    return max(known, default=None)


def list_pause_end_events(state: EngineState, now: datetime) -> list[RequestTaken]:
    """Return the events that record pauses that have reached their end, once for each."""
    found = []
    for scope in sorted(state.pauses):
        pause = state.pauses[scope]
        if pause.lifted is not None or pause.until is None or now < pause.until:
            continue
        what = "" if pause.whole else f" of {pause.what}"
        answer = f"the pause{what} by {pause.by} has reached its end"
        found.append(RequestTaken(now, 0, PAUSE_ENDED, scope, "hpctl", answer, True, "its own end"))
    return found
