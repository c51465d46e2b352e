"""`hpctl capacity`: what is reserved, running, spare and failed, by group and zone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hpctl.cli import output
from hpctl.cli.cluster.at_hand import fleet_of, known, place, place_options
from hpctl.cli.lazy import LazyGroup
from hpctl.cli.output import Exit

if TYPE_CHECKING:
    from hpctl.cli.cluster.at_hand import Place
    from hpctl.core.model import NodeName


COMMANDS: dict[str, tuple[str, str]] = {
    "offers": (
        "hpctl.cli.training_plans:offers",
        "Search reserved capacity to buy for a cluster, with its price.",
    ),
    "plans": (
        "hpctl.cli.training_plans:plans",
        "List the training plans, or show one with its parts.",
    ),
    "buy": ("hpctl.cli.training_plans:buy", "Buy a training plan."),
    "extend": ("hpctl.cli.training_plans:extend", "Extend a training plan."),
}


@click.command(cls=LazyGroup, table=COMMANDS, invoke_without_command=True)
@output.json_option
@place_options
@click.pass_context
def capacity(ctx: click.Context, /, as_json: bool, **where: Any) -> None:
    """What is reserved, running, spare and failed.

    By instance group and zone, with the training plans behind them. On a head node Slurm tells
    what is spare, idle, busy and out. Exit code: 0, 1 where a group is Failed or Degraded or an
    instance has failed, 3 where something that is at hand could not be read.
    """
    from hpctl.cli import render_capacity
    from hpctl.clusters.capacity import capacity_of, read_plans

    if ctx.invoked_subcommand:
        given = [p for p in where if ctx.get_parameter_source(p) is ParameterSource.COMMANDLINE]
        if given or as_json:
            raise click.UsageError(f"options stand behind {ctx.invoked_subcommand}, not before it")
        return
    here = place(**where)
    fleet = fleet_of(here, details=True)
    plans, unread = read_plans(here.aws, fleet.described)
    told = known(here)
    rows = told.join(fleet.rows, here)
    reservations, why = (None, told.slurm_error) if told.slurm is None else _reservations(here)
    unknown = (*unread, *([f"Slurm: {why}"] if why else []))
    view = capacity_of(fleet.described, rows, plans, reservations, output.now(), unknown)
    output.show("capacity", view, as_json, render_capacity.capacity)
    blind = here.slurm and reservations is None
    if view.problems:
        output.leave(Exit.PROBLEM)
    output.leave(Exit.CANNOT_TELL if blind or any(row.unread for row in rows) else Exit.FINE)


def _reservations(here: Place) -> tuple[Mapping[str, tuple[NodeName, ...]] | None, str]:
    from hpctl.errors import HpctlError
    from hpctl.wiring import make_scheduler

    try:
        return make_scheduler(here.settings()).reservations(), ""
    except HpctlError as error:
        return None, f"{error} {error.hint}".strip()
