"""`hpctl cluster nodes`: every node by all its names, with what the API, Slurm and hpctl say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from hpctl.cli import output
from hpctl.cli.arguments import GROUP, NODES
from hpctl.cli.cluster.at_hand import (
    complete_group,
    complete_node,
    fleet_of,
    known,
    place,
    place_options,
)
from hpctl.cli.output import Exit
from hpctl.clusters.failures import of_rows
from hpctl.clusters.names import NodeRow, find_group, resolve_all
from hpctl.clusters.progress import NodeProgress


@dataclass(frozen=True, slots=True)
class ClusterNodesView:
    """What `hpctl cluster nodes` shows. `total` counts the nodes before any filter.

    `failed_nodes` are those of the nodes shown that failed, with what it means.
    """

    as_of: datetime
    cluster: str
    status: str
    total: int
    details: bool
    slurm_error: str
    health_error: str
    nodes: tuple[NodeRow, ...]
    failed_nodes: tuple[NodeProgress, ...] = ()


def matches(row: NodeRow, groups: Sequence[str], states: Sequence[str]) -> bool:
    """Whether a row is of one of these groups and in one of these states; none given is any."""
    words = {row.status, row.slurm_state, *row.slurm_flags, row.health}
    has = {word.casefold() for word in words}
    return (not groups or row.group in groups) and (
        not states or any(state.casefold() in has for state in states)
    )


@click.command()
@click.argument("names", metavar="[NODE]...", type=NODES, nargs=-1, shell_complete=complete_node)
@click.option(
    "--group",
    "groups",
    type=GROUP,
    multiple=True,
    shell_complete=complete_group,
    help="Only nodes of this group; repeatable.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Only nodes in this state, Slurm's (DOWN, DRAIN), the API's (Failure) or"
    " hpctl's (faulty); repeatable.",
)
@click.option(
    "--details",
    is_flag=True,
    help="Ask for zone, image and capacity too: one call a node, 32 at once.",
)
@output.json_option
@place_options
def nodes(
    names: tuple[str, ...],
    groups: tuple[str, ...],
    states: tuple[str, ...],
    details: bool,
    as_json: bool,
    **where: Any,
) -> None:
    """Every node by all its names, and what the API, Slurm and hpctl say of it.

    NODE is a node name, instance id, logical id, address, <group>-<n>, or a hostlist of names.
    Exit code: 0, or 3 where something that is at hand could not be read.
    """
    from hpctl.cli import render_cluster

    here = place(**where)
    fleet = fleet_of(here, details=details)
    told = known(here)
    rows = told.join(fleet.rows, here)
    for group in groups:
        find_group(fleet.described, group)
    at = output.now()
    shown = [
        row for row in (resolve_all(rows, names) if names else rows) if matches(row, groups, states)
    ]
    view = ClusterNodesView(
        as_of=at,
        cluster=str(fleet.described.get("ClusterName", here.cluster)),
        status=str(fleet.described["ClusterStatus"]),
        total=len(rows),
        details=details,
        slurm_error=told.slurm_error,
        health_error=told.health_error,
        nodes=tuple(shown),
        failed_nodes=of_rows(here.aws, fleet.described, shown, at),
    )
    output.show("cluster-nodes", view, as_json, render_cluster.nodes)
    blind = here.slurm and told.slurm is None
    unread = any(row.unread for row in view.nodes)
    output.leave(Exit.CANNOT_TELL if blind or unread else Exit.FINE)
