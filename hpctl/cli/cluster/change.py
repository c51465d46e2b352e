"""What the commands that change a cluster tell when they end: one view for all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from hpctl.cli import output
from hpctl.cli.cluster.screen import FAILING_SHOWN, failures
from hpctl.cli.lazy import INTERRUPTED
from hpctl.cli.output import DRY_RUN, Exit
from hpctl.cli.tables import (
    BAD,
    DIM,
    GOOD,
    HEAD,
    WARN,
    assembled,
    columns,
    indented,
    styled,
    wrapped,
)
from hpctl.clusters.diff import Change, Kind
from hpctl.clusters.progress import GroupProgress, NodeProgress, Progress, Verdict
from hpctl.core.timeline import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PHASES = {
    "jobs": "waits for its jobs",
    "ordered": "ordered",
    "coming": "the new instance is coming",
    "joining": "Running; waits for its slurmd",
    "done": "done",
    "left": "under way",
    "let_go": "interrupted; given back",
    "refused": "refused",
    "failed": "failed",
    "in_doubt": "in doubt",
}
"""How far a node of an order is."""


@dataclass(frozen=True, slots=True)
class CallView:
    """One call of the API that is, or would be, made."""

    operation: str
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RemovalView:
    """One node that goes, why it is this one, and what became of it.

    `phase` is empty where nothing was done yet; `left_drained` the Reason that Slurm still has.
    """

    node: str
    instance_id: str
    logical_id: str
    group: str
    why: str
    jobs: tuple[int, ...]
    phase: str = ""
    text: str = ""
    code: str = ""
    mend: str = ""
    left_drained: str = ""


@dataclass(frozen=True, slots=True)
class ClusterChangeView:
    """What `hpctl cluster create|update|scale|delete|wait` shows.

    `outcome` is `dry_run`, `unchanged`, `ordered` (--no-wait), `reached`, `failed`, `in_doubt`,
    `deadline` or `interrupted`; `pick_up` is the command that follows what goes on.
    """

    as_of: datetime
    command: str
    cluster: str
    outcome: str
    why: str = ""
    arn: str = ""
    status: str = ""
    changes: tuple[Change, ...] = ()
    orders: tuple[CallView, ...] = ()
    removals: tuple[RemovalView, ...] = ()
    groups: tuple[GroupProgress, ...] = ()
    failed_nodes: tuple[NodeProgress, ...] = ()
    waited_s: float = 0.0
    pick_up: str = ""


def followed(p: Progress | None) -> dict[str, Any]:
    """The fields of a view that a wait has the last word on."""
    if p is None:
        return {"outcome": "ordered"}
    return {
        "outcome": p.verdict.value if p.verdict is not Verdict.WAITING else "interrupted",
        "why": p.why,
        "arn": p.arn,
        "status": p.status,
        "groups": p.groups,
        "failed_nodes": p.failures,
        "waited_s": round(p.waited_s, 1),
    }


def tell(view: ClusterChangeView, as_json: bool) -> None:
    """Print the view, and leave with the exit code of its outcome."""
    output.show("cluster-change", view, as_json, draw)
    if view.outcome == "interrupted":
        raise click.exceptions.Exit(INTERRUPTED)
    if view.outcome == "failed":
        output.leave(Exit.PROBLEM)
    if view.outcome in ("deadline", "in_doubt"):
        output.leave(Exit.CANNOT_TELL)


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


def draw(out: Console, view: ClusterChangeView) -> None:
    """The end of a command."""
    if view.changes:
        draw_diff(out, view.changes)
    for order in view.orders[:ORDERS_SHOWN]:
        out.print(styled(order.operation, HEAD))
        out.print(json.dumps(order.request, indent=2, default=str))
    if (more := len(view.orders) - ORDERS_SHOWN) > 0:
        out.print(styled(f"and {more} more calls like these (--json has all of them)", DIM))
    if view.removals:
        draw_removals(out, view.removals)
    for line in failures(view.failed_nodes, FAILING_SHOWN):
        out.print(line)
    out.print(styled(DRY_RUN, DIM) if view.outcome == "dry_run" else _last(view))
    if view.pick_up and view.outcome in ("ordered", "deadline", "interrupted"):
        out.print(f"  {view.pick_up}")


def _last(view: ClusterChangeView) -> Text:
    said, style = _DONE[view.outcome]
    text = assembled((f"{view.command} {view.cluster}: ", ""), (said, style))
    if view.why:
        text.append(f": {view.why}")
    if view.status:
        groups = ", ".join(f"{g.name} {g.current}/{g.target}" for g in view.groups)
        text.append(f"; {view.status}" + (f", {groups}" if groups else ""))
    if view.waited_s:
        text.append(f" ({duration(view.waited_s)})", DIM)
    return text


def draw_diff(out: Console, changes: Sequence[Change]) -> None:
    """What is added, changed, destroyed, and what cannot be."""
    for one in changes:
        mark, style = MARKS[one.kind]
        line = styled(f"{mark} {one.place}: ", style)
        line.append(_values(one), "")
        out.print(line)
        if one.consequence:
            out.print(indented(styled(one.consequence, DIM), 4))
    counts = [
        f"{sum(1 for c in changes if c.kind is kind)} {text}"
        for kind, text in _COUNTS.items()
        if any(c.kind is kind for c in changes)
    ]
    out.print(styled(", ".join(counts), HEAD))


def _values(one: Change) -> str:
    if one.old is None:
        return _value(one.new)
    if one.new is None:
        return f"{_value(one.old)} (removed)"
    return f"{_value(one.old)} -> {_value(one.new)}"


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def draw_removals(out: Console, going: Sequence[RemovalView]) -> None:
    """Nodes that go, why these, and what became of each."""
    ordered = any(r.phase for r in going)
    table = columns("NODE", "INSTANCE", "GROUP", wrapped("WHY"), *(["RESULT"] if ordered else []))
    for one in going:
        jobs = f" ({', '.join(map(str, one.jobs))})" if one.jobs else ""
        bad = one.phase in ("refused", "failed", "in_doubt")
        style = BAD if bad else (WARN if one.phase in ("left", "let_go") else GOOD)
        row = [
            styled(one.node or "-"),
            styled(one.instance_id or one.logical_id),
            styled(one.group),
            styled(f"{one.why}{jobs}"),
        ]
        result = styled(PHASES[one.phase] if one.phase else "-", style)
        table.add_row(*row, *([result] if ordered else []))
    out.print(table)
    for one in going:
        name = one.node or one.instance_id or one.logical_id
        if one.phase in ("refused", "failed", "in_doubt"):
            code = f" ({one.code})" if one.code and one.code not in one.text else ""
            out.print(styled(f"{name}: {one.text}{code}", BAD))
            if one.mend:
                out.print(f"  {one.mend}")
        if one.left_drained:
            out.print(styled(f"{name}: drained still, with Reason {one.left_drained}", WARN))
