"""`hpctl nodes`: every node, from all sources that know something of it."""

from __future__ import annotations

import click

from hpctl.engine import config_loading
from hpctl.engine.completion import complete_node
from hpctl.engine.nodes_view import make_nodes_view
from hpctl.engine.world import list_known_nodes
from hpctl.engine.world_reader import read_world_once
from hpctl.toolkit import output
from hpctl.toolkit.output import ExitCode


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
    world = read_world_once(loaded, output.get_current_utc_time(), slurm=True, cloud=not no_cloud)
    known = list_known_nodes(world)
    for name in names:
        if name not in known:
            raise output.make_not_found_error("nodes", name, [str(n) for n in known])
    view = make_nodes_view(world, tuple(n for n in known if not names or n in names))
    output.show_view("nodes", view, as_json)
    blind = world.slurm is None or (not no_cloud and world.cloud is None)
    output.exit_with_code(ExitCode.CANNOT_TELL if blind else ExitCode.FINE)
