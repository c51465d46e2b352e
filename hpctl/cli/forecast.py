"""`hpctl forecast`: how likely nodes break in the next days, why, and how right that was here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from hpctl.cli import output, views
from hpctl.cli.arguments import complete_node
from hpctl.cli.gather import World, gather, known_nodes
from hpctl.cli.requests import hosts
from hpctl.cli.tables import BAD, DIM, heading, styled, table, wrapped
from hpctl.core.forecast import Band, Forecast, calibration, error, forecasts, spares_for
from hpctl.core.model import NodeName

if TYPE_CHECKING:
    from rich.console import Console


class NodeForecastView(Struct, frozen=True):
    """One node's instance. `day`, `week`, `month`: how likely it breaks within 1, 7 and 30 days, 0
    to 1. `again`: it breaks again and again. `rules` counts its recoveries by rule; `classes`: what
    part each class of fault has of the chance. `signs`: the indicators that it shows now."""

    node: str
    instance_id: str
    day: float
    week: float
    month: float
    again: bool
    breaks: int
    jobs: int
    escalated: int
    rules: Mapping[str, int]
    classes: Mapping[str, float]
    signs: tuple[str, ...]
    first: datetime | None
    last: datetime | None
    why: str


class ForecastView(Struct, frozen=True):
    """What `hpctl forecast` shows, the worst node first. `not_shown` counts nodes with neither a
    break nor an indicator. `spares`: so many are enough for the breaks of a day, of all nodes asked
    for, in 95 of 100 days. `calibration`: past weeks' forecasts by chance, and what happened;
    `error`: how far they lay apart on average, null where no week has passed."""

    as_of: datetime
    nodes: tuple[NodeForecastView, ...]
    not_shown: int
    spares: int
    calibration: tuple[Band, ...]
    error: float | None


def forecast_view(w: World, names: Collection[NodeName] = (), *, every: bool) -> ForecastView:
    """The table as a value: the nodes asked for, else those with a history, or `every` one."""
    known = known_nodes(w)
    found = forecasts(w.state, known, w.health, w.now, of=names or None)
    shown = [f for f in found if every or names or f.breaks or f.signs]
    bands = calibration(w.state, known, w.now)
    return ForecastView(
        as_of=w.now,
        nodes=tuple(map(_node, shown)),
        not_shown=len(found) - len(shown),
        spares=spares_for(found),
        calibration=bands,
        error=round(error(bands), 4) if bands else None,
    )


def _node(f: Forecast) -> NodeForecastView:
    chances = {name: round(getattr(f, name), 4) for name in ("day", "week", "month")}
    classes = {kind: round(part, 3) for kind, part in f.classes.items()}
    return views.copied(
        NodeForecastView, f, instance_id=f.instance, again=f.again, classes=classes, **chances
    )


@click.command()
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=complete_node)
@click.option("--all", "every", is_flag=True, help="Show nodes without a history too.")
@output.json_option
@output.config_option
def forecast(names: tuple[str, ...], every: bool, config: str, as_json: bool) -> None:
    """How likely nodes break in the next days.

    NODE may be a hostlist. Advice from the journal and what agents report: it orders tests of idle
    nodes, and drains none. The last table tells what was predicted here, and what happened.
    """
    world = gather(output.load_config(config), output.now(), slurm=True)
    known = [str(n) for n in known_nodes(world)]
    wanted = [NodeName(n) for name in names for n in hosts(name)]
    for name in wanted:
        if name not in known:
            raise output.no_such("nodes", name, known)
    view = forecast_view(world, tuple(dict.fromkeys(wanted)), every=every)
    output.show("forecast", view, as_json, draw)


def draw(out: Console, view: ForecastView) -> None:
    """The nodes, then what past forecasts were worth."""
    rows = [
        (
            n.node,
            *(f"{chance:.1%}" for chance in (n.day, n.week)),
            styled(f"{n.month:.1%}", BAD if n.again else ""),
            next(iter(n.classes), ""),
            n.why,
        )
        for n in view.nodes
    ]
    if rows:
        table(out, ("NODE", "1 D", "7 D", "30 D", "MOST LIKELY", wrapped("WHY")), rows)
    if view.not_shown:
        out.print(styled(f"{view.not_shown} more without a history: hpctl forecast --all", DIM))
    out.print(f"Spares enough for a day's breaks of these, in 95 of 100 days: {view.spares}")
    heading(out, "Forecasts of past weeks")
    if view.error is None:
        out.print("None yet: they need two weeks of journal.")
        return
    cells = [
        (f"{b.low:.0%} to {b.high:.0%}", b.node_weeks, f"{b.predicted:.1%}", f"{b.happened:.1%}")
        for b in view.calibration
    ]
    table(out, ("CHANCE IN 7 D", "NODE-WEEKS", "PREDICTED", "HAPPENED"), cells)
    out.print(f"Predicted and happened lie {view.error:.2%} apart on average.")
