"""`hpctl cluster instances`: every node by all its names; what the API, Slurm and hpctl say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

import click
from msgspec import Struct

from hpctl.clusters.commands.change_view import describe_failed_nodes_by_failure
from hpctl.clusters.commands.context import (
    add_cluster_options,
    add_groups_option,
    nodes_argument,
    read_existing_cluster_fleet,
    read_local_cluster_state,
    resolve_cluster_context,
)
from hpctl.clusters.failures import list_failed_nodes
from hpctl.clusters.fleet import NOT_FOUND, UNKNOWN, NodeRow
from hpctl.clusters.node_lookup import find_instance_group, resolve_nodes_by_names
from hpctl.clusters.progress import FAILURE, NodeProgress
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import (
    Column,
    ItemTextLines,
    Layout,
    RowTable,
    TextLine,
    make_state_column,
)
from hpctl.toolkit.output import ExitCode
from hpctl.toolkit.tables import BAD, DIM, WARN, color_state_word, join_styled_texts, style_text

if TYPE_CHECKING:
    from rich.text import Text


JOBS_SHOWN = 3


def _render_slurm_state(row: NodeRow) -> Text:
    state = color_state_word(row.slurm_state)
    flags = [flag for flag in row.slurm_flags if flag != "CLOUD"]
    return join_styled_texts("+", [state, *(style_text(flag, WARN) for flag in flags)])


def _format_running_job_ids(row: NodeRow) -> str:
    jobs = row.jobs
    more = f",+{len(jobs) - JOBS_SHOWN}" if len(jobs) > JOBS_SHOWN else ""
    return ",".join(map(str, jobs[:JOBS_SHOWN])) + more


NODE_COLUMNS = (
    make_state_column("NODE", "node"),
    make_state_column("INSTANCE", "instance_id"),
    make_state_column("NAME", "instance_name", wide=True, when="has_instance_names"),
    make_state_column("LOGICAL ID", "logical_id", wide=True),
    make_state_column("IP", "ip", wide=True),
    make_state_column("GROUP", "group", wide=True),
    make_state_column("ZONE", "zone", wide=True, when="details"),
    make_state_column("IMAGE", "image", wide=True, when="details"),
    make_state_column("STATUS", "status"),
    # The one column whose words run long: states are a base and any number of flags.
    Column("SLURM", _render_slurm_state, fold=True, when="has_slurm_states"),
    make_state_column("JOBS", _format_running_job_ids, when="has_slurm_states"),
    make_state_column("HEALTH", "health", when="has_health"),
)


class ClusterNodesView(Struct, frozen=True):
    """What `hpctl cluster instances` shows. `total` counts the nodes before any filter.

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

    layout: ClassVar[Layout] = (
        RowTable("nodes", NODE_COLUMNS),
        TextLine("{counts}", style=DIM),
        ItemTextLines(lambda view: describe_failed_nodes_by_failure(view.failed_nodes)),
        ItemTextLines("remarks"),
        ItemTextLines("errors", style=WARN),
    )

    @property
    def has_instance_names(self) -> bool:
        """Return whether an instance has its own name."""
        return any(row.instance_name for row in self.nodes)

    @property
    def has_slurm_states(self) -> bool:
        """Return whether Slurm tells of a node."""
        return any(row.slurm_state != UNKNOWN for row in self.nodes)

    @property
    def has_health(self) -> bool:
        """Return whether hpctl has assessed a node."""
        return any(row.health_why for row in self.nodes)

    @property
    def counts(self) -> str:
        """Return how many nodes are shown, of how many, by group."""
        shown = "" if len(self.nodes) == self.total else f"{len(self.nodes)} of "
        groups = Counter(row.group for row in self.nodes)
        which = ", ".join(f"{count} {group}" for group, count in groups.items())
        whole = f"{shown}{self.total} node(s) of {self.cluster}, which is {self.status}"
        return f"{whole}: {which}" if which else whole

    @property
    def remarks(self) -> list[Text]:
        """Return what the table has no room for, node by node."""
        remarks = []
        for row in self.nodes:
            for text, style in _list_node_remarks(row):
                remarks.append(style_text(f"{row.display_name}: {text}", style))
        return remarks

    @property
    def errors(self) -> list[str]:
        """Return why Slurm, or hpctl's own assessments, could not be read."""
        return list(dict.fromkeys(filter(None, (self.slurm_error, self.health_error))))


def matches_node_filters(row: NodeRow, groups: Sequence[str], states: Sequence[str]) -> bool:
    """Return whether a row is of one of these groups and in one of these states; none given is
    any."""
    args = {row.status, row.slurm_state, *row.slurm_flags, row.health}
    has = {word.casefold() for word in args}
    return (not groups or row.group in groups) and (
        not states or any(state.casefold() in has for state in states)
    )


@click.command()
@nodes_argument
@add_groups_option("Only nodes of this group; repeatable.")
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
@add_cluster_options
def instances(
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
    here = resolve_cluster_context(**where)
    fleet = read_existing_cluster_fleet(here, details=details)
    answer = read_local_cluster_state(here, live=False)
    rows = answer.join(fleet.rows, here)
    for group in groups:
        find_instance_group(fleet.description, group)
    at = output.get_current_utc_time()
    shown = [
        row
        for row in (resolve_nodes_by_names(rows, names) if names else rows)
        if matches_node_filters(row, groups, states)
    ]
    view = ClusterNodesView(
        as_of=at,
        cluster=str(fleet.description.get("ClusterName", here.cluster)),
        status=str(fleet.description["ClusterStatus"]),
        total=len(rows),
        details=details,
        slurm_error=answer.slurm_error,
        health_error=answer.health_error,
        nodes=tuple(shown),
        failed_nodes=list_failed_nodes(here.aws, fleet.description, shown, at),
    )
    output.show_view("cluster-nodes", view, as_json)
    blind = here.slurm and answer.slurm is None
    unread = any(row.unread for row in view.nodes)
    output.exit_with_code(ExitCode.CANNOT_TELL if blind or unread else ExitCode.FINE)


def _list_node_remarks(row: NodeRow) -> list[tuple[str, str]]:
    """List what a table has no room for. Failures are apart; Running needs no old message."""
    lines = []
    failed = row.status in FAILURE or (row.status == "Pending" and not row.instance_id)
    if row.message and row.status != "Running" and not failed:
        lines.append((row.message, BAD))
    if row.unread:
        lines.append((f"not known: {row.unread}", WARN))
    if row.slurm_reason and row.slurm_state not in (UNKNOWN, NOT_FOUND):
        lines.append((f"Slurm's Reason: {row.slurm_reason}", ""))
    return lines
