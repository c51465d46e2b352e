"""How `hpctl lifecycle` is shown to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hpctl.cli.output import DRY_RUN
from hpctl.cli.render import columns, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from hpctl.cli.lifecycle.bundle import BundleView
    from hpctl.cli.lifecycle.push import PushView
    from hpctl.cli.lifecycle.trial import TestView
    from hpctl.clusters.bundle_checks import Problem
    from hpctl.clusters.bundle_trial import RunState, StepState

STYLES = {"done": "green", "failed": "red", "running": "yellow"}


def bundle(out: Console, view: BundleView) -> None:
    """Problems, or what the bundle is."""
    if view.problems:
        _problems(out, view.problems)
        return
    _row(out, "bundle", view.directory)
    wheels = f"{len(view.wheels)} wheels" if view.wheels else "no wheels"
    _row(out, "holds", f"{view.files} files, {_bytes(view.size)}, {wheels}")
    _row(out, "digest", view.digest)
    for note in view.notes:
        _row(out, "note", note)


def push(out: Console, view: PushView) -> None:
    """What went where."""
    verb = "would send" if view.dry_run else "sent"
    _row(out, "s3 uri", view.source_s3_uri)
    _row(out, "digest", view.digest)
    _row(out, verb, f"{len(view.sent)} files; {view.unchanged} lie there already")
    if view.dry_run:
        for path in view.sent:
            _line(out, f"  {path}")
    if view.left_over:
        more = "" if view.pruned else " (--prune deletes what is in no bundle)"
        _row(out, "deleted" if view.pruned else "left", ", ".join(view.left_over) + more)
    if view.dry_run:
        _line(out, DRY_RUN)


def test(out: Console, view: TestView) -> None:
    """Each role's steps that did something or failed, then Slurm."""
    if view.problems:
        _problems(out, view.problems)
    for trial in view.trials:
        _line(out, f"{trial.role}: {trial.last}", "" if trial.code == 0 else "red")
        if trial.run:
            _steps(out, [s for s in trial.run.steps if s.state not in ("not_applicable", "off")])
            # What a directory lacks a node has: these run there, and nobody has seen them yet.
            left = [s.step for s in trial.run.steps if " below /" in s.why]
            if left:
                out.print(Text(f"not tried below a directory: {', '.join(left)}"))
        out.print()
    _row(out, "slurm", view.slurm)
    _row(out, "digest", view.digest)
    _line(out, "passed" if view.passed else "FAILED", "green" if view.passed else "red")


def show(out: Console, run: RunState) -> None:
    """The run in one line, then every step."""
    why = f": {run.why}" if run.why else ""
    out.print(Text(f"{run.node} {run.role} of {run.group}, {run.instance_id}, {run.mode}"))
    out.print(Text(f"{run.state} at {run.at}{why}", style=STYLES.get(run.state, "")))
    out.print(f"bundle {run.bundle[:12] or '(unsigned)'}")
    out.print()
    _steps(out, run.steps)


def _steps(out: Console, steps: Sequence[StepState]) -> None:
    rows = columns("STEP", "STATE", "TRIES", "SECONDS", wrapped("WHY"))
    for step in steps:
        state = Text(step.state, style=STYLES.get(step.state, ""))
        tries = str(step.tries) if step.state in ("done", "failed", "running") else "-"
        seconds = f"{step.seconds:.1f}" if step.state in ("done", "failed") else "-"
        weight = " (optional)" if step.weight == "optional" and step.state == "failed" else ""
        rows.add_row(step.step, state, tries, seconds, Text(f"{step.why}{weight}" or "-"))
    out.print(rows)


def _problems(out: Console, problems: Sequence[Problem]) -> None:
    _line(out, f"{len(problems)} problem(s), no bundle", "red")
    for problem in problems:
        _line(out, f"  {problem.path}: {problem.what}")


def _row(out: Console, name: str, what: str) -> None:
    _line(out, f"{name:<7} {what}")


def _line(out: Console, text: str, style: str = "") -> None:
    """Paths and digests are copied from the screen: they are not broken into lines."""
    out.print(Text(text, style=style), soft_wrap=True)


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
