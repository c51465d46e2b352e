"""`hpctl status`: the cluster and the daemon in one screen."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import click

from hpctl.engine import config_loading, views
from hpctl.insight.status_view import STANDBY_LOST_S, DaemonView, StatusView, seen, verdict
from hpctl.toolkit import output
from hpctl.toolkit.tables import BAD, DIM, GOOD, WARN, ago, counted, grid, heading, indented, styled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


AS_NOW = timedelta(seconds=1)
"""A younger reading of Slurm is called one of now."""


@click.command()
@output.json_option
@output.config_option
def status(config: str, as_json: bool) -> None:
    """The cluster and the daemon in one screen.

    Exit code: 0 all is well, 1 something is wrong (in treatment, blocked by a gate or waiting for
    a person), 3 the daemon or Slurm does not answer, so this may be out of date.
    """
    view = seen(config_loading.load_config(config))
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
    views.draw_rows(out, "Nodes in treatment", view.node_recoveries, view.as_of)
    views.draw_rows(out, "Jobs in recovery", view.job_recoveries, view.as_of)
    views.draw_rows(out, "Held back", view.holds, view.as_of)
    views.draw_rows(out, "Waiting for a person", view.waiting_for_a_person, view.as_of)
    views.draw_rows(out, "Capacity: autoscaling and spares", view.changes, view.as_of)
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


def _slurm_age(as_of: datetime | None, now: datetime) -> str:
    if as_of is None:
        return "Slurm unreadable"
    return f"Slurm read {ago(as_of, now)}" if now - as_of > AS_NOW else "Slurm read now"


def _ages(view: StatusView) -> Text:
    facts, text = view.facts, styled("")
    text.append(_slurm_age(facts.slurm_as_of, view.as_of))
    text.append(f"; {facts.agents} agents")
    if facts.agents:
        text.append(f", heard {ago(facts.newest_report, view.as_of)}")
        text.append(f" (longest: {ago(facts.oldest_report, view.as_of)})")
    if facts.agents_silent:
        text.append(f", {facts.agents_silent} silent", WARN)
    return text
