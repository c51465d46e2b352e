"""`hpctl jobs`: the jobs that were hit, and where their recovery stands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

import click

from hpctl.cli import output
from hpctl.cli.gather import World, gather
from hpctl.cli.views import (
    HoldView,
    JobRecoveryView,
    JobReportView,
    chosen,
    hold_view,
    job_recovery_view,
    job_report_view,
    looks_back,
)


@dataclass(frozen=True, slots=True)
class JobsView:
    """What `hpctl jobs` shows. `ended_not_shown` counts the closed recoveries left out that
    are not past.

    `reports`: the newest word of each job's supervisor within a day, or since `--since`.
    """

    as_of: datetime
    jobs: tuple[JobRecoveryView, ...]
    holds: tuple[HoldView, ...]
    ended_not_shown: int
    reports: tuple[JobReportView, ...]


def jobs_view(w: World, *, ended: bool = False, since: datetime | None = None) -> JobsView:
    """The table as a value. A hold belongs here where its target is a job id."""
    _, chosen_jobs = chosen(w.state, ended=ended, since=since)
    shown = {r.id for r in chosen_jobs}
    return JobsView(
        as_of=w.now,
        jobs=tuple(job_recovery_view(r, w.state) for r in chosen_jobs),
        holds=tuple(hold_view(h) for t, h in sorted(w.state.holds.items()) if t.isdecimal()),
        ended_not_shown=sum(r.ended and r.id not in shown for r in w.state.jobs.values()),
        reports=_reports(w, since or w.now - timedelta(days=1)),
    )


def _reports(w: World, since: datetime) -> tuple[JobReportView, ...]:
    newest = [told[-1] for told in w.state.reports.values()]
    lately = sorted((t for t in newest if t.at >= since), key=lambda t: t.at, reverse=True)
    return tuple(map(job_report_view, lately))


@click.command()
@click.option("--all", "ended", is_flag=True, help="Show ended recoveries too.")
@click.option("--since", type=output.SinceType(), help="Those that moved since (30min, 7d, ISO).")
@output.json_option
@output.config_option
def jobs(ended: bool, since: datetime | None, config: str, as_json: bool) -> None:
    """Jobs that were hit, and where their recovery stands."""
    from hpctl.cli import render

    now = output.now()
    past = looks_back(now, ended=ended, since=since)
    world = gather(output.load_config(config), now, past=past)
    output.show("jobs", jobs_view(world, ended=ended, since=since), as_json, render.jobs)
