"""`hpctl recoveries`: the treatments of nodes and jobs, open ones first of all."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import click

from hpctl.cli import output
from hpctl.cli.gather import World, gather
from hpctl.cli.views import (
    HoldView,
    JobRecoveryView,
    NodeRecoveryView,
    chosen,
    hold_view,
    job_recovery_view,
    looks_back,
    node_recovery_view,
)


@dataclass(frozen=True, slots=True)
class RecoveriesView:
    """What `hpctl recoveries` shows. `ended_not_shown` counts the closed recoveries left out that
    are not past; `holds` are what a gate keeps from beginning or going on."""

    as_of: datetime
    nodes: tuple[NodeRecoveryView, ...]
    jobs: tuple[JobRecoveryView, ...]
    ended_not_shown: int
    holds: tuple[HoldView, ...] = ()


def recoveries_view(
    w: World, *, ended: bool = False, since: datetime | None = None
) -> RecoveriesView:
    """The tables as a value."""
    nodes, jobs = chosen(w.state, ended=ended, since=since)
    shown = {r.id for r in nodes} | {r.id for r in jobs}
    ended_ids = [r.id for r in w.state.nodes.values() if r.ended]
    ended_ids += [r.id for r in w.state.jobs.values() if r.ended]
    return RecoveriesView(
        as_of=w.now,
        nodes=tuple(map(node_recovery_view, nodes)),
        jobs=tuple(job_recovery_view(r, w.state) for r in jobs),
        ended_not_shown=sum(rid not in shown for rid in ended_ids),
        holds=tuple(hold_view(w.state.holds[t]) for t in sorted(w.state.holds)),
    )


@click.command()
@click.option("--all", "ended", is_flag=True, help="Show ended recoveries too.")
@click.option("--since", type=output.SinceType(), help="Those that moved since (30min, 7d, ISO).")
@output.json_option
@output.config_option
def recoveries(ended: bool, since: datetime | None, config: str, as_json: bool) -> None:
    """Open and ended recoveries."""
    from hpctl.cli import render

    now = output.now()
    past = looks_back(now, ended=ended, since=since)
    world = gather(output.load_config(config), now, past=past)
    view = recoveries_view(world, ended=ended, since=since)
    output.show("recoveries", view, as_json, render.recoveries)
