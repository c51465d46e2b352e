"""What the commands that change a cluster show when they end, and before they ask."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from hpctl.cli.output import DRY_RUN
from hpctl.cli.render import BAD, DIM, GOOD, HEAD, WARN, columns, wrapped
from hpctl.cli.render_cluster_progress import FAILING_SHOWN, failures
from hpctl.cli.render_node_orders import PHASES
from hpctl.clusters.diff import Change, Kind
from hpctl.core.tell import duration

if TYPE_CHECKING:
    from hpctl.cli.cluster.change_view import ClusterChangeView, RemovalView

ORDERS_SHOWN = 3

MARKS = {
    Kind.ADD: ("+", GOOD),
    Kind.CHANGE: ("~", WARN),
    Kind.DESTROY: ("-", BAD),
    Kind.IMPOSSIBLE: ("!", BAD),
}
_COUNTS = {
    Kind.ADD: "to add",
    Kind.CHANGE: "to change",
    Kind.DESTROY: "to destroy",
    Kind.IMPOSSIBLE: "impossible in place",
}
_DONE = {
    "unchanged": ("there is nothing to do", GOOD),
    "ordered": ("ordered", ""),
    "reached": ("done", GOOD),
    "failed": ("failed", BAD),
    "in_doubt": ("in doubt", WARN),
    "deadline": ("not done yet", WARN),
    "interrupted": ("interrupted; what was ordered goes on", WARN),
}


def change(out: Console, view: ClusterChangeView) -> None:
    """The end of a command."""
    if view.changes:
        diff(out, view.changes)
    for order in view.orders[:ORDERS_SHOWN]:
        out.print(Text(order.operation, HEAD))
        out.print(Text(json.dumps(order.request, indent=2, default=str)))
    if (more := len(view.orders) - ORDERS_SHOWN) > 0:
        out.print(Text(f"and {more} more calls like these (--json has all of them)", DIM))
    if view.removals:
        nodes_going(out, view.removals)
    for line in failures(view.failed_nodes, FAILING_SHOWN):
        out.print(line)
    out.print(Text(DRY_RUN, DIM) if view.outcome == "dry_run" else _last(view))
    if view.pick_up and view.outcome in ("ordered", "deadline", "interrupted"):
        out.print(Text(f"  {view.pick_up}"))


def _last(view: ClusterChangeView) -> Text:
    said, style = _DONE[view.outcome]
    text = Text.assemble((f"{view.command} {view.cluster}: ", ""), (said, style))
    if view.why:
        text.append(f": {view.why}")
    if view.status:
        groups = ", ".join(f"{g.name} {g.current}/{g.target}" for g in view.groups)
        text.append(f"; {view.status}" + (f", {groups}" if groups else ""))
    if view.waited_s:
        text.append(f" ({duration(view.waited_s)})", DIM)
    return text


def diff(out: Console, changes: Sequence[Change]) -> None:
    """What is added, changed, destroyed, and what cannot be."""
    for one in changes:
        mark, style = MARKS[one.kind]
        line = Text(f"{mark} {one.place}: ", style)
        line.append(_values(one), "")
        out.print(line)
        if one.consequence:
            out.print(Padding(Text(one.consequence, DIM), (0, 0, 0, 4)))
    counts = [
        f"{sum(1 for c in changes if c.kind is kind)} {text}"
        for kind, text in _COUNTS.items()
        if any(c.kind is kind for c in changes)
    ]
    out.print(Text(", ".join(counts), HEAD))


def _values(one: Change) -> str:
    if one.old is None:
        return _value(one.new)
    if one.new is None:
        return f"{_value(one.old)} (removed)"
    return f"{_value(one.old)} -> {_value(one.new)}"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def nodes_going(out: Console, going: Sequence[RemovalView]) -> None:
    """Nodes that go, why these, and what became of each."""
    ordered = any(r.phase for r in going)
    table = columns("NODE", "INSTANCE", "GROUP", wrapped("WHY"), *(["RESULT"] if ordered else []))
    for one in going:
        jobs = f" ({', '.join(map(str, one.jobs))})" if one.jobs else ""
        bad = one.phase in ("refused", "failed", "in_doubt")
        style = BAD if bad else (WARN if one.phase in ("left", "let_go") else GOOD)
        row = [
            Text(one.node or "-"),
            Text(one.instance_id or one.logical_id),
            Text(one.group),
            Text(f"{one.why}{jobs}"),
        ]
        result = Text(PHASES[one.phase] if one.phase else "-", style)
        table.add_row(*row, *([result] if ordered else []))
    out.print(table)
    for one in going:
        name = one.node or one.instance_id or one.logical_id
        if one.phase in ("refused", "failed", "in_doubt"):
            code = f" ({one.code})" if one.code and one.code not in one.text else ""
            out.print(Text(f"{name}: {one.text}{code}", BAD))
            if one.mend:
                out.print(Text(f"  {one.mend}"))
        if one.left_drained:
            out.print(Text(f"{name}: drained still, with Reason {one.left_drained}", WARN))
