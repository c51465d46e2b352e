"""The demo's two screens: live panels on a terminal, plain lines everywhere else."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hpctl.cli import output
from hpctl.sandbox.demo import Result

_STYLES = {"hpctl": "bold green", "plain": "yellow", "both": "cyan"}


class PlainScreen:
    """One line a thing that happened."""

    def __enter__(self) -> PlainScreen:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def chapter(self, title: str) -> None:
        """A heading."""
        output.echo(f"\n== {title}")

    def line(self, who: str, text: str, seconds: float | None) -> None:
        """One thing, with the seconds since the fault."""
        output.echo(f"{_clock(seconds)}  {who:<6} {text}")

    def progress(self, facts: dict[str, str]) -> None:
        """Nothing: a pipe wants no repetition."""


class LiveScreen:
    """The story above, how it stands below, redrawn a few times a second."""

    def __init__(self) -> None:
        """Nothing is drawn before the `with` block."""
        self._console = output.console()
        self._live = Live(console=self._console, refresh_per_second=8, transient=True)
        self._title = ""
        self._facts: dict[str, str] = {}
        self._begun = time.monotonic()

    def __enter__(self) -> LiveScreen:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def chapter(self, title: str) -> None:
        """A heading; it stays in the terminal's history."""
        self._title = title
        self._console.print(Text(f"\n{title}", style="bold"))
        self._draw()

    def line(self, who: str, text: str, seconds: float | None) -> None:
        """One thing that happened; it stays in the terminal's history too."""
        row = Text(f"{_clock(seconds)}  ")
        row.append(f"{who:<6} ", _STYLES.get(who, ""))
        row.append(text)
        self._console.print(row)
        self._draw()

    def progress(self, facts: dict[str, str]) -> None:
        """How it stands now."""
        self._facts = facts
        self._draw()

    def _draw(self) -> None:
        self._live.update(self._panel())

    def _panel(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for name, value in self._facts.items():
            who = name.split(":")[0]
            table.add_row(Text(name, style=_STYLES.get(who, "")), Text(value))
        title = f"{self._title}, {time.monotonic() - self._begun:.0f} s"
        return Panel(Group(table), title=title, title_align="left", border_style="dim")


def screen() -> LiveScreen | PlainScreen:
    """The one that fits where we print to."""
    return LiveScreen() if output.console().is_terminal else PlainScreen()


def show(result: Result) -> None:
    """The timeline and the figures."""
    console = output.console()
    table = Table(title="Seconds from the fault", title_justify="left", show_edge=False)
    table.add_column("what")
    table.add_column("hpctl", justify="right", style="bold green")
    table.add_column("plain Slurm", justify="right", style="yellow")
    for name, mine, theirs in _figures(result):
        table.add_row(name, mine, theirs)
    console.print()
    console.print(table)
    console.print()
    if result.problems:
        for problem in result.problems:
            console.print(Text(f"NOT SO: {problem}", style="bold red"))
        return
    console.print(
        Text(
            f"The job ran again {result.speedup:g} times sooner than by plain Slurm's requeue,"
            f" lost {result.steps_lost} steps, and its final weights are bit-identical to the"
            f" undisturbed run's ({result.weights_sha256[:16]}). {result.instance_before} was"
            f" replaced by {result.instance_after}, with {result.api_replace_calls} call.",
            style="bold",
        )
    )


def _figures(r: Result) -> list[tuple[str, str, str]]:
    return [
        ("faulty node closed to new work", _s(r.fault_to_drained_s), "by hand"),
        ("job running on healthy nodes", _s(r.fault_to_job_running_s), _s(r.plain_requeue_s)),
        ("first new training step", _s(r.fault_to_first_step_s), ""),
        ("instance replaced, verified, in service", _s(r.fault_to_node_returned_s), "never"),
        ("floor: scancel and a fresh sbatch", _s(r.floor_s), _s(r.floor_s)),
    ]


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f}"


def _clock(seconds: float | None) -> str:
    return " " * 9 if seconds is None else f"{seconds:+8.2f}s"
