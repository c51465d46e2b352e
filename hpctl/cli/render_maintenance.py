"""What software updates and deep health checks show to people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from hpctl.cli.output import DRY_RUN
from hpctl.cli.render import BAD, DIM, GOOD, WARN, columns, word, wrapped

if TYPE_CHECKING:
    from hpctl.cli.cluster.maintenance import MaintenanceView
    from hpctl.clusters.maintenance import GroupWork, Work

OUTCOMES = {
    "dry_run": (DRY_RUN, DIM),
    "ordered": ("ordered; it goes on", WARN),
    "interrupted": ("interrupted; it goes on in the service: hpctl cluster wait", WARN),
    "done": ("done", GOOD),
    "failed": ("failed", BAD),
}
_RESULTS = {"passed": GOOD, "failed": BAD, "replaced": WARN, "rebooted": WARN, "gone": WARN}


def work_lines(work: Work) -> list[str]:
    """One line a group, of one look."""
    lines = [f"the cluster is {work.status}"] if work.status != "InService" else []
    lines += [_group(group) for group in work.groups]
    return [*lines, f"cannot look: {work.unread}"] if work.unread else lines


def _group(group: GroupWork) -> str:
    counts = ", ".join(f"{count} {status}" for status, count in sorted(group.nodes.items()))
    new = f"; {group.updated} of {group.total} have {group.desired}" if group.desired else ""
    return f"{group.name}: {group.status}: {counts or 'no node'}{new}"


def result(out: Console, view: MaintenanceView) -> None:
    """The end of it, or the request where nothing was ordered."""
    if view.outcome == "dry_run":
        out.print(Text(f"{view.operation} {json.dumps(view.request, indent=2)}"))
    for group in view.groups:
        out.print(Text(_group(group)))
    if view.nodes:
        table = columns("NODE", "INSTANCE", "RESULT", "NEW INSTANCE", wrapped("WHY"))
        for node in view.nodes:
            table.add_row(
                Text(node.node),
                word(node.instance_id),
                Text(node.result, _RESULTS.get(node.result, "")),
                word(node.new_instance_id),
                Text(node.message),
            )
        out.print(table)
    said, style = OUTCOMES[view.outcome]
    out.print(Text(f"{said}: {view.failed}" if view.failed else said, style))
