"""What `hpctl maintenance add` and `hpctl maintenance end` are answered. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec
from msgspec import Struct

from hpctl.engine.journal.events import SignalSeen
from hpctl.engine.journal.state import EngineState
from hpctl.engine.kinds import Answered, AnswerRequest
from hpctl.engine.maintenance import is_hpctl_reservation
from hpctl.engine.pauses import list_node_partitions
from hpctl.engine.view import PlanningView, Request
from hpctl.toolkit.bounds import convert_to_utc, make_printable
from hpctl.toolkit.hostlist import HostlistError, expand_hostlist, fold_hostlist
from hpctl.vocabulary.change import (
    ChangeKind,
    ChangeOpened,
    ClusterChange,
    ClusterChangePhase,
    ClusterChangeSignal,
    is_maintenance_window,
)
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.pause import WHY_CHARS, find_active_pause_covering_targets
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.recovery import make_recovery_id

ADD: Final = "maintenance-add"
END: Final = "maintenance-end"
PREFIX: Final = "hpctl-maintenance-"
"""How the name of a window's reservation begins; its id follows."""


class WindowRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """What `hpctl maintenance add` asks for: nodes as a hostlist, a partition, or every node."""

    start: datetime
    end: datetime
    why: str
    nodes: str = ""
    partition: str = ""
    every: bool = False


class WindowRefusedError(ValueError):
    """A window that cannot be planned, with the reason."""


def add_window(
    request: Request, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> Answered:
    """Open the change of a window, or say why not."""
    try:
        asked = msgspec.json.decode(request.detail, type=WindowRequest)
        opened = plan_window(asked, request.by, view, policy, now)
    except (msgspec.MsgspecError, WindowRefusedError) as error:
        return False, str(error), []
    ends = f"{opened.start:%Y-%m-%d %H:%M:%S} to {opened.end:%Y-%m-%d %H:%M:%S} UTC"
    answer = f"{opened.group} is planned for {fold_hostlist(opened.nodes)}, {ends}"
    return True, answer, [opened]


def plan_window(
    asked: WindowRequest, by: str, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> ChangeOpened:
    """Return the opening of a window. Raises WindowRefusedError."""
    start, end = convert_to_utc(asked.start), convert_to_utc(asked.end)
    start, end = start.replace(microsecond=0), end.replace(microsecond=0)
    why = make_printable(asked.why)[:WHY_CHARS].strip()
    _check_window_times(start, end, now)
    if not why:
        raise WindowRefusedError("a window needs a reason: --why")
    if policy.mode is OperatingMode.OBSERVE:
        raise WindowRefusedError(
            "in mode observe hpctl writes nothing into Slurm: reserve the nodes with scontrol"
        )
    if not view.current:
        raise WindowRefusedError("Slurm cannot be read now; ask again in some seconds")
    nodes = _find_requested_nodes(asked, view)
    _check_nodes_allow_maintenance(nodes, view, policy, now)
    _check_window_overlap(nodes, start, end, view)
    rid = make_recovery_id("m", *nodes, start, end, len(view.state.changes), known=view.state)
    return ChangeOpened(
        at=now,
        recovery=rid,
        kind=ChangeKind.MAINTENANCE,
        group=f"{PREFIX}{rid.removeprefix('m-')}",
        why=why,
        nodes=nodes,
        start=max(start, now.replace(microsecond=0)),
        end=end,
        by=by or "operator",
    )


def _check_window_times(start: datetime, end: datetime, now: datetime) -> None:
    if end <= now:
        raise WindowRefusedError(f"the window's end, {end:%Y-%m-%d %H:%M:%S} UTC, is past")
    if end <= start:
        raise WindowRefusedError(
            f"the window's end, {end:%Y-%m-%d %H:%M:%S} UTC, is not after its beginning,"
            f" {start:%Y-%m-%d %H:%M:%S} UTC (+6h means six hours from now)"
        )
    late = (now - start).total_seconds()
    if late > 60:
        raise WindowRefusedError(
            f"the window's beginning, {start:%Y-%m-%d %H:%M:%S} UTC, is past: `--from now`"
        )


def _find_requested_nodes(asked: WindowRequest, view: PlanningView) -> tuple[NodeName, ...]:
    """Return the nodes that a window is of. Raises WindowRefusedError."""
    known = view.scheduler.nodes
    if asked.every:
        return tuple(sorted(known))
    if asked.partition:
        found = sorted(name for name, node in known.items() if asked.partition in node.partitions)
        if not found:
            raise WindowRefusedError(f"Slurm knows no partition {asked.partition!r} with nodes")
        return tuple(found)
    try:
        named = sorted({NodeName(name) for name in expand_hostlist(asked.nodes)})
    except HostlistError as error:
        raise WindowRefusedError(str(error)) from error
    missing = [name for name in named if name not in known]
    if missing:
        raise WindowRefusedError(f"Slurm knows no node {missing[0]!r}")
    if not named:
        raise WindowRefusedError("a window needs nodes")
    return tuple(named)


def _check_nodes_allow_maintenance(
    nodes: tuple[NodeName, ...], view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> None:
    """Raise WindowRefusedError where hpctl may do nothing to a node now, or never."""
    if view.stopped:
        raise WindowRefusedError(f"{view.stopped}: nothing is done")
    pause = find_active_pause_covering_targets(
        view.state.pauses, now, nodes, list_node_partitions(nodes, view)
    )
    if pause is not None:
        raise WindowRefusedError(f"{pause.text}; lift it first: `{pause.lift_command}`")
    known = view.scheduler.nodes
    outside = [n for n in nodes if policy.partitions.isdisjoint(known[n].partitions)]
    if policy.partitions and outside:
        raise WindowRefusedError(
            f"{fold_hostlist(outside)}: in none of the partitions that the configuration allows"
        )


def _check_window_overlap(
    nodes: tuple[NodeName, ...], start: datetime, end: datetime, view: PlanningView
) -> None:
    """Raise WindowRefusedError where another window, or maintenance reservation, has a node
    then."""
    taken = [
        (one.opened.group, one.opened.nodes, one.opened.start, one.opened.end)
        for one in view.state.windows
    ]
    for one in (view.scheduler.reservations or {}).values():
        if one.maintenance and not is_hpctl_reservation(one):
            taken.append((one.name, one.nodes, one.start, one.end))
    for name, held, since, until in taken:
        both = sorted({*nodes}.intersection(held))
        if not both or since is None or until is None:
            continue
        if since < end and start < until:
            raise WindowRefusedError(
                f"{name} has {fold_hostlist(both)} from {since:%Y-%m-%d %H:%M:%S} to"
                f" {until:%Y-%m-%d %H:%M:%S} UTC: windows of a node do not overlap"
            )


def end_window(
    request: Request,
    view: PlanningView,
    policy: RecoveryPolicy,  # noqa: ARG001
    now: datetime,
) -> Answered:
    """Have an open window end, or say why not."""
    window = find_window(request.target, view.state)
    if window is None:
        names = [one.opened.group for one in view.state.windows]
        return False, f"no window {request.target!r}; open: {', '.join(names) or 'none'}", []
    about = window.opened
    if window.ended:
        return False, f"{about.group} has ended already ({window.phase})", []
    if not about.own:
        command = f"scontrol delete ReservationName={about.group}"
        return False, f"{about.group} is an admin's own reservation: `{command}` ends it", []
    if window.phase is ClusterChangePhase.ENDING:
        return True, f"{about.group} is ending", []
    partitions = list_node_partitions(about.nodes, view)
    pause = find_active_pause_covering_targets(view.state.pauses, now, about.nodes, partitions)
    if pause is not None:
        return False, f"{pause.text}; lift it first: `{pause.lift_command}`", []
    why = f"{request.by or 'an operator'} asked for its end"
    signal = SignalSeen(now, window.id, ClusterChangeSignal.END_ASKED, why)
    if window.phase is ClusterChangePhase.BEGUN:
        answer = f"{about.group} ends; its nodes are verified before they serve"
    else:
        answer = f"{about.group} ends before it has begun: nodes drained for it are verified"
    return True, answer, [signal]


def find_window(name: str, state: EngineState) -> ClusterChange | None:
    """Return the newest window of this id or reservation; None where there is none."""
    found = [
        one
        for one in state.changes.values()
        if is_maintenance_window(one)
        and name in (one.id, one.opened.group, one.opened.group[len(PREFIX) :])
    ]
    followed = [
        one
        for one in state.changes.values()
        if found and _is_window_of_same_reservation(one, found[-1])
    ]
    return [*found, *followed][-1] if found else None


def _is_window_of_same_reservation(one: ClusterChange, other: ClusterChange) -> bool:
    return is_maintenance_window(one) and one.opened.group == other.opened.group


REQUESTS: Final[Mapping[str, AnswerRequest]] = {ADD: add_window, END: end_window}
