"""The cluster and the daemon at one time: what `hpctl status` and the page show, as a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from hpctl.engine import views
from hpctl.engine.attention import (
    PERSON_TASKS,
    PersonTask,
    drop_problems_already_shown,
    list_operator_tasks,
)
from hpctl.engine.completing import describe_completing_job, find_stuck_completing_jobs
from hpctl.engine.held_jobs import find_slurm_held_jobs
from hpctl.engine.node_waits import describe_node_wait_for_job
from hpctl.engine.out_of_service import (
    OutOfServiceCause,
    OutOfServiceNode,
    find_escalated_node_recoveries,
    find_nodes_out_of_service,
    format_slurm_node_state,
)
from hpctl.engine.power_saving import describe_node_power_saving, has_node_failed_to_resume
from hpctl.engine.timeline import format_recovery_or_change_headline
from hpctl.engine.untreated import (
    NodeWithoutActiveRecovery,
    describe_node_without_active_recovery,
    find_event_resolving_unrecovered_node,
    find_nodes_without_active_recovery,
)
from hpctl.engine.world import (
    World,
    describe_instance_status_message,
    has_recovery_awaiting_cloud,
    list_gate_blocks_by_target,
)
from hpctl.engine.world_reader import WorldReader
from hpctl.faults.reachability import (
    CHECKS,
    find_node_unreachable_symptom,
    is_intentionally_unreachable,
)
from hpctl.faults.slurm_reasons import describe_action_for_drained_node
from hpctl.toolkit import output, view_copy
from hpctl.toolkit.bounds import add_seconds_within_bounds, clamp_duration
from hpctl.toolkit.declared_view import (
    Column,
    Columns,
    ItemTextLines,
    JsonOnly,
    LabeledValueRow,
    LabeledValueTable,
    Layout,
    RowTable,
    TextLine,
)
from hpctl.toolkit.durations import format_duration
from hpctl.toolkit.hostlist import format_node_names
from hpctl.toolkit.output import ExitCode
from hpctl.toolkit.tables import (
    BAD,
    GOOD,
    WARN,
    format_age,
    format_state_counts,
    join_styled_texts,
    style_text,
)
from hpctl.vocabulary.assessment import NodeCondition
from hpctl.vocabulary.change import ClusterChange
from hpctl.vocabulary.hang import ENDED_GATE, HANG_GATE, OTHERS_GATE
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.pause import find_active_cluster_pause, find_active_pauses
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.slurm_facts import SlurmNode

if TYPE_CHECKING:
    from rich.text import Text

    from hpctl.engine.config import Config
    from hpctl.engine.journal.events import GateBlocked
    from hpctl.engine.journal.rows import StandbyInfo


AS_NOW = timedelta(seconds=1)
"""A younger reading of Slurm is called one of now."""


LATELY = timedelta(hours=1)
"""So long a change of capacity that has ended is still shown."""


STANDBY_LOST_S = 30.0
"""A standby says four times in this time, at the least, that it lives."""


_OUT_OF_SERVICE = frozenset({"DRAIN", "FAIL", "MAINTENANCE", "MAINT"})
_POWER_SAVING = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP"})
_COUNTED = _OUT_OF_SERVICE | _POWER_SAVING
"""Flags by which nodes are counted apart."""


_INSIDE = (RunAction.PROCESS, RunAction.STEP)


class DaemonStatusView(Struct, frozen=True):
    """The leader by its own word. `alive`: its lease still lasts. `started`: since when it leads.
    `epoch` counts leaders."""

    alive: bool
    pid: int
    host: str
    version: str
    mode: str
    started: datetime
    heartbeat: datetime
    last_cycle_s: float
    trouble: str
    epoch: int = 0
    address: str = ""


class StandbyDaemonView(Struct, frozen=True):
    """A daemon that takes over where the leader ends. `behind`: events that it has not read yet;
    `silent_s`: seconds since it said so."""

    host: str
    address: str
    pid: int
    version: str
    heartbeat: datetime
    behind: int
    silent_s: float

    @property
    def is_lost(self) -> bool:
        """Return whether a head has been silent for so long that it is taken for dead."""
        return self.silent_s > STANDBY_LOST_S


class NodeStateCounts(Struct, frozen=True):
    """How many nodes: by Slurm's state (null where unreadable) and by assessment."""

    slurm_total: int | None
    by_state: dict[str, int]
    by_condition: dict[str, int]


class OutOfServiceNodesView(Struct, frozen=True):
    """Nodes that Slurm gives no work to, for one reason. `by`: who has them in hand, or what keeps
    them out of service; `problem`: a person has to know of it."""

    nodes: tuple[str, ...]
    state: str
    by: str
    why: str
    problem: bool

    columns: ClassVar[Columns] = (
        Column("NODES", lambda row: format_node_names(row.nodes), fold=True),
        Column("SLURM", "state", fold=True),
        Column("BY", "by"),
        Column("WHY", "why", fold=True),
    )
    json_only: ClassVar[JsonOnly] = ("problem",)


class ClusterDataAgesView(Struct, frozen=True):
    """How old the facts are."""

    slurm_as_of: datetime | None
    slurm_error: str
    agents: int
    agents_silent: int
    oldest_report: datetime | None
    newest_report: datetime | None


def _format_daemon_status(view: ClusterStatusView) -> Text:
    daemon, now = view.daemon, view.as_of
    if daemon is None:
        return style_text("never ran here", WARN)
    text = style_text("alive" if daemon.alive else "SILENT", GOOD if daemon.alive else BAD)
    text.append(f" (pid {daemon.pid} on {daemon.host}, hpctl {daemon.version}", "default")
    text.append(f"; leads for {format_age(daemon.started, now).removesuffix(' ago')}", "default")
    text.append(f", epoch {daemon.epoch}", "default")
    text.append(f"; heartbeat {format_age(daemon.heartbeat, now)}", "default")
    text.append(f", last cycle {daemon.last_cycle_s * 1000:.0f} ms)", "default")
    return text


def _format_standby_daemons(view: ClusterStatusView) -> Text:
    """Return one line for each."""
    return join_styled_texts("\n", [_format_standby_daemon(one) for one in view.standbys])


def _format_standby_daemon(one: StandbyDaemonView) -> Text:
    text = style_text("LOST", BAD) if one.is_lost else style_text("ready", GOOD)
    lag = f"{one.behind} events and {one.silent_s:.1f} s behind"
    text.append(f" (pid {one.pid} on {one.host}, hpctl {one.version}; {lag})", "default")
    return text


def _format_total_node_count(view: ClusterStatusView) -> Text:
    total = view.nodes.slurm_total
    return style_text("unknown", WARN) if total is None else style_text(str(total))


def _format_node_state_counts(view: ClusterStatusView) -> Text | str:
    nodes = view.nodes
    return "" if nodes.slurm_total is None else format_state_counts(nodes.by_state)


def _format_cluster_data_ages(view: ClusterStatusView) -> Text:
    facts, now = view.facts, view.as_of
    text = style_text(_format_slurm_data_age(facts.slurm_as_of, now))
    text.append(f"; {facts.agents} agents")
    if facts.agents:
        text.append(f", heard {format_age(facts.newest_report, now)}")
        text.append(f" (longest: {format_age(facts.oldest_report, now)})")
    if facts.agents_silent:
        text.append(f", {facts.agents_silent} silent", WARN)
    return text


def _format_slurm_data_age(as_of: datetime | None, now: datetime) -> str:
    if as_of is None:
        return "Slurm unreadable"
    return f"Slurm read {format_age(as_of, now)}" if now - as_of > AS_NOW else "Slurm read now"


def _has_no_recoveries_tasks_or_problems(view: ClusterStatusView) -> bool:
    """Return whether there is nothing to look at."""
    treated = view.node_recoveries or view.job_recoveries
    return not (treated or view.person_tasks or view.problems or view.unknowns)


class ClusterStatusView(Struct, frozen=True):
    """What `hpctl status` shows. `problems` make exit code 1, `unknowns` alone 3.

    `person_tasks`: what only a person can do, with the commands. `waiting_for_a_person`: the
    escalated recoveries among it. `changes` of capacity: autoscaling and spares, under way or ended
    within the last hour. `out_of_service`: every node that Slurm gives no work to, once, and why.
    `paused_by`: who paused the whole cluster; empty where none did. `pauses`: all pauses in force.
    """

    as_of: datetime
    cluster: str
    mode: str
    paused_by: str
    stopped: str
    daemon: DaemonStatusView | None
    nodes: NodeStateCounts
    facts: ClusterDataAgesView
    node_recoveries: tuple[views.NodeRecoveryView, ...]
    job_recoveries: tuple[views.JobRecoveryView, ...]
    holds: tuple[views.GateBlockView, ...]
    waiting_for_a_person: tuple[views.NodeRecoveryView, ...]
    problems: tuple[str, ...]
    unknowns: tuple[str, ...]
    changes: tuple[views.CapacityChangeView, ...] = ()
    standbys: tuple[StandbyDaemonView, ...] = ()
    out_of_service: tuple[OutOfServiceNodesView, ...] = ()
    person_tasks: tuple[PersonTask, ...] = ()
    pauses: tuple[views.AutomationPauseView, ...] = ()
    windows: tuple[views.MaintenanceWindowView, ...] = ()

    json_only: ClassVar[JsonOnly] = ("waiting_for_a_person", "paused_by")
    layout: ClassVar[Layout] = (
        LabeledValueTable(
            facts=(
                LabeledValueRow("cluster", lambda view: view.cluster or "(no cloud cluster)"),
                LabeledValueRow("daemon", _format_daemon_status),
                LabeledValueRow("standby", _format_standby_daemons),
                LabeledValueRow("mode", "mode"),
                LabeledValueRow(
                    "stopped",
                    lambda view: f"{view.stopped}: nothing is done" if view.stopped else "",
                    style=WARN,
                ),
                LabeledValueRow("nodes", _format_total_node_count),
                LabeledValueRow("  in Slurm", _format_node_state_counts),
                LabeledValueRow(
                    "  health", lambda view: format_state_counts(view.nodes.by_condition)
                ),
                LabeledValueRow("facts", _format_cluster_data_ages),
            )
        ),
        PERSON_TASKS,
        RowTable("pauses", title="Paused"),
        RowTable("node_recoveries", title="Nodes in treatment"),
        RowTable("job_recoveries", title="Jobs in recovery"),
        views.HOLDS,
        RowTable("out_of_service", title="Out of service"),
        RowTable("windows", title="Maintenance windows (times in UTC)"),
        RowTable("changes", title="Capacity: autoscaling and spares"),
        ItemTextLines("problems", title="Problems", style=BAD, indent=2),
        ItemTextLines("unknowns", title="Cannot tell", style=WARN, indent=2),
        TextLine(
            "Nothing is in treatment and nothing waits for a person.",
            style=GOOD,
            gap=True,
            when=_has_no_recoveries_tasks_or_problems,
        ),
    )

    @property
    def other_problems(self) -> list[str]:
        """Return the problems that no person's task, open recovery or hold shows."""
        shown = {rec.id for rec in self.node_recoveries}
        shown.update(rec.id for rec in self.job_recoveries)
        shown.update(hold.shown for hold in self.holds)
        for task in self.person_tasks:
            shown.update((task.explain, *task.targets))
        return drop_problems_already_shown(self.problems, shown)


def read_cluster_status(config: Config) -> ClusterStatusView:
    """Look once at everything that the screen tells of."""
    return read_cluster_status_with_reader(WorldReader(config, recent=True))


def read_cluster_status_with_reader(reader: WorldReader) -> ClusterStatusView:
    """Look again at everything that the screen tells of."""
    now = output.get_current_utc_time()
    world = reader.read(now, slurm=True)
    if has_recovery_awaiting_cloud(world):
        world = reader.read(now, slurm=True, cloud=True)
    return make_cluster_status_view(world)


def make_cluster_status_view(w: World) -> ClusterStatusView:
    """Return the screen as a value."""
    nodes, jobs = views.select_node_and_job_recoveries(w.state, ended=False, since=None)
    handed_over = tuple(find_escalated_node_recoveries(w))
    closed = find_nodes_out_of_service(w)
    return ClusterStatusView(
        as_of=w.now,
        cluster=w.cluster,
        mode=w.daemon.mode if w.daemon and w.is_daemon_alive else w.policy.mode.value,
        paused_by=whole.by if (whole := find_active_cluster_pause(w.state.pauses, w.now)) else "",
        stopped=w.stopped,
        daemon=view_copy.build_view_from_source(DaemonStatusView, w.daemon, alive=w.is_daemon_alive)
        if w.daemon
        else None,
        nodes=_count_node_states(w),
        facts=_make_cluster_data_ages_view(w),
        node_recoveries=tuple(
            views.make_node_recovery_view(rec, _describe_job_awaited_by_recovery(w, rec))
            for rec in nodes
        ),
        job_recoveries=tuple(views.make_job_recovery_view(r, w.state) for r in jobs),
        holds=tuple(views.make_gate_block_view(hold) for hold in _list_gate_blocks(w)),
        waiting_for_a_person=tuple(map(views.make_node_recovery_view, handed_over)),
        problems=tuple(_list_unresolved_cluster_problems(w, handed_over, closed)),
        unknowns=tuple(_list_unavailable_status_sources(w)),
        changes=tuple(map(views.make_capacity_change_view, _list_recent_capacity_changes(w))),
        standbys=make_standby_daemon_views(w.standbys, w.now),
        out_of_service=tuple(_group_out_of_service_nodes(closed)),
        person_tasks=tuple(list_operator_tasks(w, handed_over, closed)),
        windows=tuple(views.make_maintenance_window_view(one, w.state) for one in w.state.windows),
        pauses=tuple(
            map(views.make_automation_pause_view, find_active_pauses(w.state.pauses, w.now))
        ),
    )


def make_standby_daemon_views(
    found: Iterable[StandbyInfo], now: datetime
) -> tuple[StandbyDaemonView, ...]:
    """Return the standbys, and how long each has been silent."""
    silent = ((one, max(0.0, (now - one.heartbeat).total_seconds())) for one in found)
    return tuple(
        view_copy.build_view_from_source(StandbyDaemonView, one, silent_s=round(s, 1))
        for one, s in silent
    )


def _list_recent_capacity_changes(w: World) -> list[ClusterChange | NodeRecovery]:
    """Changes of capacity under way, and those that ended a moment ago; newest first."""
    found = reversed(views.list_capacity_changes(w.state))
    return [c for c in found if not c.ended or w.now - c.since <= LATELY]


def _group_out_of_service_nodes(closed: list[OutOfServiceNode]) -> list[OutOfServiceNodesView]:
    """Return the nodes out of service, those of one reason in one row; problems first."""
    rows: dict[tuple[bool, OutOfServiceCause, str, str], list[str]] = {}
    for one in closed:
        key = (not one.problem, one.by, format_slurm_node_state(one.node), one.why)
        rows.setdefault(key, []).append(one.node.name)
    found = []
    for key, names in sorted(rows.items(), key=lambda row: row[0][0]):
        fine, by, state, why = key
        found.append(OutOfServiceNodesView(tuple(names), state, by.value, why, not fine))
    return found


def _list_gate_blocks(w: World) -> list[GateBlocked]:
    """Return what gates block, each with the reason of the last cycle."""
    return list(list_gate_blocks_by_target(w).values())


def _count_node_states(w: World) -> NodeStateCounts:
    conditions = Counter(a.condition for a in w.assessments.values())
    states: Counter[str] = Counter()
    if w.slurm is not None:
        kinds = Counter((node.state, node.flags) for node in w.slurm.nodes.values())
        for (state, flags), count in kinds.items():
            states["+".join([state, *sorted(flags & _COUNTED)])] += count
        unheard = len(w.slurm.nodes.keys() - w.assessments.keys())
        if unheard:
            conditions[NodeCondition.UNKNOWN] += unheard
    total = None if w.slurm is None else len(w.slurm.nodes)
    health = {condition.value: count for condition, count in sorted(conditions.items())}
    return NodeStateCounts(total, dict(sorted(states.items())), health)


def _make_cluster_data_ages_view(w: World) -> ClusterDataAgesView:
    heard = [h.last_heard for h in w.health.values()]
    awaited = w.now - clamp_duration(w.policy.ages.report_s)
    stopped = {n.name for n in w.slurm.nodes.values() if n.is_powered_down} if w.slurm else set()
    silent = sum(h.last_heard < awaited for name, h in w.health.items() if name not in stopped)
    return ClusterDataAgesView(
        slurm_as_of=w.slurm.as_of if w.slurm else None,
        slurm_error=w.slurm_error,
        agents=len(heard),
        agents_silent=silent,
        oldest_report=min(heard, default=None),
        newest_report=max(heard, default=None),
    )


def _list_unresolved_cluster_problems(
    w: World, handed_over: tuple[NodeRecovery, ...], closed: list[OutOfServiceNode]
) -> list[str]:
    """Return every fault that is not over, one line each: whom it concerns, what it is, what to
    read."""
    found = [f"{r.node} waits for a person: hpctl explain {r.id}" for r in handed_over]
    nodes, jobs = views.select_node_and_job_recoveries(w.state, ended=False, since=None)
    planned = {rec.node for rec in nodes if _is_in_planned_maintenance(w, rec)}
    found += [_describe_open_recovery(w, rec) for rec in nodes if rec.node not in planned]
    found += [f"{format_recovery_or_change_headline(r)} hpctl explain {r.id}" for r in jobs]
    covered = {r.node for r in (*handed_over, *nodes)} | set(w.state.holds)
    seen_at = {c.node.name: f"{c.node.name}: {c.why}; not treated yet" for c in w.candidates}
    shown = dict(_list_unreachable_nodes(w)) | seen_at
    found += [f"{why}: hpctl explain {n}" for n, why in sorted(shown.items()) if n not in covered]
    known = {*covered, *shown}
    untreated = [one for one in find_nodes_without_active_recovery(w) if one.name not in known]
    found += [_format_problem_without_active_recovery(one) for one in untreated]
    known.update(one.name for one in untreated)
    found += [
        _describe_out_of_service_node(one)
        for one in closed
        if one.node.name not in known and one.problem
    ]
    found += [f"{why}: hpctl explain {job}" for job, why in _list_jobs_restarted_by_supervisor(w)]
    found += _describe_jobs_stuck_completing(w)
    found += _describe_held_jobs(w)
    for name, hold in sorted(w.state.holds.items()):
        if hold.gate == ENDED_GATE or (hold.gate == "maintenance" and name in planned):
            continue
        what = f"job {hold.shown}" if name.isdecimal() else name
        if hold.gate in (HANG_GATE, OTHERS_GATE):
            found.append(f"{what} hangs: hpctl explain {hold.shown}")
            continue
        found.append(f"{what} is held back by the gate {hold.gate}: hpctl explain {hold.shown}")
    if w.daemon is not None and w.is_daemon_alive and w.daemon.trouble:
        found.append(f"the daemon reports trouble: {w.daemon.trouble}")
    if w.full_disk:
        found.append(w.full_disk)
    for one in make_standby_daemon_views(w.standbys, w.now):
        if one.is_lost:
            silent = (
                f"the standby on {one.host} has been silent for {format_duration(one.silent_s)}"
            )
            found.append(f"{silent}: systemctl status hpctl-daemon, there")
    return found


def _is_in_planned_maintenance(w: World, rec: NodeRecovery) -> bool:
    """Return whether a node is closed for a maintenance window only, as planned."""
    judged = w.assessments.get(rec.node)
    return rec.is_for_maintenance and (
        judged is None or judged.condition is not NodeCondition.FAULTY
    )


def _describe_open_recovery(w: World, rec: NodeRecovery) -> str:
    """Say what is treated, its phase, and what it waits for."""
    waits = _describe_job_awaited_by_recovery(w, rec)
    waits = f"Waits for {waits}." if waits else ""
    parts = [
        format_recovery_or_change_headline(rec),
        waits,
        describe_instance_status_message(w, rec),
        f"hpctl explain {rec.id}",
    ]
    return " ".join(filter(None, parts))


def _format_problem_without_active_recovery(one: NodeWithoutActiveRecovery) -> str:
    """Say how a node is that an operator keeps as it is, and what ends that."""
    ends = f"It waits for {find_event_resolving_unrecovered_node(one).what}."
    return f"{describe_node_without_active_recovery(one)}. {ends} hpctl explain {one.name}"


def _describe_out_of_service_node(one: OutOfServiceNode) -> str:
    name, state = one.node.name, format_slurm_node_state(one.node)
    return f"{name} is out of service ({state}): {one.why}: hpctl explain {name}"


def _describe_job_awaited_by_recovery(w: World, rec: NodeRecovery) -> str:
    """Return the job that a recovery waits for, in words."""
    return describe_node_wait_for_job(rec, w.slurm, w.policy, w.now)


def _describe_jobs_stuck_completing(w: World) -> list[str]:
    """Return the jobs that have been COMPLETING for too long, and the nodes that keep them so."""
    jobs = w.slurm.jobs.values() if w.slurm else ()
    late = find_stuck_completing_jobs(jobs, w.policy.job.completing_shown_s, w.now)
    return [f"{describe_completing_job(job, w.now)}: hpctl explain {job.shown}" for job in late]


def _describe_held_jobs(w: World) -> list[str]:
    """Return the registered jobs that Slurm holds, and why: they start only once released."""
    return [
        f"job {one.job.shown} is held by Slurm {one.why}: hpctl explain {one.job.shown}"
        for one in find_slurm_held_jobs(w)
    ]


def _list_jobs_restarted_by_supervisor(w: World) -> list[tuple[JobId, str]]:
    """Return the jobs whose own supervisor reported a moment ago that it restarts them, and why.

    Their next start is not reported: each is listed as long as the daemon waits for a supervisor.
    """
    found = []
    for job, reports in sorted(w.state.reports.items()):
        last = reports[-1].report
        if last.trouble is None or last.action not in _INSIDE:
            continue
        job_now = w.slurm.jobs.get(job) if w.slurm else None
        runs = job_now is not None and job_now.running and job_now.restarts == last.restarts
        late = w.now > add_seconds_within_bounds(reports[-1].at, w.policy.job.supervisor_grace_s)
        if not runs or late:
            continue
        if job not in w.state.open_jobs:
            found.append((job, f"Job {job}: {last.trouble.why}; its own supervisor restarts it"))
    return found


def _list_unreachable_nodes(w: World) -> list[tuple[NodeName, str]]:
    """The nodes in service that Slurm or this head node cannot reach, and how that shows."""
    found = []
    for name, node in w.slurm.nodes.items() if w.slurm else ():
        judged = w.assessments.get(name)
        if has_node_failed_to_resume(node):
            found.append((name, f"{name}: {describe_node_power_saving(node)}"))
            continue
        if judged is not None and not judged.findings and not judged.why:
            continue
        if node.closed and parse_recovery_id_from_reason(node.reason) is not None:
            continue
        instance = w.joined.instances.get(name)
        if judged is None:
            sign = find_node_unreachable_symptom(node, instance)
            shown = "+".join([node.state, *sorted(node.flags)])
            if sign:
                says = f"{name}: Slurm calls it {shown} ({node.reason})"
                found.append((name, f"{says}{_format_advice_for_closed_node(node)}"))
        elif any(f.check in CHECKS for f in judged.findings) or (
            judged.why.startswith("agent-silent")
            and not is_intentionally_unreachable(node, instance)
        ):
            found.append((name, f"{name}: {judged.why}{_format_advice_for_closed_node(node)}"))
    return found


def _format_advice_for_closed_node(node: SlurmNode) -> str:
    """Return what a person does about a node that Slurm itself closed, after what is wrong."""
    advice = describe_action_for_drained_node(node)
    return f"; {advice}" if advice else ""


def _list_unavailable_status_sources(w: World) -> list[str]:
    found = []
    if w.daemon is None:
        found.append("no daemon has run on this state directory: hpctl daemon run")
    elif not w.is_daemon_alive and w.shared:
        since = f"no leader since {w.daemon.heartbeat:%H:%M:%S} UTC, nothing is done"
        last = f"the last was {w.daemon.host} (pid {w.daemon.pid})"
        found.append(f"{since}; {last}: systemctl status hpctl-daemon, on every head node")
    elif not w.is_daemon_alive:
        silent = format_duration((w.now - w.daemon.heartbeat).total_seconds())
        found.append(
            f"the daemon on {w.daemon.host} (pid {w.daemon.pid}) has been silent for {silent}: "
            "systemctl status hpctl-daemon"
        )
    if w.slurm is None:
        found.append(f"Slurm cannot be read: {w.slurm_error}")
    return found


def choose_cluster_status_exit_code(view: ClusterStatusView) -> ExitCode:
    """Return a problem that is known outweighs what is not known."""
    if view.problems:
        return ExitCode.PROBLEM
    return ExitCode.CANNOT_TELL if view.unknowns else ExitCode.FINE
