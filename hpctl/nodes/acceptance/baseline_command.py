"""`hpctl accept baseline`: the limits that figures must meet, and the nodes that miss them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec import Struct

from hpctl.engine import config_loading
from hpctl.nodes.acceptance.limits import (
    NO_FLOORS,
    PEERS,
    Floors,
    explain_slow,
    limits,
    measured,
    slow,
)
from hpctl.toolkit import output
from hpctl.toolkit.tables import heading, table, wrapped

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.engine.view import View


class LimitView(Struct, frozen=True):
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


class SlowView(Struct, frozen=True):
    """A node that is slow by its latest tests. `sure`: it is no noise."""

    node: str
    test: str
    figure: str
    value: float
    sure: bool
    why: str


class BaselineView(Struct, frozen=True):
    """The limits, and the nodes whose latest tests are not within them."""

    limits: tuple[LimitView, ...]
    slow: tuple[SlowView, ...]


@click.command()
@output.json_option
@output.config_option
def baseline(config: str, as_json: bool) -> None:
    """What a healthy node must measure.

    By instance type and GPU: the median of the nodes that passed their tests, less a margin by its
    spread. Where fewer than five nodes were tested, and below that median, the card's floor counts
    (docs/cards.md), or that of `acceptance.floors`.
    """
    from hpctl.engine.world import gather

    loaded = config_loading.load_config(config)
    world = gather(loaded, output.now(), cloud=True)
    view = baseline_view(world.view(), loaded.acceptance.floors)
    output.show("accept-baseline", view, as_json, draw_baseline)


def baseline_view(view: View, site: Floors = NO_FLOORS) -> BaselineView:
    """The limits by what is on record and by the floors, and the nodes that miss them."""
    runs = measured(view)
    known = limits(runs, site)
    rows = [
        LimitView(
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
    nodes = sorted({run.node for run in runs})
    behind = [
        SlowView(node, s.limit.test, s.limit.figure, s.value, not s.again, explain_slow([s]))
        for node in nodes
        for s in slow([run for run in runs if run.node == node], known)
    ]
    return BaselineView(tuple(rows), tuple(behind))


def draw_baseline(out: Console, view: BaselineView) -> None:
    """One line a limit, one line a node that is slow."""
    if not view.limits:
        out.print(f"No limits yet: fewer than {PEERS} nodes of a type have passed their tests.")
        return
    heads = ("TYPE", "CARD", "TEST", "FIGURE", "LIMIT", "MEDIAN", "MAD", "NODES", "BY")
    rows = [
        (
            k.instance_type,
            k.card,
            k.test,
            k.figure,
            f"{k.limit:.4g}",
            f"{k.median:.4g}",
            f"{k.mad:.2g}",
            k.nodes,
            k.by,
        )
        for k in view.limits
    ]
    table(out, heads, rows)
    if view.slow:
        heading(out, "Slow")
        sure = {True: "slow", False: "may be"}
        table(
            out,
            ("NODE", "SURE", wrapped("WHY")),
            [(s.node, sure[s.sure], s.why) for s in view.slow],
        )
