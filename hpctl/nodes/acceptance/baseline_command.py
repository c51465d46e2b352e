"""`hpctl acceptance baseline`: the limits that figures must meet, and the nodes that miss them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import click
from msgspec import Struct

from hpctl.engine import config_loading
from hpctl.nodes.acceptance.limits import (
    NO_FLOORS,
    PEERS,
    Floors,
    compute_figure_limits,
    explain_slow_figures,
    find_slow_figures,
    list_newest_measurements,
)
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import Column, Columns, JsonOnly, Layout, RowTable

if TYPE_CHECKING:
    from hpctl.engine.view import PlanningView


class FigureLimitView(Struct, frozen=True):
    """One limit. `by`: fleet, or where the floor is from: measured, published, data sheet or site.

    `median` and `mad` over `nodes`, 0 for a floor. `expected`: what a healthy card gives in this
    test, `source`: who says so; 0 and empty but for a card's floor.
    """

    instance_type: str
    test: str
    figure: str
    limit: float
    by: str
    median: float
    mad: float
    nodes: int
    card: str = ""
    expected: float = 0.0
    source: str = ""

    columns: ClassVar[Columns] = (
        Column("TYPE", "instance_type"),
        Column("CARD", "card"),
        Column("TEST", "test"),
        Column("FIGURE", "figure"),
        Column("LIMIT", "{limit:.4g}"),
        Column("MEDIAN", "{median:.4g}"),
        Column("MAD", "{mad:.2g}"),
        Column("NODES", "nodes"),
        Column("BY", "by"),
    )
    json_only: ClassVar[JsonOnly] = ("expected", "source")


class SlowNodeView(Struct, frozen=True):
    """A node that is slow by its latest tests. `sure`: it is no noise."""

    node: str
    test: str
    figure: str
    value: float
    sure: bool
    why: str

    columns: ClassVar[Columns] = (
        Column("NODE", "node"),
        Column("SURE", lambda row: "slow" if row.sure else "may be"),
        Column("WHY", "why", fold=True),
    )
    json_only: ClassVar[JsonOnly] = ("test", "figure", "value")


class BaselineView(Struct, frozen=True):
    """The limits, and the nodes whose latest tests are not within them."""

    limits: tuple[FigureLimitView, ...]
    slow: tuple[SlowNodeView, ...]

    layout: ClassVar[Layout] = (
        RowTable(
            "limits",
            otherwise=f"No limits yet: fewer than {PEERS} nodes of a type have passed their tests.",
        ),
        RowTable("slow", title="Slow"),
    )


@click.command()
@output.json_option
@output.config_option
def baseline(config: str, as_json: bool) -> None:
    """What a healthy node must measure.

    By instance type and GPU: the median of the nodes that passed their tests, less a margin by its
    spread. Where fewer than five nodes were tested, and below that median, the card's floor counts
    (docs/cards.md), or that of `acceptance.floors`.
    """
    from hpctl.engine.world_reader import read_world_once

    loaded = config_loading.load_config(config)
    world = read_world_once(loaded, output.get_current_utc_time(), cloud=True)
    view = make_baseline_view(world.view(), loaded.acceptance.floors)
    output.show_view("accept-baseline", view, as_json)


def make_baseline_view(view: PlanningView, site: Floors = NO_FLOORS) -> BaselineView:
    """Return the limits by what is on record and by the floors, and the nodes that miss them."""
    runs = list_newest_measurements(view)
    known = compute_figure_limits(runs, site)
    rows = [
        FigureLimitView(
            instance_type=k.instance_type,
            test=k.test,
            figure=k.figure,
            limit=k.limit,
            by=k.by,
            median=k.median,
            mad=k.mad,
            nodes=k.nodes,
            card=k.card,
            expected=k.expected,
            source=k.source,
        )
        for k in known
    ]
    behind = []
    for node in sorted({run.node for run in runs}):
        own = [run for run in runs if run.node == node]
        for slow in find_slow_figures(own, known):
            limit, why = slow.limit, explain_slow_figures([slow])
            behind.append(
                SlowNodeView(node, limit.test, limit.figure, slow.value, not slow.again, why)
            )
    return BaselineView(tuple(rows), tuple(behind))
