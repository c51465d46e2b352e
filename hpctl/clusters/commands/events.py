"""`hpctl cluster events`: what the service did to a cluster, and why it failed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, ClassVar

import click
from msgspec import Struct
from msgspec.structs import replace

from hpctl.clusters.commands.context import (
    ClusterCommandContext,
    add_cluster_options,
    cluster_argument,
    complete_group_name,
    complete_node_name,
    read_existing_cluster_fleet,
    resolve_cluster_context,
)
from hpctl.clusters.fleet import NodeLookupError, NodeRow
from hpctl.clusters.fleet_reading import read_node_rows
from hpctl.clusters.node_lookup import find_instance_group, resolve_node_by_name
from hpctl.clusters.watch import LEVELS, ClusterEvent
from hpctl.clusters.watch import read_cluster_events as read
from hpctl.toolkit import output
from hpctl.toolkit.arguments import GROUP
from hpctl.toolkit.declared_view import Column, Columns, JsonOnly, Layout, RowTable, TextLine
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.toolkit.output import PastTimeType
from hpctl.toolkit.tables import BAD, DIM, WARN, format_datetime

EVERY_S = 5.0
_INSTANCE = re.compile(r"i-[0-9a-f]{8,17}")
OVERLAP = timedelta(minutes=2)
"""How far each look of `--follow` reaches back: events come a little late, and out of order."""


class ClusterEventLine(Struct, frozen=True):
    """One event with its node's name, where the node is still there.

    `count` such events are one row, the first at `first`; `event` is the newest, and
    `instances` are those that they are of.
    """

    node: str
    event: ClusterEvent
    count: int = 1
    first: datetime | None = None
    instances: tuple[str, ...] = ()


def _choose_event_style(row: ClusterEventRow) -> str:
    return {"Error": BAD, "Warn": WARN}.get(row.level, "")


class ClusterEventRow(Struct, frozen=True):
    """The text of one event: when, how bad, of what, and what; why on a line below."""

    time: str
    level: str
    where: str
    what: str

    columns: ClassVar[Columns] = (
        Column("TIME", "time"),
        Column("LEVEL", "level", style=_choose_event_style),
        Column("WHERE", "where"),
        Column("WHAT", "what", fold=True, style=_choose_event_style),
    )


class ClusterEventsView(Struct, frozen=True):
    """What `hpctl cluster events` shows, oldest first. `total`: before repeats were folded."""

    as_of: datetime
    cluster: str
    events: tuple[ClusterEventLine, ...]
    total: int = 0

    layout: ClassVar[Layout] = (
        RowTable("texts", otherwise="no events"),
        TextLine(
            "{total} events, repeats folded: --all shows each",
            style=DIM,
            when=lambda view: 0 < len(view.events) < view.total,
        ),
    )
    json_only: ClassVar[JsonOnly] = ("cluster",)

    @property
    def texts(self) -> list[ClusterEventRow]:
        """Return each event; one that failed as the event before it says so."""
        found = []
        last = ""
        for line in self.events:
            at, level, where, what = format_cluster_event_cells(line)
            why = line.event.failure
            if why and why == last:
                what[1] = "as above"
            last = why or last
            if line.count > 1 and line.first is not None:
                of = f" of {len(line.instances)} instances" if len(line.instances) > 1 else ""
                what.append(f"{line.count} times{of}, first at {format_datetime(line.first)}")
            found.append(ClusterEventRow(at, level, where, "\n".join(what)))
        return found


@click.command()
@cluster_argument
@click.option(
    "--level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="Info",
    show_default=True,
    help="Nothing below this.",
)
@click.option("--since", type=PastTimeType(), help="Nothing before: 30min, 12h, 7d or ISO 8601.")
@click.option(
    "--group",
    type=GROUP,
    default="",
    shell_complete=complete_group_name,
    help="Only of this instance group.",
)
@click.option(
    "--node",
    metavar="NODE",
    default="",
    shell_complete=complete_node_name,
    help="Only of this node, by any of its names; an instance id that is gone will do.",
)
@click.option("--all", "every", is_flag=True, help="Every event; else repeats are one line.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new ones until Ctrl-C.")
@output.json_option
@add_cluster_options
def events(
    name: str | None,
    level: str,
    since: datetime | None,
    group: str,
    node: str,
    every: bool,
    follow: bool,
    as_json: bool,
    cluster: str | None,
    **where: Any,
) -> None:
    """What the service did to a cluster, and why it failed.

    A node that is tried again and again says the same again and again: that is one line, with how
    often and since when. Only clusters with NodeProvisioningMode Continuous have events; the
    service keeps 500.
    """

    if follow and as_json:
        raise click.UsageError(
            "--json and --follow cannot be used together: --json prints one object and ends"
        )
    here = resolve_cluster_context(name or cluster, **where)
    fleet = read_existing_cluster_fleet(here)
    rows = fleet.rows
    if group:
        find_instance_group(fleet.description, group)
    levels = LEVELS[LEVELS.index(level) :]
    asked: dict[str, Any] = {
        "group": group,
        "instance": _resolve_node_instance_id(rows, node),
        "levels": levels,
    }
    found = read(here.aws, here.cluster, after=since, **asked)
    text = make_cluster_event_lines(found, rows)
    shown = text if every else fold_repeated_events(text)
    view = ClusterEventsView(output.get_current_utc_time(), here.cluster, shown, len(text))
    output.show_view("cluster-events", view, as_json)
    if follow:
        _follow_new_cluster_events(here, found, since, asked)


def make_cluster_event_lines(
    found: Iterable[ClusterEvent], rows: Iterable[NodeRow]
) -> tuple[ClusterEventLine, ...]:
    """Return the events with the names of the nodes that they are of."""
    names = {row.instance_id: row.node for row in rows if row.instance_id}
    places = {row.logical_id: row.node for row in rows if row.logical_id}
    return tuple(
        ClusterEventLine(
            names.get(e.instance_id) or places.get(e.logical_id, ""),
            e,
            first=e.at,
            instances=(e.instance_id,) if e.instance_id else (),
        )
        for e in found
    )


def fold_repeated_events(messages: Iterable[ClusterEventLine]) -> tuple[ClusterEventLine, ...]:
    """Events that say the same of one node, or of gone instances of a group, as one: the newest.

    Instance ids differ from try to try and count for nothing in what an event says.
    """
    alike: dict[tuple[str, ...], list[ClusterEventLine]] = {}
    for line in messages:
        e = line.event
        message = (_INSTANCE.sub("", text) for text in (e.text, e.failure, e.slurm, e.lifecycle))
        alike.setdefault((e.level, e.resource, line.node, e.group, *message), []).append(line)
    lines = []
    for same in alike.values():
        # Two lines as one with a count are two lines still.
        lines += [_merge_repeated_events(same)] if len(same) > 2 else same
    return tuple(sorted(lines, key=lambda line: (line.event.at, line.event.id)))


def _merge_repeated_events(same: list[ClusterEventLine]) -> ClusterEventLine:
    instances = dict.fromkeys(line.event.instance_id for line in same if line.event.instance_id)
    newest = same[-1]
    return replace(newest, count=len(same), first=same[0].event.at, instances=tuple(instances))


def _resolve_node_instance_id(rows: tuple[NodeRow, ...], name: str) -> str:
    if not name:
        return ""
    try:
        return resolve_node_by_name(rows, name).instance_id
    except NodeLookupError:
        # The events of an instance outlive it.
        if name.startswith("i-"):
            return name
        raise


def _follow_new_cluster_events(
    here: ClusterCommandContext,
    found: tuple[ClusterEvent, ...],
    since: datetime | None,
    asked: dict[str, Any],
) -> None:
    """Print what is new, until Ctrl-C. A look that fails is tried again."""

    text, after = {event.id for event in found}, since or output.get_current_utc_time()
    try:
        while True:
            time.sleep(EVERY_S)
            begun = output.get_current_utc_time()
            try:
                new = read(here.aws, here.cluster, after=after - OVERLAP, **asked)
                rows = read_node_rows(here.aws, here.cluster, details=False)
            except ServiceUnavailable as error:
                output.echo(f"hpctl: {error}; trying again", err=True)
                continue
            fresh = [event for event in new if event.id not in text]
            text |= {event.id for event in fresh}
            after = max(after, begun)
            for line in format_cluster_event_lines(make_cluster_event_lines(fresh, rows)):
                output.echo(line)
    except KeyboardInterrupt:
        return


def format_cluster_event_lines(draw: Iterable[ClusterEventLine]) -> list[str]:
    """Events one below the other as they come, one line each."""
    return [
        f"{at}  {level:5}  {where}  {'; '.join(what)}"
        for at, level, where, what in map(format_cluster_event_cells, draw)
    ]


def format_cluster_event_cells(line: ClusterEventLine) -> tuple[str, str, str, list[str]]:
    """When, how bad, of what, and what it was with why."""
    event = line.event
    alone = event.instance_id if len(line.instances) < 2 else ""
    where = line.node or alone or event.group or event.resource.lower()
    gone = f" (of {alone})" if line.node and alone and alone not in event.text else ""
    script = "" if "lifecycle" in event.text.lower() else event.lifecycle
    why = (event.failure, event.slurm, script and f"lifecycle script: {script}")
    what = [f"{event.text}{gone}", *(part for part in why if part)]
    return format_datetime(event.at), event.level, where, what
