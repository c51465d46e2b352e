"""`hpctl nodes`: every node, by everybody who knows something of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hpctl.engine import config_loading
from hpctl.engine.completion import complete_node
from hpctl.engine.world import gather, known_nodes
from hpctl.insight.nodes_view import NodesView, NodeView, nodes_view
from hpctl.toolkit import output
from hpctl.toolkit.output import Exit
from hpctl.toolkit.tables import MANY, WARN, WIDE, ago, columns, plain, styled, word, wrapped

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=complete_node)
@click.option("--no-cloud", is_flag=True, help="Do not ask the cloud for its list of instances.")
@output.json_option
@output.config_option
def nodes(names: tuple[str, ...], no_cloud: bool, config: str, as_json: bool) -> None:
    """Every node: its health and its recovery.

    Exit code: 0, or 3 where Slurm or the cloud could not be asked.
    """
    loaded = config_loading.load_config(config)
    world = gather(loaded, output.now(), slurm=True, cloud=not no_cloud)
    known = known_nodes(world)
    for name in names:
        if name not in known:
            raise output.no_such("nodes", name, [str(n) for n in known])
    view = nodes_view(world, tuple(n for n in known if not names or n in names))
    output.show("nodes", view, as_json, draw)
    blind = world.slurm is None or (not no_cloud and world.cloud is None)
    output.leave(Exit.CANNOT_TELL if blind else Exit.FINE)


def treatment(n: NodeView) -> str:
    """What is done to a node, or what keeps it from being done."""
    return f"{n.recovery} {n.phase}" if n.recovery else f"held: {n.held_by}" if n.held_by else ""


def draw(out: Console, view: NodesView) -> None:
    """The table of `hpctl nodes`; a narrow terminal loses the cloud's columns first."""
    wide = out.width >= WIDE
    extra = ("INSTANCE", "CLOUD", "LOGICAL ID") if wide else ()
    rows = []
    for n in view.nodes:
        state = n.slurm_state + "".join(f"+{f}" for f in n.slurm_flags)
        heard = ago(n.last_heard, view.as_of).removesuffix(" ago")
        cloud = (n.instance_id, n.instance_status, n.logical_id) if wide else ()
        rows.append((n.name, state, n.condition, n.rule, heard, *cloud, treatment(n)))
    headings = ("NODE", "SLURM", "HEALTH", "RULE", "HEARD", *extra, "TREATMENT")
    if len(rows) > MANY:
        out.print(plain([headings, *rows]), no_wrap=True, crop=False)
    else:
        table = columns(*headings[:-1], wrapped(headings[-1]))
        for row in rows:
            table.add_row(*(word(cell.partition("+")[0], cell) for cell in row))
        out.print(table)
    for what, as_of, error in (
        ("Slurm", view.slurm_as_of, view.slurm_error),
        ("The cloud", view.cloud_as_of, view.cloud_error),
    ):
        if as_of is None and error != "not asked":
            out.print(styled(f"{what} cannot be read: {error}", WARN))
