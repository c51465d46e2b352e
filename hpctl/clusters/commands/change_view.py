"""What the commands that change a cluster tell when they end: one view for all of them.

A cluster under way: a live screen on a terminal, lines with their time elsewhere.

Both go to standard error. Lines come when something changed, and once a minute in any case.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import click
from msgspec import Struct

from hpctl.clusters.diff import SpecChange, SpecChangeKind
from hpctl.clusters.progress import (
    ClusterProgress,
    ClusterProgressEvent,
    ClusterWaitState,
    InstanceGroupProgress,
    NodeProgress,
)
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import (
    Column,
    Columns,
    ItemTextLines,
    JsonOnly,
    Layout,
    RepeatedLayoutParts,
    RowTable,
    TextLine,
)
from hpctl.toolkit.durations import format_duration
from hpctl.toolkit.lazy_commands import INTERRUPTED
from hpctl.toolkit.output import DRY_RUN, ExitCode
from hpctl.toolkit.tables import (
    BAD,
    DIM,
    GOOD,
    HEAD,
    WARN,
    assemble_styled_text,
    indent_block,
    stack_renderables,
    style_text,
)

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text


FAILING_SHOWN = 5
SAME_SHOWN = 6
"""Nodes that failed alike that are named."""
EVENTS_SHOWN = 3
BEAT_S = 60.0

_LEVELS = {"Error": BAD, "Warn": WARN}


class ClusterProgressScreen(Protocol):
    """Where looks at a cluster are shown."""

    def show(self, progress: ClusterProgress) -> None:
        """Show a look."""


@contextmanager
def open_cluster_progress_screen() -> Iterator[ClusterProgressScreen]:
    """A live screen where standard error is a terminal, else lines."""
    err = sys.stderr
    if not err.isatty():
        yield LineClusterProgressScreen()
        return
    from rich.live import Live

    console = output.make_console(err=True)
    # A progress display that outlives the command is in the way of its result.
    with Live(console=console, transient=True, refresh_per_second=4) as live:
        yield LiveClusterProgressScreen(live)


class LiveClusterProgressScreen:
    """One bar a group, the nodes that fail, the newest events."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._events: list[ClusterProgressEvent] = []

    def show(self, progress: ClusterProgress) -> None:
        """Draw it in place of the one before."""
        self._events = [*self._events, *progress.events][-EVENTS_SHOWN:]
        console = self._live.console
        # What has scrolled out at the top cannot be wiped out again: it would stay for good.
        for in_full in range(FAILING_SHOWN, -1, -1):
            drawn = render_live_cluster_progress(progress, self._events, in_full)
            if len(console.render_lines(drawn, pad=False)) < console.height:
                break
        self._live.update(drawn)


def render_live_cluster_progress(
    progress: ClusterProgress, events: list[ClusterProgressEvent], in_full: int = FAILING_SHOWN
) -> RenderableType:
    """Return the current live screen, with so many ways to fail; the other nodes are
    counted."""
    parts: list[RenderableType] = [
        _render_cluster_progress_header(progress),
        _render_group_progress_bars(progress),
    ]
    parts += describe_failed_nodes_by_failure(progress.failures, in_full)
    parts += [_render_cluster_event(event) for event in events]
    if progress.unread:
        parts.append(style_text(f"cannot read the state now: {progress.unread}", WARN))
    parts.append(style_text("Ctrl-C stops the wait; the operation continues", DIM))
    return stack_renderables(parts)


def _render_cluster_progress_header(progress: ClusterProgress) -> Text:
    text = assemble_styled_text(("cluster ", DIM), (progress.cluster, HEAD), "  ", progress.status)
    text.append(f"  {format_duration(progress.waited_s)}", DIM)
    if progress.failure:
        text.append(f"  {progress.failure}", BAD)
    return text


def _render_group_progress_bars(progress: ClusterProgress) -> Table:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for group in progress.groups:
        full = group.current >= group.target
        bar = ProgressBar(total=max(group.target, 1), completed=group.current, width=30)
        if not group.target:
            bar = ProgressBar(total=1, completed=1, width=30)
        table.add_row(
            group.name,
            bar,
            style_text(f"{group.current}/{group.target}", GOOD if full else ""),
            group.status,
            style_text(_format_nonrunning_node_counts(group, progress.nodes), DIM),
        )
    return table


def _format_nonrunning_node_counts(
    group: InstanceGroupProgress, nodes: tuple[NodeProgress, ...]
) -> str:
    """Return how many nodes are in each status that is not Running."""
    own = [n.status for n in nodes if n.group == group.name and n.status != "Running"]
    return ", ".join(f"{own.count(status)} {status}" for status in dict.fromkeys(own))


def describe_failed_node(node: NodeProgress) -> list[Text]:
    """Return a failed node: what the service says, what it means, the log's line, what to do."""
    ids = f" ({node.instance_id})" if node.instance_id not in ("", node.name) else ""
    lines = [style_text(f"{node.group} {node.name}{ids} is {node.status}: {node.message}", BAD)]
    trouble = node.trouble
    if trouble is None:
        return lines
    lines.append(style_text(f"  means: {trouble.meaning}"))
    if trouble.line:
        unnamed = trouble.step and trouble.step not in trouble.line
        step = f"step {trouble.step}: " if unnamed else ""
        lines.append(style_text(f"  log: {step}{trouble.line}"))
    elif trouble.unread:
        lines.append(style_text(f"  log: {trouble.unread}", DIM))
    if trouble.log:
        group, _, stream = trouble.log.partition(" ")
        # Two lines that a shell takes as one, for screens on which one line would be cut.
        lines.append(style_text(f"  rest: aws logs tail {group} \\", DIM))
        lines.append(style_text(f"    --log-stream-names {stream}", DIM))
    lines.append(style_text(f"  fix: {trouble.fix}"))
    return lines


def describe_failed_nodes_by_failure(
    nodes: Sequence[NodeProgress], most: int | None = None
) -> list[RenderableType]:
    """Describe failed nodes, those that failed alike together; only so many ways are listed."""
    ways = _group_nodes_by_failure(nodes)
    lines: list[RenderableType] = []
    for same in ways[:most]:
        lines += [indent_wrapped_line(line) for line in describe_failed_node(same[0])]
        others = ", ".join(node.name for node in same[1:SAME_SHOWN])
        if others:
            more = f" and {len(same) - SAME_SHOWN} more" if len(same) > SAME_SHOWN else ""
            lines.append(indent_wrapped_line(style_text(f"  so did {others}{more}", BAD)))
    if most is not None and (left := sum(map(len, ways[most:]))):
        lines.append(style_text(f"{left} node(s) failed" + " otherwise" * bool(lines), BAD))
    return lines


def _group_nodes_by_failure(nodes: Sequence[NodeProgress]) -> list[list[NodeProgress]]:
    """Return nodes by how they failed. One whose log was not read goes by the service's words
    alone."""
    alike: dict[tuple[str, str, str, str], list[NodeProgress]] = {}
    for node in nodes:
        lines = (node.group, node.status, node.message)
        trouble = node.trouble
        if trouble is None:
            key = next((k for k in alike if k[:3] == lines), (*lines, ""))
        else:
            # hpctl's own scripts name the node in their last line.
            line = trouble.line.replace(node.name, "")
            key = (*lines, f"{trouble.meaning} {line} {trouble.unread}")
        alike.setdefault(key, []).append(node)
    return list(alike.values())


def _render_cluster_event(event: ClusterProgressEvent) -> Text:
    parts = (f"{event.at:%H:%M:%S}", event.group, event.instance_id, event.text)
    return style_text(" ".join(part for part in parts if part), _LEVELS.get(event.level, DIM))


def indent_wrapped_line(line: Text) -> Padding:
    """Return a line whose own indent holds for its wrapped parts as well."""
    depth = len(line.plain) - len(line.plain.lstrip())
    return indent_block(line[depth:], depth)


class LineClusterProgressScreen:
    """Lines on standard error: what changed, with its time."""

    def __init__(self) -> None:
        self._printed: tuple[object, ...] = ()
        self._printed_at = 0.0
        self._nodes: set[tuple[str, str, str]] = set()

    def show(self, progress: ClusterProgress) -> None:
        """Write what is new."""
        groups = ", ".join(
            f"{g.name} {g.current}/{g.target}"
            + _format_parenthesized(_format_nonrunning_node_counts(g, progress.nodes))
            for g in progress.groups
        )
        lines = (progress.status, groups, progress.unread)
        beat = progress.waited_s - self._printed_at >= BEAT_S
        if lines != self._printed or beat or progress.verdict is ClusterWaitState.DEADLINE:
            self._printed, self._printed_at = lines, progress.waited_s
            line = (
                f"{progress.cluster} {progress.status}: {groups}"
                if groups
                else (f"{progress.cluster} {progress.status}")
            )
            self._write(progress, line)
            if progress.unread:
                self._write(progress, f"cannot read the state now: {progress.unread}")
        for event in progress.events:
            # What happens to an instance is shown with the node, and with what it means.
            if event.level in _LEVELS and not event.instance_id:
                self._write(progress, f"event: {_render_cluster_event(event).plain}")
        for node in progress.failed_nodes:
            self._print_new_node_failure(progress, node)

    def _print_new_node_failure(self, progress: ClusterProgress, node: NodeProgress) -> None:
        """Whatever is new about a failed node; in short where it failed like this before."""
        line = node.trouble.line if node.trouble else ""
        if (node.key, node.instance_id, line) in self._nodes:
            return
        self._nodes.add((node.key, node.instance_id, line))
        again = (node.key, node.message, line) in self._nodes
        self._nodes.add((node.key, node.message, line))
        lines = describe_failed_node(node)
        if again:
            lines = [
                style_text(f"{node.group} {node.name} failed again ({node.instance_id}), as before")
            ]
        for text in lines:
            self._write(progress, text.plain)

    def _write(self, progress: ClusterProgress, line: str) -> None:
        output.echo(f"{progress.at:%Y-%m-%dT%H:%M:%SZ} {line}", err=True)


def _format_parenthesized(text: str) -> str:
    return f" ({text})" if text else ""


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


ORDERS_SHOWN = 3

MARKS = {
    SpecChangeKind.ADD: ("+", GOOD),
    SpecChangeKind.CHANGE: ("~", WARN),
    SpecChangeKind.DESTROY: ("-", BAD),
    SpecChangeKind.IMPOSSIBLE: ("!", BAD),
}
_COUNTS = {
    SpecChangeKind.ADD: "to add",
    SpecChangeKind.CHANGE: "to change",
    SpecChangeKind.DESTROY: "to destroy",
    SpecChangeKind.IMPOSSIBLE: "impossible in place",
}
_DONE = {
    "unchanged": ("there is nothing to do", GOOD),
    "ordered": ("ordered", ""),
    "reached": ("done", GOOD),
    "failed": ("failed", BAD),
    "in_doubt": ("in doubt", WARN),
    "deadline": ("not done yet", WARN),
    "interrupted": ("interrupted; what was ordered continues", WARN),
}


def _render_change_outcome_line(view: ClusterChangeView) -> Text:
    if view.outcome == "dry_run":
        return style_text(DRY_RUN, DIM)
    message, style = _DONE[view.outcome]
    text = assemble_styled_text((f"{view.command} {view.cluster}: ", ""), (message, style))
    if view.why:
        text.append(f": {view.why}")
    if view.status:
        groups = ", ".join(f"{g.name} {g.current}/{g.target}" for g in view.groups)
        text.append(f"; {view.status}" + (f", {groups}" if groups else ""))
    if view.waited_s:
        text.append(f" ({format_duration(view.waited_s)})", DIM)
    return text


def _format_old_and_new_spec_values(one: SpecChange) -> str:
    if one.old is None:
        return _format_spec_value(one.new)
    if one.new is None:
        return f"{_format_spec_value(one.old)} (removed)"
    return f"{_format_spec_value(one.old)} -> {_format_spec_value(one.new)}"


def _format_spec_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _format_spec_change(one: SpecChange) -> Text:
    mark, style = MARKS[one.kind]
    line = style_text(f"{mark} {one.place}: ", style)
    return line.append(_format_old_and_new_spec_values(one), "")


def _format_spec_change_counts(view: Any) -> str:
    kinds = [one.kind for one in view.changes]
    return ", ".join(
        f"{kinds.count(kind)} {text}" for kind, text in _COUNTS.items() if kind in kinds
    )


CHANGES: Layout = (
    RepeatedLayoutParts(
        "changes", (TextLine(_format_spec_change), TextLine("{consequence}", style=DIM, indent=4))
    ),
    TextLine(_format_spec_change_counts, style=HEAD),
)
"""The text of any view's `changes`: what is added, changed, destroyed, and what cannot be."""


def _choose_node_removal_style(one: NodeRemovalView) -> str:
    if one.has_unsuccessful_outcome:
        return BAD
    return WARN if one.phase in ("left", "let_go") else GOOD


class ApiCallView(Struct, frozen=True):
    """One call of the API that is, or would be, made."""

    operation: str
    request: Mapping[str, Any]

    @property
    def request_text(self) -> str:
        """Return the request as JSON."""
        return json.dumps(self.request, indent=2, default=str)


class NodeRemovalView(Struct, frozen=True):
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
    fix: str = ""
    left_drained: str = ""

    columns: ClassVar[Columns] = (
        Column("NODE", "node", empty="-"),
        Column("INSTANCE", lambda one: one.instance_id or one.logical_id),
        Column("GROUP", "group"),
        Column("WHY", "{why}{jobs_text}", fold=True),
        Column(
            "RESULT",
            lambda one: PHASES[one.phase] if one.phase else "-",
            style=_choose_node_removal_style,
            when=lambda view: any(one.phase for one in view.removals),
        ),
    )
    json_only: ClassVar[JsonOnly] = ("text", "code", "fix", "left_drained")

    @property
    def jobs_text(self) -> str:
        """Return the jobs on it, in parentheses."""
        return _format_parenthesized(", ".join(map(str, self.jobs)))

    @property
    def has_unsuccessful_outcome(self) -> bool:
        """Return whether it was refused or failed, or its outcome is unknown."""
        return self.phase in ("refused", "failed", "in_doubt")

    @property
    def name(self) -> str:
        """Return the best of its names."""
        return self.node or self.instance_id or self.logical_id

    @property
    def problem(self) -> str:
        """Return why it does not go; empty where it does."""
        if not self.has_unsuccessful_outcome:
            return ""
        code = f" ({self.code})" if self.code and self.code not in self.text else ""
        return f"{self.name}: {self.text}{code}"


REMOVALS: Layout = (
    RowTable("removals"),
    RepeatedLayoutParts(
        "removals",
        (
            TextLine("{problem}", style=BAD),
            TextLine("  {fix}", when=lambda one: one.has_unsuccessful_outcome and one.fix),
            TextLine(
                "{name}: drained still, with Reason {left_drained}", style=WARN, when="left_drained"
            ),
        ),
    ),
)
"""The text of any view's `removals`: nodes that go, why these, and what became of each."""


class SpecChangesPrompt(Struct, frozen=True):
    """What a question about changes shows."""

    changes: Sequence[SpecChange]

    layout: ClassVar[Layout] = CHANGES


class NodeRemovalsPrompt(Struct, frozen=True):
    """What a question about removals shows."""

    removals: Sequence[NodeRemovalView]

    layout: ClassVar[Layout] = REMOVALS


class ClusterChangeView(Struct, frozen=True):
    """What `hpctl cluster create|update|scale|delete|wait` shows.

    `outcome` is `dry_run`, `unchanged`, `ordered` (--no-wait), `reached`, `failed`, `in_doubt`,
    `deadline` or `interrupted`; `pick_up` is the command that follows what is still under way.
    """

    as_of: datetime
    command: str
    cluster: str
    outcome: str
    why: str = ""
    arn: str = ""
    status: str = ""
    changes: tuple[SpecChange, ...] = ()
    orders: tuple[ApiCallView, ...] = ()
    removals: tuple[NodeRemovalView, ...] = ()
    groups: tuple[InstanceGroupProgress, ...] = ()
    failed_nodes: tuple[NodeProgress, ...] = ()
    waited_s: float = 0.0
    pick_up: str = ""

    layout: ClassVar[Layout] = (
        *CHANGES,
        RepeatedLayoutParts(
            lambda view: view.orders[:ORDERS_SHOWN],
            (TextLine("{operation}", style=HEAD), TextLine("{request_text}")),
        ),
        TextLine(
            lambda view: (
                f"and {len(view.orders) - ORDERS_SHOWN} more calls like these"
                " (--json has all of them)"
            ),
            style=DIM,
            when=lambda view: len(view.orders) > ORDERS_SHOWN,
        ),
        *REMOVALS,
        ItemTextLines(
            lambda view: describe_failed_nodes_by_failure(view.failed_nodes, FAILING_SHOWN)
        ),
        TextLine(_render_change_outcome_line),
        TextLine("  {pick_up}", when="is_under_way"),
    )
    json_only: ClassVar[JsonOnly] = ("arn",)

    @property
    def is_under_way(self) -> bool:
        """Return whether a command follows what is still under way."""
        return bool(self.pick_up) and self.outcome in ("ordered", "deadline", "interrupted")


def select_wait_result_fields(p: ClusterProgress | None) -> dict[str, Any]:
    """Return the fields of a view that a wait has the last word on."""
    if p is None:
        return {"outcome": "ordered"}
    return {
        "outcome": p.verdict.value if p.verdict is not ClusterWaitState.WAITING else "interrupted",
        "why": p.why,
        "arn": p.arn,
        "status": p.status,
        "groups": p.groups,
        "failed_nodes": p.failures,
        "waited_s": round(p.waited_s, 1),
    }


def print_outcome_and_exit(command: str, cluster: str, as_json: bool, **fields: Any) -> None:
    """Print how a command ended, and leave with the exit code of its outcome."""
    view = ClusterChangeView(output.get_current_utc_time(), command, cluster, **fields)
    output.show_view("cluster-change", view, as_json)
    if view.outcome == "interrupted":
        raise click.exceptions.Exit(INTERRUPTED)
    if view.outcome == "failed":
        output.exit_with_code(ExitCode.PROBLEM)
    if view.outcome in ("deadline", "in_doubt"):
        output.exit_with_code(ExitCode.CANNOT_TELL)
