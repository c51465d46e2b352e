"""How `hpctl policy` is shown to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hpctl.cli.render import columns, wrapped

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.cli.policy import PolicyCheckView, PolicyShowView, PolicyTestView
    from hpctl.jobs.rehearsal import Played


def test(out: Console, view: PolicyTestView) -> None:
    """The events in their order, then how it ends."""
    rows = columns("AT", "EVENT", "ACTION", "NODES", wrapped("WHY"))
    for played in view.events:
        # The same signature again is what holds a job: two that differ must look so.
        what = " ".join(filter(None, [played.event, played.node, played.signature]))
        rows.add_row(
            _clock(played.at_s), Text(what), played.action, str(played.nodes), Text(_why(played))
        )
    out.print(rows)
    out.print()
    on = "the run goes on" if view.events[-1].nodes else "nothing runs at the end"
    end = f"held: {view.held}" if view.held else on
    out.print(Text(f"{view.restarts} restarts; {end}"))


def check(out: Console, view: PolicyCheckView) -> None:
    """One line a file, and below it one for each problem."""
    for file in view.files:
        found = (
            f"{len(file.problems)} problem(s)"
            if file.problems
            else "fine"
            if not file.notes
            else "valid, but"
        )
        out.print(Text(f"{file.path}: {found}"))
        for problem in (*file.problems, *file.notes):
            out.print(Text(f"  {problem}"), soft_wrap=True)


def show(out: Console, view: PolicyShowView) -> None:
    """A table of keys."""
    rows = columns("KEY", wrapped("VALUE"), "FROM")
    for key in view.keys:
        rows.add_row(key.key, Text(key.value), Text(key.source))
    out.print(rows)


def _why(played: Played) -> str:
    """The reason, with everything else that the answer says."""
    parts = [played.why]
    if played.save_first_s:
        parts.append(f"saves first, at most {played.save_first_s:g} s")
    if played.after_s:
        parts.append(f"waits {played.after_s:.0f} s")
    if played.exclude:
        parts.append(f"stays off {','.join(played.exclude)}")
    return "; ".join(parts)


def _clock(seconds: float) -> str:
    """`1:02:03` since the start."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
