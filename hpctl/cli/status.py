"""`hpctl status`: the cluster and the daemon in one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from hpctl.cli import output, views
from hpctl.cli.gather import Followed, World, cloud_says, gather, waits_for_cloud, with_cloud
from hpctl.cli.output import Exit
from hpctl.cli.tables import BAD, DIM, GOOD, WARN, ago, counted, grid, heading, indented, styled
from hpctl.core.bounds import later
from hpctl.core.change import Change
from hpctl.core.marks import mark_of
from hpctl.core.model import JobId, NodeName, reason_owner
from hpctl.core.node_recovery import NodePhase, NodeRecovery
from hpctl.core.plan_runs import HANG_GATE, OTHERS_GATE
from hpctl.core.reach import CHECKS, left_alone, sign_of
from hpctl.core.run_policy import Action
from hpctl.core.timeline import duration, headline

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from hpctl.config import Config
    from hpctl.store.rows import StandbyInfo

LOOKS_BACK = timedelta(days=1)
"""Job recoveries that ended, and reports of supervisors, before that are not read."""
LATELY = timedelta(hours=1)
"""So long a change of capacity that has ended is still shown."""
STANDBY_LOST_S = 30.0
"""A standby says four times in this time, at the least, that it lives."""
_INSIDE = (Action.PROCESS, Action.STEP)


class DaemonView(Struct, frozen=True):
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


class StandbyView(Struct, frozen=True):
    """A daemon that takes over where the leader ends. `behind`: events that it has not read yet;
    `silent_s`: seconds since it said so."""

    host: str
    address: str
    pid: int
    version: str
    heartbeat: datetime
    behind: int
    silent_s: float


class NodeCounts(Struct, frozen=True):
    """How many nodes: by Slurm's state (null where unreadable) and by assessment."""

    slurm_total: int | None
    by_state: dict[str, int]
    by_condition: dict[str, int]


class FactsView(Struct, frozen=True):
    """How old the facts are."""

    slurm_as_of: datetime | None
    slurm_error: str
    agents: int
    agents_silent: int
    oldest_report: datetime | None
    newest_report: datetime | None


class StatusView(Struct, frozen=True):
    """What `hpctl status` shows. `problems` make exit code 1, `unknowns` alone 3.

    `changes` of capacity: autoscaling and spares, under way or ended within the last hour.
    """

    as_of: datetime
    cluster: str
    mode: str
    paused_by: str
    stopped: str
    daemon: DaemonView | None
    nodes: NodeCounts
    facts: FactsView
    node_recoveries: tuple[views.NodeRecoveryView, ...]
    job_recoveries: tuple[views.JobRecoveryView, ...]
    holds: tuple[views.HoldView, ...]
    waiting_for_a_person: tuple[views.NodeRecoveryView, ...]
    problems: tuple[str, ...]
    unknowns: tuple[str, ...]
    changes: tuple[views.ChangeView, ...] = ()
    standbys: tuple[StandbyView, ...] = ()


def seen(config: Config) -> StatusView:
    """Look once at everything that the screen tells of."""
    now = output.now()
    world = gather(config, now, slurm=True, journal=Followed(now - LOOKS_BACK))
    return status_view(with_cloud(world, config) if waits_for_cloud(world) else world)


def status_view(w: World) -> StatusView:
    """The screen as a value."""
    nodes, jobs = views.chosen(w.state, ended=False, since=None)
    handed_over = tuple(_handed_over(w))
    return StatusView(
        as_of=w.now,
        cluster=w.cluster,
        mode=w.daemon.mode if w.daemon and w.daemon_alive else w.policy.mode.value,
        paused_by=w.state.paused_by,
        stopped=w.stopped,
        daemon=views.copied(DaemonView, w.daemon, alive=w.daemon_alive) if w.daemon else None,
        nodes=_counts(w),
        facts=_facts(w),
        node_recoveries=tuple(map(views.node_recovery_view, nodes)),
        job_recoveries=tuple(views.job_recovery_view(r, w.state) for r in jobs),
        holds=tuple(views.hold_view(w.state.holds[t]) for t in sorted(w.state.holds)),
        waiting_for_a_person=tuple(map(views.node_recovery_view, handed_over)),
        problems=tuple(_problems(w, handed_over)),
        unknowns=tuple(_unknowns(w)),
        changes=tuple(map(views.change_view, _changes(w))),
        standbys=standby_views(w.standbys, w.now),
    )


def standby_views(found: Iterable[StandbyInfo], now: datetime) -> tuple[StandbyView, ...]:
    """The standbys, and how long each has been silent."""
    silent = ((one, max(0.0, (now - one.heartbeat).total_seconds())) for one in found)
    return tuple(views.copied(StandbyView, one, silent_s=round(s, 1)) for one, s in silent)


def _changes(w: World) -> list[Change]:
    """Changes of capacity under way, and those that ended a moment ago; newest first."""
    shown = [c for c in w.state.changes.values() if not c.ended or w.now - c.since <= LATELY]
    return sorted(shown, key=lambda c: (c.opened.at, c.id), reverse=True)


def _counts(w: World) -> NodeCounts:
    conditions = Counter(a.condition.value for a in w.assessments.values())
    states: Counter[str] = Counter()
    if w.slurm is not None:
        for node in w.slurm.nodes.values():
            states["+".join([node.state, *sorted(node.flags & {"DRAIN", "FAIL"})])] += 1
        unheard = len(set(w.slurm.nodes) - set(w.assessments))
        if unheard:
            conditions["unknown"] += unheard
    total = None if w.slurm is None else len(w.slurm.nodes)
    return NodeCounts(total, dict(sorted(states.items())), dict(sorted(conditions.items())))


def _facts(w: World) -> FactsView:
    heard = [h.last_heard for h in w.health.values()]
    silent = sum(later(at, w.policy.ages.report_s) < w.now for at in heard)
    return FactsView(
        slurm_as_of=w.slurm.as_of if w.slurm else None,
        slurm_error=w.slurm_error,
        agents=len(heard),
        agents_silent=silent,
        oldest_report=min(heard, default=None),
        newest_report=max(heard, default=None),
    )


def _handed_over(w: World) -> list[NodeRecovery]:
    """Escalated recoveries whose node nobody has taken up since."""
    found = []
    for rid in w.state.last_of_node.values():
        rec = w.state.nodes[rid]
        if rec.phase is not NodePhase.ESCALATED:
            continue
        node = w.slurm.nodes.get(rec.node) if w.slurm else None
        if node is None or mark_of(node) or reason_owner(node.reason) == rec.id:
            found.append(rec)
    return sorted(found, key=lambda r: (r.since, r.id))


def _problems(w: World, handed_over: tuple[NodeRecovery, ...]) -> list[str]:
    """Every fault that is not over, one line each: whom it concerns, what it is, what to read."""
    found = [f"{r.node} waits for a person: hpctl explain {r.id}" for r in handed_over]
    nodes, jobs = views.chosen(w.state, ended=False, since=None)
    found += [
        " ".join(filter(None, [headline(r), cloud_says(w, r), f"hpctl explain {r.id}"]))
        for r in nodes
    ]
    found += [f"{headline(r)} hpctl explain {r.id}" for r in jobs]
    covered = {r.node for r in (*handed_over, *nodes)} | set(w.state.holds)
    seen_at = {c.node.name: f"{c.node.name}: {c.why}; not treated yet" for c in w.untreated}
    shown = dict(_out_of_reach(w)) | seen_at
    found += [f"{why}: hpctl explain {n}" for n, why in sorted(shown.items()) if n not in covered]
    found += [f"{why}: hpctl explain {job}" for job, why in _restarting(w)]
    for name, hold in sorted(w.state.holds.items()):
        what = f"job {name}" if name.isdecimal() else name
        if hold.gate in (HANG_GATE, OTHERS_GATE):
            found.append(f"{what} hangs: hpctl explain {name}")
            continue
        found.append(f"{what} is held back by the gate {hold.gate}: hpctl explain {name}")
    if w.daemon is not None and w.daemon_alive and w.daemon.trouble:
        found.append(f"the daemon reports trouble: {w.daemon.trouble}")
    for one in standby_views(w.standbys, w.now):
        if one.silent_s > STANDBY_LOST_S:
            silent = f"the standby on {one.host} has been silent for {duration(one.silent_s)}"
            found.append(f"{silent}: systemctl status hpctl-daemon, there")
    return found


def _restarting(w: World) -> list[tuple[JobId, str]]:
    """The jobs whose own supervisor reported a moment ago that it restarts them, and why.

    That they run again is reports by nobody: for as long as the daemon would wait for a supervisor.
    """
    found = []
    for job, reports in sorted(w.state.reports.items()):
        last, job_now = reports[-1].report, w.slurm.jobs.get(job) if w.slurm else None
        runs = job_now is not None and job_now.running and job_now.restarts == last.restarts
        late = w.now > later(reports[-1].at, w.policy.job.supervisor_grace_s)
        if last.trouble is None or last.action not in _INSIDE or not runs or late:
            continue
        if job not in w.state.open_jobs:
            found.append((job, f"Job {job}: {last.trouble.why}; its own supervisor restarts it"))
    return found


def _out_of_reach(w: World) -> list[tuple[NodeName, str]]:
    """The nodes in service that Slurm or this head node cannot reach, and how that shows."""
    found = []
    for name, node in sorted(w.slurm.nodes.items()) if w.slurm else ():
        judged, instance = w.assessments.get(name), w.joined.instances.get(name)
        if node.closed and reason_owner(node.reason) is not None:
            continue
        if judged is None:
            sign = sign_of(node, instance)
            shown = "+".join([node.state, *sorted(node.flags)])
            if sign:
                found.append((name, f"{name}: Slurm calls it {shown} ({node.reason})"))
        elif any(f.check in CHECKS for f in judged.findings) or (
            judged.why.startswith("agent-silent") and not left_alone(node, instance)
        ):
            found.append((name, f"{name}: {judged.why}"))
    return found


def _unknowns(w: World) -> list[str]:
    found = []
    if w.daemon is None:
        found.append("no daemon has run on this state directory: hpctl daemon run")
    elif not w.daemon_alive and w.shared:
        since = f"no leader since {w.daemon.heartbeat:%H:%M:%S} UTC, nothing is done"
        last = f"the last was {w.daemon.host} (pid {w.daemon.pid})"
        found.append(f"{since}; {last}: systemctl status hpctl-daemon, on every head node")
    elif not w.daemon_alive:
        silent = duration((w.now - w.daemon.heartbeat).total_seconds())
        found.append(
            f"the daemon on {w.daemon.host} (pid {w.daemon.pid}) has been silent for {silent}: "
            "systemctl status hpctl-daemon"
        )
    if w.slurm is None:
        found.append(f"Slurm cannot be read: {w.slurm_error}")
    return found


def verdict(view: StatusView) -> Exit:
    """A problem that is known outweighs what is not known."""
    if view.problems:
        return Exit.PROBLEM
    return Exit.CANNOT_TELL if view.unknowns else Exit.FINE


@click.command()
@output.json_option
@output.config_option
def status(config: str, as_json: bool) -> None:
    """The cluster and the daemon in one screen.

    Exit code: 0 all is well, 1 something is wrong (in treatment, blocked by a gate or waiting for
    a person), 3 the daemon or Slurm does not answer, so this may be out of date.
    """
    view = seen(output.load_config(config))
    output.show("status", view, as_json, draw)
    output.leave(verdict(view))


def draw(out: Console, view: StatusView) -> None:
    """The screen of `hpctl status`."""
    facts = grid(DIM)
    facts.add_row("cluster", view.cluster or "(no cloud cluster)")
    facts.add_row("daemon", _daemon_text(view.daemon, view.as_of))
    for one in view.standbys:
        lost = one.silent_s > STANDBY_LOST_S
        lag = f"; {one.behind} events and {one.silent_s:.1f} s behind"
        text = styled("LOST" if lost else "ready", BAD if lost else GOOD)
        text.append(f" (pid {one.pid} on {one.host}, hpctl {one.version}{lag})", "default")
        facts.add_row("standby", text)
    facts.add_row("mode", view.mode)
    if view.paused_by:
        facts.add_row("paused", styled(f"by {view.paused_by}; lift it with: hpctl resume", WARN))
    if view.stopped:
        facts.add_row("stopped", styled(f"{view.stopped}: nothing is done", WARN))
    total = view.nodes.slurm_total
    facts.add_row("nodes", styled("unknown", WARN) if total is None else styled(str(total)))
    if total is not None:
        facts.add_row("  in Slurm", counted(view.nodes.by_state))
    facts.add_row("  health", counted(view.nodes.by_condition))
    facts.add_row("facts", _ages(view))
    out.print(facts)
    views.node_table(out, "Nodes in treatment", view.node_recoveries, view.as_of)
    views.job_table(out, "Jobs in recovery", view.job_recoveries, view.as_of)
    views.hold_table(out, view.holds, view.as_of)
    views.node_table(out, "Waiting for a person", view.waiting_for_a_person, view.as_of)
    if view.changes:
        heading(out, "Capacity: autoscaling and spares")
        views.change_table(out, view.changes)
    bad, unsure = ("Problems", view.problems, BAD), ("Cannot tell", view.unknowns, WARN)
    for title, rows, style in (bad, unsure):
        if rows:
            heading(out, title)
            for line in rows:
                out.print(indented(styled(line, style)))
    if not (view.node_recoveries or view.job_recoveries or view.problems or view.unknowns):
        out.print()
        out.print(styled("Nothing is in treatment and nothing waits for a person.", GOOD))


def _daemon_text(daemon: DaemonView | None, now: datetime) -> Text:
    if daemon is None:
        return styled("never ran here", WARN)
    text = styled("alive" if daemon.alive else "SILENT", GOOD if daemon.alive else BAD)
    text.append(f" (pid {daemon.pid} on {daemon.host}, hpctl {daemon.version}", "default")
    text.append(f"; leads for {ago(daemon.started, now).removesuffix(' ago')}", "default")
    text.append(f", epoch {daemon.epoch}", "default")
    text.append(f"; heartbeat {ago(daemon.heartbeat, now)}", "default")
    text.append(f", last cycle {daemon.last_cycle_s * 1000:.0f} ms)", "default")
    return text


def _ages(view: StatusView) -> Text:
    facts, text = view.facts, styled("")
    text.append("Slurm read now" if facts.slurm_as_of else "Slurm unreadable")
    text.append(f"; {facts.agents} agents")
    if facts.agents:
        text.append(f", heard {ago(facts.newest_report, view.as_of)}")
        text.append(f" (longest: {ago(facts.oldest_report, view.as_of)})")
    if facts.agents_silent:
        text.append(f", {facts.agents_silent} silent", WARN)
    return text
