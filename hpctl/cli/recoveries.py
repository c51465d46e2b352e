"""`hpctl recoveries`: the treatments of nodes and jobs, open ones first of all."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

import click
from msgspec import Struct

from hpctl.engine import config_loading, views
from hpctl.engine.world import World
from hpctl.engine.world_reader import read_world_once
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import Layout, RowTable, TextLine


class RecoveriesView(Struct, frozen=True):
    """What `hpctl recoveries` shows. `ended_not_shown` counts the closed recoveries left out that
    are not past; `holds` are what a gate keeps from beginning or going on."""

    as_of: datetime
    nodes: tuple[views.NodeRecoveryView, ...]
    jobs: tuple[views.JobRecoveryView, ...]
    ended_not_shown: int
    holds: tuple[views.GateBlockView, ...] = ()

    layout: ClassVar[Layout] = (
        TextLine("No recovery is open.", when=lambda view: not (view.nodes or view.jobs)),
        views.HOLDS,
        RowTable("nodes", title="Nodes"),
        RowTable("jobs", title="Jobs"),
        views.LEFT_OUT,
    )


def make_recoveries_view(
    w: World, *, ended: bool = False, since: datetime | None = None
) -> RecoveriesView:
    """Return the tables as a value."""
    nodes, jobs = views.select_node_and_job_recoveries(w.state, ended=ended, since=since)
    shown = {r.id for r in nodes} | {r.id for r in jobs}
    ended_ids = [r.id for r in w.state.nodes.values() if r.ended and not r.is_for_capacity_change]
    ended_ids += [r.id for r in w.state.jobs.values() if r.ended]
    return RecoveriesView(
        as_of=w.now,
        nodes=tuple(map(views.make_node_recovery_view, nodes)),
        jobs=tuple(views.make_job_recovery_view(r, w.state) for r in jobs),
        ended_not_shown=sum(rid not in shown for rid in ended_ids),
        holds=tuple(views.make_gate_block_view(w.state.holds[t]) for t in sorted(w.state.holds)),
    )


_which = output.combine_click_options(
    click.option("--all", "ended", is_flag=True, help="Show ended recoveries too."),
    click.option(
        "--since",
        type=output.PastTimeType(),
        help="Only those that changed since (30min, 7d, ISO).",
    ),
    output.json_option,
    output.config_option,
)
"""Which recoveries are meant, and how they are shown."""


def _read_cluster_state(config: str, ended: bool, since: datetime | None) -> World:
    past = views.needs_archived_recoveries(output.get_current_utc_time(), ended=ended, since=since)
    return read_world_once(
        config_loading.load_config(config), output.get_current_utc_time(), past=past
    )


@click.command()
@_which
def recoveries(ended: bool, since: datetime | None, config: str, as_json: bool) -> None:
    """Open and ended recoveries."""
    world = _read_cluster_state(config, ended, since)
    view = make_recoveries_view(world, ended=ended, since=since)
    output.show_view("recoveries", view, as_json)


class JobsView(Struct, frozen=True):
    """What `hpctl jobs` shows. `ended_not_shown` counts the closed recoveries left out that
    are not past.

    `reports`: the newest word of each job's supervisor within a day, or since `--since`.
    """

    as_of: datetime
    jobs: tuple[views.JobRecoveryView, ...]
    holds: tuple[views.GateBlockView, ...]
    ended_not_shown: int
    reports: tuple[views.SupervisorReportView, ...]

    layout: ClassVar[Layout] = (
        RowTable("jobs", otherwise="No job is in recovery."),
        views.HOLDS,
        RowTable("reports", title="Newest report of each job's supervisor"),
        views.LEFT_OUT,
    )


def make_jobs_view(w: World, *, ended: bool = False, since: datetime | None = None) -> JobsView:
    """Return the table as a value. A hold belongs here where its target is a job id."""
    _, chosen_jobs = views.select_node_and_job_recoveries(w.state, ended=ended, since=since)
    shown = {r.id for r in chosen_jobs}
    return JobsView(
        as_of=w.now,
        jobs=tuple(views.make_job_recovery_view(r, w.state) for r in chosen_jobs),
        holds=tuple(
            views.make_gate_block_view(h) for t, h in sorted(w.state.holds.items()) if t.isdecimal()
        ),
        ended_not_shown=sum(r.ended and r.id not in shown for r in w.state.jobs.values()),
        reports=_list_supervisor_job_reports(w, since or w.now - timedelta(days=1)),
    )


def _list_supervisor_job_reports(
    w: World, since: datetime
) -> tuple[views.SupervisorReportView, ...]:
    newest = [reports[-1] for reports in w.state.reports.values()]
    lately = sorted((t for t in newest if t.at >= since), key=lambda t: t.at, reverse=True)
    return tuple(map(views.make_supervisor_report_view, lately))


@click.command()
@_which
def jobs(ended: bool, since: datetime | None, config: str, as_json: bool) -> None:
    """Affected jobs and the state of their recovery."""
    world = _read_cluster_state(config, ended, since)
    output.show_view("jobs", make_jobs_view(world, ended=ended, since=since), as_json)
