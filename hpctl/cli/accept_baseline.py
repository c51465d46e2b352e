"""`hpctl accept baseline`: what a healthy node of each type must measure, and who does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec import Struct

from hpctl.cli import output
from hpctl.cli.tables import heading, table, wrapped
from hpctl.core.acceptance import PEERS, limits, slow

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.core.view import View


class LimitView(Struct, frozen=True):
    """One limit. `by`: fleet or data sheet; `median` and `mad` over `nodes`, 0 for a data sheet."""

    instance_type: str
    test: str
    figure: str
    limit: float
    by: str
    median: float
    mad: float
    nodes: int


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

    By instance type: the median of the nodes that passed their tests, less a margin by its spread;
    the data sheet where fewer than five nodes were tested.
    """
    from hpctl.cli.gather import gather

    world = gather(output.load_config(config), output.now(), cloud=True)
    output.show("accept-baseline", baseline_view(world.view()), as_json, draw)


def baseline_view(view: View) -> BaselineView:
    """The limits by what is on record, and the nodes that miss them."""
    runs = view.measured()
    known = limits(runs)
    rows = [
        LimitView(k.instance_type, k.test, k.figure, k.limit, k.by, k.median, k.mad, k.nodes)
        for k in known
    ]
    nodes = sorted({run.node for run in runs})
    behind = [
        SlowView(node, s.limit.test, s.limit.figure, s.value, not s.again, str(s))
        for node in nodes
        for s in slow([run for run in runs if run.node == node], known)
    ]
    return BaselineView(tuple(rows), tuple(behind))


def draw(out: Console, view: BaselineView) -> None:
    """One line a limit, one line a node that is slow."""
    if not view.limits:
        out.print(f"No limits yet: fewer than {PEERS} nodes of a type have passed their tests.")
        return
    heads = ("TYPE", "TEST", "FIGURE", "LIMIT", "MEDIAN", "MAD", "NODES", "BY")
    rows = [
        (k.instance_type, k.test, k.figure, f"{k.limit:.4g}", f"{k.median:.4g}", f"{k.mad:.2g}",
         k.nodes, k.by)
        for k in view.limits
    ]  # fmt: skip
    table(out, heads, rows)
    if view.slow:
        heading(out, "Slow")
        sure = {True: "slow", False: "may be"}
        table(
            out,
            ("NODE", "SURE", wrapped("WHY")),
            [(s.node, sure[s.sure], s.why) for s in view.slow],
        )
