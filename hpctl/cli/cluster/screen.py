"""A cluster under way: a live screen on a terminal, lines with their time elsewhere.

Both go to standard error. Lines come when something changed, and once a minute in any case.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from hpctl.cli import output
from hpctl.cli.tables import BAD, DIM, GOOD, HEAD, WARN, assembled, indented, styled
from hpctl.clusters.progress import EventLine, GroupProgress, NodeProgress, Progress, Verdict
from hpctl.core.timeline import duration

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


class Screen(Protocol):
    """Where looks at a cluster are shown."""

    def show(self, progress: Progress) -> None:
        """Show a look."""
        ...


@contextmanager
def shown() -> Iterator[Screen]:
    """A live screen where standard error is a terminal, else lines."""
    err = sys.stderr
    if not err.isatty():
        yield Lines()
        return
    from rich.live import Live

    console = output.console(err=True)
    # A progress display that outlives the command is in the way of its result.
    with Live(console=console, transient=True, refresh_per_second=4) as live:
        yield Screenful(live)


class Screenful:
    """One bar a group, the nodes that fail, the newest events."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._events: list[EventLine] = []

    def show(self, progress: Progress) -> None:
        """Draw it in place of the one before."""
        self._events = [*self._events, *progress.events][-EVENTS_SHOWN:]
        console = self._live.console
        # What has scrolled out at the top cannot be wiped out again: it would stay for good.
        for in_full in range(FAILING_SHOWN, -1, -1):
            drawn = screen(progress, self._events, in_full)
            if len(console.render_lines(drawn, pad=False)) < console.height:
                break
        self._live.update(drawn)


def screen(
    progress: Progress, events: list[EventLine], in_full: int = FAILING_SHOWN
) -> RenderableType:
    """The live screen as it stands, with so many ways to fail; the other nodes are counted."""
    from rich.console import Group

    parts: list[RenderableType] = [_head(progress), _bars(progress)]
    parts += failures(progress.failures, in_full)
    parts += [_event(event) for event in events]
    if progress.unread:
        parts.append(styled(f"cannot look just now: {progress.unread}", WARN))
    parts.append(styled("Ctrl-C stops the looking; the work goes on", DIM))
    return Group(*parts)


def _head(progress: Progress) -> Text:
    text = assembled(("cluster ", DIM), (progress.cluster, HEAD), "  ", progress.status)
    text.append(f"  {duration(progress.waited_s)}", DIM)
    if progress.failure:
        text.append(f"  {progress.failure}", BAD)
    return text


def _bars(progress: Progress) -> Table:
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
            styled(f"{group.current}/{group.target}", GOOD if full else ""),
            group.status,
            styled(_moving(group, progress.nodes), DIM),
        )
    return table


def _moving(group: GroupProgress, nodes: tuple[NodeProgress, ...]) -> str:
    """How many nodes are in each status that is not Running."""
    own = [n.status for n in nodes if n.group == group.name and n.status != "Running"]
    return ", ".join(f"{own.count(status)} {status}" for status in dict.fromkeys(own))


def failing(node: NodeProgress) -> list[Text]:
    """A failed node: what the service says, what it means, the log's line, what to do."""
    ids = f" ({node.instance_id})" if node.instance_id not in ("", node.name) else ""
    lines = [styled(f"{node.group} {node.name}{ids} is {node.status}: {node.message}", BAD)]
    trouble = node.trouble
    if trouble is None:
        return lines
    lines.append(styled(f"  means: {trouble.meaning}"))
    if trouble.line:
        unnamed = trouble.step and trouble.step not in trouble.line
        step = f"step {trouble.step}: " if unnamed else ""
        lines.append(styled(f"  log: {step}{trouble.line}"))
    elif trouble.unread:
        lines.append(styled(f"  log: {trouble.unread}", DIM))
    if trouble.log:
        group, _, stream = trouble.log.partition(" ")
        # Two lines that a shell takes as one, for screens on which one line would be cut.
        lines.append(styled(f"  rest: aws logs tail {group} \\", DIM))
        lines.append(styled(f"    --log-stream-names {stream}", DIM))
    lines.append(styled(f"  mend: {trouble.mend}"))
    return lines


def failures(nodes: Sequence[NodeProgress], most: int | None = None) -> list[RenderableType]:
    """Failed nodes, those that failed alike told once; only so many ways to fail are told."""
    ways = _alike(nodes)
    lines: list[RenderableType] = []
    for same in ways[:most]:
        lines += [hanging(line) for line in failing(same[0])]
        if others := ", ".join(node.name for node in same[1:SAME_SHOWN]):
            more = f" and {len(same) - SAME_SHOWN} more" if len(same) > SAME_SHOWN else ""
            lines.append(hanging(styled(f"  so did {others}{more}", BAD)))
    if most is not None and (left := sum(map(len, ways[most:]))):
        lines.append(styled(f"{left} node(s) failed" + " otherwise" * bool(lines), BAD))
    return lines


def _alike(nodes: Sequence[NodeProgress]) -> list[list[NodeProgress]]:
    """Nodes by how they failed. One whose log was not read goes by the service's words alone."""
    alike: dict[tuple[str, str, str, str], list[NodeProgress]] = {}
    for node in nodes:
        said = (node.group, node.status, node.message)
        trouble = node.trouble
        if trouble is None:
            key = next((k for k in alike if k[:3] == said), (*said, ""))
        else:
            # hpctl's own scripts name the node in their last line.
            line = trouble.line.replace(node.name, "")
            key = (*said, f"{trouble.meaning} {line} {trouble.unread}")
        alike.setdefault(key, []).append(node)
    return list(alike.values())


def _event(event: EventLine) -> Text:
    parts = (f"{event.at:%H:%M:%S}", event.group, event.instance_id, event.text)
    return styled(" ".join(part for part in parts if part), _LEVELS.get(event.level, DIM))


def hanging(line: Text) -> Padding:
    """A line whose own indent holds for its wrapped parts as well."""
    depth = len(line.plain) - len(line.plain.lstrip())
    return indented(line[depth:], depth)


class Lines:
    """Lines on standard error: what changed, with its time."""

    def __init__(self) -> None:
        self._said: tuple[object, ...] = ()
        self._said_at = 0.0
        self._nodes: set[tuple[str, str, str]] = set()

    def show(self, progress: Progress) -> None:
        """Write what is new."""
        groups = ", ".join(
            f"{g.name} {g.current}/{g.target}" + _in_brackets(_moving(g, progress.nodes))
            for g in progress.groups
        )
        said = (progress.status, groups, progress.unread)
        beat = progress.waited_s - self._said_at >= BEAT_S
        if said != self._said or beat or progress.verdict is Verdict.DEADLINE:
            self._said, self._said_at = said, progress.waited_s
            line = (
                f"{progress.cluster} {progress.status}: {groups}"
                if groups
                else (f"{progress.cluster} {progress.status}")
            )
            self._write(progress, line)
            if progress.unread:
                self._write(progress, f"cannot look just now: {progress.unread}")
        for event in progress.events:
            # What befalls an instance is told with the node, and with what it means.
            if event.level in _LEVELS and not event.instance_id:
                self._write(progress, f"event: {_event(event).plain}")
        for node in progress.failed_nodes:
            self._failed(progress, node)

    def _failed(self, progress: Progress, node: NodeProgress) -> None:
        """Whatever is new about a failed node; in short where it failed like this before."""
        line = node.trouble.line if node.trouble else ""
        if (node.key, node.instance_id, line) in self._nodes:
            return
        self._nodes.add((node.key, node.instance_id, line))
        again = (node.key, node.message, line) in self._nodes
        self._nodes.add((node.key, node.message, line))
        lines = failing(node)
        if again:
            lines = [
                styled(f"{node.group} {node.name} failed again ({node.instance_id}), as before")
            ]
        for text in lines:
            self._write(progress, text.plain)

    def _write(self, progress: Progress, line: str) -> None:
        output.echo(f"{progress.at:%Y-%m-%dT%H:%M:%SZ} {line}", err=True)


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""
