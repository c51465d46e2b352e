"""All of hpctl's rich code: views in, text for people out. Nothing here reads or decides.

Data never goes through rich's markup: a Reason may contain brackets.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpctl.core.bounds import printable
from hpctl.core.tell import Mark, duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpctl.cli.explain import ExplainView
    from hpctl.cli.jobs import JobsView
    from hpctl.cli.lemons import LemonsView
    from hpctl.cli.nodes import NodesView
    from hpctl.cli.recoveries import RecoveriesView
    from hpctl.cli.status import DaemonView, StatusView
    from hpctl.cli.views import (
        HoldView,
        JobRecoveryView,
        JobReportView,
        NodeRecoveryView,
        StepView,
    )

WIDE = 120
MANY = 500
"""Rows from which a table is no longer rich's, which takes seconds for ten thousand."""
GOOD, BAD, WARN, DIM, HEAD = "green", "red", "yellow", "dim", "bold"
STYLES = {
    **dict.fromkeys(("healthy", "IDLE", "returned", "resumed", "ok", "passed", "Running"), GOOD),
    **dict.fromkeys(("faulty", "DOWN", "escalated", "gave_up", "held", "fail", "Failure"), BAD),
    **dict.fromkeys(("suspect", "unknown", "UNKNOWN", "warn", "waved", "NOT_FOUND"), WARN),
    **dict.fromkeys(("cancelled", "not_reached", "absent", "-"), DIM),
}
MARKS = {
    Mark.DECIDED: HEAD,
    Mark.DID: "cyan",
    Mark.SAW: "",
    Mark.WAITS: WARN,
    Mark.TROUBLE: BAD,
    Mark.DONE: GOOD,
}


def word(value: str, shown: str = "") -> Text:
    """A word in the colour of its meaning; `-` for nothing."""
    return Text(shown or value or "-", STYLES.get(value or "-", ""))


def clock(at: datetime) -> str:
    """The time of day with hundredths of a second, UTC."""
    return f"{at:%H:%M:%S}.{at.microsecond // 10000:02}"


def after(seconds: float) -> str:
    """How long after the beginning: fine while seconds matter."""
    return f"+{seconds:.2f} s" if seconds < 10 else f"+{duration(seconds)}"


def ago(at: datetime | None, now: datetime) -> str:
    """How long ago, in two units."""
    return "never" if at is None else f"{duration((now - at).total_seconds())} ago"


def columns(*names: str | tuple[str, dict[str, object]]) -> Table:
    """A plain table; a column is its heading, or that and rich's options for it."""
    table = Table(box=None, pad_edge=False, header_style=HEAD, padding=(0, 2, 0, 0))
    for column in names:
        name, options = (column, {}) if isinstance(column, str) else column
        table.add_column(name, **{"no_wrap": True, **options})  # type: ignore[arg-type]
    return table


def wrapped(name: str) -> tuple[str, dict[str, object]]:
    """A column that takes what room there is, on several lines where need be."""
    return name, {"no_wrap": False, "overflow": "fold", "ratio": 1}


def _plain(rows: Sequence[tuple[str, ...]]) -> str:
    """Columns without colour, and no line of them wrapped."""
    rows = [tuple(cell or "-" for cell in row) for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    padded = (map(str.ljust, row, widths) for row in rows)
    return "\n".join(printable("  ".join(cells)).rstrip() for cells in padded)


def _head(out: Console, text: str) -> None:
    out.print()
    out.print(Text(text, HEAD))


def counted(counts: dict[str, int]) -> Text:
    """`2 IDLE, 1 DOWN`, each word in the colour of its meaning."""
    parts = [word(name, f"{count} {name}") for name, count in counts.items()]
    return Text(", ").join(parts) if parts else Text("none", DIM)


def status(out: Console, view: StatusView) -> None:
    """The screen of `hpctl status`."""
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style=DIM, no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("cluster", Text(view.cluster or "(no cloud cluster)"))
    facts.add_row("daemon", _daemon(view.daemon, view.as_of))
    facts.add_row("mode", Text(view.mode))
    if view.paused_by:
        facts.add_row("paused", Text(f"by {view.paused_by}; lift it with: hpctl resume", WARN))
    if view.stopped:
        facts.add_row("stopped", Text(f"{view.stopped}: nothing is done", WARN))
    total = view.nodes.slurm_total
    facts.add_row("nodes", Text("unknown", WARN) if total is None else Text(str(total)))
    if total is not None:
        facts.add_row("  in Slurm", counted(view.nodes.by_state))
    facts.add_row("  health", counted(view.nodes.by_condition))
    facts.add_row("facts", _ages(view))
    out.print(facts)
    _node_table(out, "Nodes in treatment", view.node_recoveries, view.as_of)
    _job_table(out, "Jobs in recovery", view.job_recoveries, view.as_of)
    _hold_table(out, view.holds, view.as_of)
    _node_table(out, "Waiting for a person", view.waiting_for_a_person, view.as_of)
    if view.changes:
        from hpctl.cli.render_capacity import changes

        _head(out, "Capacity: autoscaling and spares")
        out.print(changes(view.changes))
    for title, said, style in (
        ("Problems", view.problems, BAD),
        ("Cannot tell", view.unknowns, WARN),
    ):
        if said:
            _head(out, title)
            for line in said:
                out.print(Padding(Text(line, style), (0, 0, 0, 2)))
    if not (view.node_recoveries or view.job_recoveries or view.problems or view.unknowns):
        out.print()
        out.print(Text("Nothing is in treatment and nothing waits for a person.", GOOD))


def _daemon(daemon: DaemonView | None, now: datetime) -> Text:
    if daemon is None:
        return Text("never ran here", WARN)
    text = Text("alive" if daemon.alive else "SILENT", GOOD if daemon.alive else BAD)
    text.append(f" (pid {daemon.pid} on {daemon.host}, hpctl {daemon.version}", "default")
    text.append(f"; heartbeat {ago(daemon.heartbeat, now)}", "default")
    text.append(f", last cycle {daemon.last_cycle_s * 1000:.0f} ms)", "default")
    return text


def _ages(view: StatusView) -> Text:
    facts, text = view.facts, Text()
    text.append("Slurm read now" if facts.slurm_as_of else "Slurm unreadable")
    text.append(f"; {facts.agents} agents")
    if facts.agents:
        text.append(f", heard {ago(facts.newest_report, view.as_of)}")
        text.append(f" (longest: {ago(facts.oldest_report, view.as_of)})")
    if facts.agents_silent:
        text.append(f", {facts.agents_silent} silent", WARN)
    return text


def nodes(out: Console, view: NodesView) -> None:
    """The table of `hpctl nodes`; a narrow terminal loses the cloud's columns first."""
    wide = out.width >= WIDE
    extra = ("INSTANCE", "CLOUD", "LOGICAL ID") if wide else ()
    rows = []
    for n in view.nodes:
        state = n.slurm_state + "".join(f"+{f}" for f in n.slurm_flags)
        doing = f"{n.recovery} {n.phase}" if n.recovery else ""
        doing = doing or (f"held: {n.held_by}" if n.held_by else "")
        heard = ago(n.last_heard, view.as_of).removesuffix(" ago")
        cloud = (n.instance_id, n.instance_status, n.logical_id) if wide else ()
        rows.append((n.name, state, n.condition, n.rule, heard, *cloud, doing))
    headings = ("NODE", "SLURM", "HEALTH", "RULE", "HEARD", *extra, "TREATMENT")
    if len(rows) > MANY:
        out.print(_plain([headings, *rows]), markup=False, no_wrap=True, crop=False)
    else:
        table = columns(*headings[:-1], wrapped(headings[-1]))
        for row in rows:
            table.add_row(*(word(cell.partition("+")[0], cell) for cell in row))
        out.print(table)
    for what, as_of, error in (
        ("Slurm", view.slurm_as_of, view.slurm_error),
        ("The cloud", view.cloud_as_of, view.cloud_error),
    ):
        if as_of is None and error != "not asked":
            out.print(Text(f"{what} cannot be read: {error}", WARN))


def jobs(out: Console, view: JobsView) -> None:
    """The tables of `hpctl jobs`."""
    if not view.jobs:
        out.print("No job is in recovery.")
    _job_table(out, "", view.jobs, view.as_of)
    _hold_table(out, view.holds, view.as_of)
    _report_table(out, view.reports, view.as_of)
    _left_out(out, view.ended_not_shown)


def recoveries(out: Console, view: RecoveriesView) -> None:
    """The tables of `hpctl recoveries`."""
    if not (view.nodes or view.jobs):
        out.print("No recovery is open.")
    _hold_table(out, view.holds, view.as_of)
    _node_table(out, "Nodes", view.nodes, view.as_of)
    _job_table(out, "Jobs", view.jobs, view.as_of)
    _left_out(out, view.ended_not_shown)


def _left_out(out: Console, count: int) -> None:
    if count:
        out.print(Text(f"{count} ended, not shown (--all, --since 7d).", DIM))


def _steps(steps: Sequence[StepView]) -> Text:
    """The steps in order; `?` for one in doubt, `!` for one refused."""
    parts = []
    for s in steps:
        refused = s.outcome == "rejected"
        again = f"#{s.attempt}" if s.attempt > 1 else ""
        tail, style = ("?", WARN) if s.in_doubt else (("!", BAD) if refused else ("", ""))
        parts.append(Text(f"{s.kind}{again}{tail}", style))
    return Text(" ").join(parts) if parts else Text("-", DIM)


def _node_table(out: Console, title: str, rows: Sequence[NodeRecoveryView], now: datetime) -> None:
    if not rows:
        return
    _head(out, title)
    wide = out.width >= WIDE
    table = columns(
        "ID", "NODE", "PHASE", "FOR", "RULE", *(("REMEDY",) if wide else ()), wrapped("STEPS")
    )
    for r in rows:
        lasted = ((r.since if r.ended else now) - r.opened).total_seconds()
        table.add_row(
            Text(r.id),
            Text(r.node),
            word(r.phase),
            Text(duration(lasted)),
            Text(r.rule),
            *((Text(r.remedy),) if wide else ()),
            _steps(r.steps),
        )
    out.print(table)


def _job_table(out: Console, title: str, rows: Sequence[JobRecoveryView], now: datetime) -> None:
    if not rows:
        return
    if title:
        _head(out, title)
    wide = out.width >= WIDE
    extra = ("NAME", "RULE") if wide else ()
    table = columns("ID", "JOB", "USER", *extra, "PHASE", "FOR", "CAUSE", wrapped("STEPS"))
    for r in rows:
        lasted = ((r.since if r.ended else now) - r.opened).total_seconds()
        table.add_row(
            Text(r.id),
            Text(str(r.job)),
            Text(r.user or "-"),
            *((Text(r.name or "-"), Text(r.cause_rule or "-")) if wide else ()),
            word(r.phase),
            Text(duration(lasted)),
            Text(r.cause or (r.trouble.kind if r.trouble else "-")),
            _steps(r.steps),
        )
    out.print(table)


def _report_table(out: Console, rows: Sequence[JobReportView], now: datetime) -> None:
    if not rows:
        return
    _head(out, "Told by supervisors, the newest of each job")
    table = columns("JOB", "RUN", "AGO", "TROUBLE", "DID", wrapped("WHY"))
    for r in rows:
        why = (r.trouble.why if r.trouble else "") or r.why
        table.add_row(
            Text(str(r.job)),
            Text(str(r.restarts)),
            Text(duration((now - r.at).total_seconds())),
            Text(r.trouble.kind if r.trouble else "-"),
            Text(f"wish: {r.wish}" if r.wish else r.action),
            Text(why or "-"),
        )
    out.print(table)


def _hold_table(out: Console, rows: Sequence[HoldView], now: datetime) -> None:
    if not rows:
        return
    _head(out, "Held back")
    table = columns("TARGET", "GATE", "FOR", wrapped("WHY"))
    for h in rows:
        lasted = duration((now - h.since).total_seconds())
        why = h.why + (f" (hpctl approve {h.target})" if h.approvable else "")
        table.add_row(Text(h.target), Text(h.gate), Text(lasted), Text(why))
    out.print(table)


def explain(out: Console, view: ExplainView) -> None:
    """The story of `hpctl explain`."""
    out.print(Text(view.headline, HEAD))
    if view.evidence:
        _head(out, "What was seen")
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for e in view.evidence:
            text = Text(e.text)
            if e.evidence:
                text.append(f"\n{e.evidence}", DIM)
            table.add_row(clock(e.first), text)
        out.print(Padding(table, (0, 0, 0, 2)))
    if view.trouble is not None and view.trouble.evidence:
        _head(out, "What the run said last")
        out.print(Padding(Text(view.trouble.evidence, DIM), (0, 0, 0, 2)))
    if view.rule is not None:
        _head(out, f"The rule: {view.rule.id}")
        ladder = ", then ".join(r.replace("_", " ") for r in view.rule.ladder)
        urgency = view.rule.urgency.replace("_", " ")
        out.print(Padding(Text(f"{view.rule.meaning}"), (0, 0, 0, 2)))
        out.print(Padding(Text(f"remedies: {ladder}; urgency: {urgency}"), (0, 0, 0, 2)))
        if view.rule.source:
            out.print(Padding(Text(f"source: {view.rule.source}", DIM), (0, 0, 0, 2)))
    _gates(out, view)
    if view.story:
        first = view.story[0].at
        _head(out, f"What happened ({first:%Y-%m-%d}, times in UTC)")
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", style=DIM, no_wrap=True)
        table.add_column(overflow="fold")
        for line in view.story:
            passed = after((line.at - first).total_seconds())
            table.add_row(clock(line.at), passed, Text(line.text, MARKS[line.mark]))
        out.print(Padding(table, (0, 0, 0, 2)))
    if view.next.what:
        _head(out, "What is awaited")
        out.print(Padding(Text(view.next.what + "."), (0, 0, 0, 2)))
        if view.next.until is not None:
            until = f"{view.next.until:%Y-%m-%d %H:%M:%S} UTC"
            out.print(Padding(Text(f"At {until} otherwise: {view.next.otherwise}."), (0, 0, 0, 2)))
    if view.related:
        out.print()
        out.print(Text("See also: " + ", ".join(f"hpctl explain {r}" for r in view.related), DIM))


def _gates(out: Console, view: ExplainView) -> None:
    if not view.gates:
        return
    held = next((g for g in view.gates if g.result == "held"), None)
    passed = [g.name for g in view.gates if g.result == "passed"]
    _head(out, "The gates")
    if passed:
        out.print(Padding(Text("passed, in order: " + ", ".join(passed), GOOD), (0, 0, 0, 2)))
    for g in view.gates:
        if g.result == "waved":
            out.print(Padding(Text(f"not asked: {g.name}, {g.why}", WARN), (0, 0, 0, 2)))
    if held is not None:
        out.print(Padding(Text(f"held by {held.name}: {held.why}", BAD), (0, 0, 0, 2)))
        if held.asks:
            out.print(Padding(Text(held.asks, DIM), (0, 0, 0, 4)))


def lemons(out: Console, view: LemonsView) -> None:
    """The table of `hpctl lemons`."""
    if view.instances:
        wide = out.width >= WIDE
        extra = ("RECOVERIES", "JOBS") if wide else ()
        table = columns("NODE", "INSTANCE", "SCORE", *extra, "LAST", wrapped("WHY"))
        for i in view.instances:
            table.add_row(
                Text(i.node),
                Text(i.instance_id),
                Text(f"{i.score:.2f}", BAD if i.lemon else ""),
                *((Text(str(i.recoveries)), Text(str(i.jobs))) if wide else ()),
                Text(ago(i.last, view.as_of)),
                Text(i.why),
            )
        out.print(table)
    else:
        out.print(Text("No instance breaks again and again.", GOOD))
    if view.not_shown:
        below = f"{view.not_shown} more with a history below {view.limit:g}: hpctl lemons --all"
        out.print(Text(below, DIM))
