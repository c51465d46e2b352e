"""What the commands of `hpctl cluster` that look at a cluster show to people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpctl.cli.render import BAD, DIM, WARN, WIDE, ago, columns, word, wrapped
from hpctl.cli.render_cluster_progress import failures
from hpctl.clusters.names import NOT_FOUND, UNKNOWN
from hpctl.clusters.progress import FAILURE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from hpctl.cli.cluster.describe import ClusterDescribeView, GroupView
    from hpctl.cli.cluster.events import ClusterEventsView, EventLine
    from hpctl.cli.cluster.listing import ClusterListView
    from hpctl.cli.cluster.nodes import ClusterNodesView
    from hpctl.clusters.names import NodeRow
    from hpctl.clusters.progress import NodeProgress

JOBS_SHOWN = 3


def facts(*rows: tuple[str, str | Text]) -> Table:
    """Name and value, two columns; rows without a value are left out."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style=DIM, no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        if value:
            table.add_row(name, Text(value) if isinstance(value, str) else value)
    return table


def clusters(out: Console, view: ClusterListView) -> None:
    """The table of `hpctl cluster list`."""
    if not view.clusters:
        out.print(Text(f"no HyperPod cluster in {view.region}"))
        return
    wide = out.width >= WIDE
    table = columns("NAME", "STATUS", "AGE", *(["ARN"] if wide else []))
    for one in view.clusters:
        status = word(one.status)
        age = Text(ago(one.created, view.as_of).removesuffix(" ago"))
        table.add_row(Text(one.name), status, age, *([Text(one.arn)] if wide else []))
    out.print(table)


def describe(out: Console, view: ClusterDescribeView) -> None:
    """The screen of `hpctl cluster describe`."""
    from hpctl.cli.cluster.describe import failure

    out.print(
        facts(
            ("cluster", view.name),
            ("arn", view.arn),
            ("status", word(view.status)),
            ("age", ago(view.created, view.as_of).removesuffix(" ago")),
            ("provisioning", view.provisioning),
            ("recovery", view.node_recovery),
            ("subnets", ", ".join(view.subnets)),
            ("security", ", ".join(view.security_groups)),
        )
    )
    out.print()
    out.print(_groups(view.groups, wide=out.width >= WIDE))
    if view.problems:
        out.print()
        out.print(Text("Wrong", "bold"))
        told = {failure(node) for node in view.failed_nodes}
        for line in view.problems:
            if line not in told:
                out.print(Padding(Text(line, BAD), (0, 0, 0, 2)))
        _failed(out, view.failed_nodes, indent=2)


def _failed(out: Console, nodes: Sequence[NodeProgress], indent: int = 0) -> None:
    for line in failures(nodes):
        out.print(Padding(line, (0, 0, 0, indent)))


def _groups(groups: Sequence[GroupView], *, wide: bool) -> Table:
    more = ["PARTITION", "CAPACITY", "IMAGE", "UPDATE"] if wide else []
    table = columns("GROUP", "ROLE", wrapped("TYPE"), "NODES", "STATUS", *more)
    for group in groups:
        count = f"{group.current}/{group.target}"
        count += f" (min {group.minimum})" if group.minimum is not None else ""
        types = Text(", ".join(group.types) or "-")
        row = [Text(group.name), word(group.role), types, Text(count), word(group.status)]
        if wide:
            plan = group.training_plan.rpartition("/")[2]
            image = " ".join(filter(None, (group.image, group.image_status)))
            row += [
                word(",".join(group.partitions)),
                Text(plan or group.capacity),
                word(image),
                word(group.software_update),
            ]
        table.add_row(*row)
    return table


def nodes(out: Console, view: ClusterNodesView) -> None:
    """The table of `hpctl cluster nodes`."""
    wide = out.width >= WIDE
    slurm = any(row.slurm_state != UNKNOWN for row in view.nodes)
    judged = any(row.health_why for row in view.nodes)
    shown: list[tuple[str | tuple[str, dict[str, object]], bool]] = [
        ("NODE", True),
        ("INSTANCE", True),
        ("NAME", wide and any(row.instance_name for row in view.nodes)),
        ("LOGICAL ID", wide),
        ("IP", wide),
        ("GROUP", wide),
        ("ZONE", wide and view.details),
        ("IMAGE", wide and view.details),
        ("STATUS", True),
        # The one column whose words run long: states are a base and any number of flags.
        (("SLURM", {"no_wrap": False, "overflow": "fold"}), slurm),
        ("JOBS", slurm),
        ("HEALTH", judged),
    ]
    table = columns(*(head for head, wanted in shown if wanted))
    for row in view.nodes:
        cells = zip(_cells(row), shown, strict=True)
        table.add_row(*(cell for cell, (_, wanted) in cells if wanted))
    if view.nodes:
        out.print(table)
    out.print(Text(_count(view), DIM))
    _failed(out, view.failed_nodes)
    for row in view.nodes:
        for text, style in _remarks(row):
            out.print(Text(f"{row.shown}: {text}", style))
    for error in dict.fromkeys(filter(None, (view.slurm_error, view.health_error))):
        out.print(Text(error, WARN))


def _cells(row: NodeRow) -> list[Text]:
    """A cell for every column that there can be."""
    names = (row.node, row.instance_id, row.instance_name, row.logical_id, row.ip, row.group)
    told = (row.zone, row.image, row.status)
    return [*map(word, (*names, *told)), _slurm(row), word(_jobs(row.jobs)), word(row.health)]


def _count(view: ClusterNodesView) -> str:
    shown = "" if len(view.nodes) == view.total else f"{len(view.nodes)} of "
    groups = Counter(row.group for row in view.nodes)
    which = ", ".join(f"{count} {group}" for group, count in groups.items())
    whole = f"{shown}{view.total} node(s) of {view.cluster}, which is {view.status}"
    return f"{whole}: {which}" if which else whole


def _slurm(row: NodeRow) -> Text:
    state = word(row.slurm_state)
    flags = [flag for flag in row.slurm_flags if flag != "CLOUD"]
    return Text("+").join([state, *(Text(flag, WARN) for flag in flags)])


def _jobs(jobs: Sequence[int]) -> str:
    more = f",+{len(jobs) - JOBS_SHOWN}" if len(jobs) > JOBS_SHOWN else ""
    return ",".join(map(str, jobs[:JOBS_SHOWN])) + more


def _remarks(row: NodeRow) -> list[tuple[str, str]]:
    """What a table has no room for. What failed is told apart; Running needs no old message."""
    said = []
    failed = row.status in FAILURE or (row.status == "Pending" and not row.instance_id)
    if row.message and row.status != "Running" and not failed:
        said.append((row.message, BAD))
    if row.unread:
        said.append((f"not known: {row.unread}", WARN))
    if row.slurm_reason and row.slurm_state not in (UNKNOWN, NOT_FOUND):
        said.append((f"Slurm's Reason: {row.slurm_reason}", ""))
    return said


def events(out: Console, view: ClusterEventsView) -> None:
    """The lines of `hpctl cluster events`: time, level, of what, and what; why on a line below."""
    if not view.events:
        out.print(Text("no events"))
        return
    table = columns("TIME", "LEVEL", "WHERE", wrapped("WHAT"))
    last = ""
    for line in view.events:
        style = {"Error": BAD, "Warn": WARN}.get(line.event.level, "")
        at, level, where, what = event_cells(line)
        if (why := line.event.failure) and why == last:
            what[1] = "as above"
        last = why or last
        if line.count > 1 and line.first is not None:
            of = f" of {len(line.instances)} instances" if len(line.instances) > 1 else ""
            what.append(f"{line.count} times{of}, first at {_moment(line.first)}")
        text = Text("\n".join(what), style)
        table.add_row(Text(at), Text(level, style), Text(where), text)
    out.print(table)
    if len(view.events) < view.total:
        out.print(Text(f"{view.total} events, repeats folded: --all shows each", DIM))


def event_lines(events: Iterable[EventLine]) -> list[str]:
    """Events one below the other as they come, one line each."""
    return [
        f"{at}  {level:5}  {where}  {'; '.join(what)}"
        for at, level, where, what in map(event_cells, events)
    ]


def event_cells(line: EventLine) -> tuple[str, str, str, list[str]]:
    """When, how bad, of what, and what it was with why."""
    event = line.event
    alone = event.instance_id if len(line.instances) < 2 else ""
    where = line.node or alone or event.group or event.resource.lower()
    gone = f" (of {alone})" if line.node and alone and alone not in event.text else ""
    script = "" if "lifecycle" in event.text.lower() else event.lifecycle
    why = (event.failure, event.slurm, script and f"lifecycle script: {script}")
    what = [f"{event.text}{gone}", *(part for part in why if part)]
    return _moment(event.at), event.level, where, what


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"
