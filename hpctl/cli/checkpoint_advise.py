"""`hpctl checkpoint advise`: how often to save, from measured costs and the cluster's failures."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING

import click

from hpctl.cli import output
from hpctl.cli.complete_files import complete_file
from hpctl.cli.durations import DurationType

if TYPE_CHECKING:
    from rich.console import Console

RESTART_S = 300.0
"""Taken where no restart was ever seen: requeue, start of the program and loading."""


@dataclass(frozen=True, slots=True)
class AtView:
    """One interval of the table. `ratio`: the effective training time ratio."""

    interval_s: float
    steps: int | None
    ratio: float


@dataclass(frozen=True, slots=True)
class AdviceView:
    """What `hpctl checkpoint advise` shows; docs/checkpoints.md says what each means."""

    directory: str
    formats: tuple[str, ...]
    checkpoints: int
    nodes: int
    save_s: float
    save_from: str
    restart_s: float
    restart_from: str
    failures: int | None
    node_days: float | None
    failures_per_1000_node_days: float | None
    failures_low: float | None
    failures_high: float | None
    failures_from: str
    mtbf_s: float
    mtbf_low_s: float
    mtbf_high_s: float
    interval_s: float
    interval_low_s: float
    interval_high_s: float
    interval_steps: int | None
    young_s: float
    ratio: float
    now_s: float | None
    now_steps: int | None
    now_ratio: float | None
    table: tuple[AtView, ...]
    notes: tuple[str, ...]


@click.command()
@click.argument("target", metavar="JOB|DIR", shell_complete=complete_file)
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes of the job. JOB knows its own.")
@click.option(
    "--save-cost", type=DurationType("0.01s"), help="For how long a save stops the training."
)
@click.option(
    "--restart-cost", type=DurationType("0.01s"), help="From a failure to the first new step."
)
@click.option(
    "--mtbf", type=DurationType("0.01s"), help="Of the whole job, instead of the history's."
)
@click.option(
    "--last",
    "newest",
    type=click.IntRange(2, 1000),
    default=8,
    show_default=True,
    help="How many of the newest whole checkpoints to measure.",
)
@output.json_option
@output.config_option
def advise(
    target: str,
    nodes: int | None,
    save_cost: float | None,
    restart_cost: float | None,
    mtbf: float | None,
    newest: int,
    config: str,
    as_json: bool,
) -> None:
    """Say how often to save.

    The cost of a save and the present interval come from the files of the whole checkpoints in
    DIR, or in the directory that JOB was submitted with; failures and restarts from the journal.
    Where nothing is known, published numbers are taken, and the answer says so.
    """
    from hpctl.cli import checkpoint_advice as gathering

    asked = gathering.Asked(target, nodes, save_cost, restart_cost, mtbf, newest)
    view = gathering.view(asked, config, output.now())
    output.show("advise", view, as_json, draw)


def draw(out: Console, v: AdviceView) -> None:
    """The same for people."""
    from hpctl.core.tell import duration as long

    formats = f" ({', '.join(v.formats)})" * bool(v.formats)
    rows = [
        ("checkpoints", f"{v.checkpoints} whole in {v.directory}{formats}"),
        ("save", f"{long(v.save_s)}, {v.save_from}"),
        ("restart", f"{long(v.restart_s)}, {v.restart_from}"),
        ("failures", v.failures_from),
        (
            "job",
            f"{v.nodes} node{'s' * (v.nodes != 1)}: a failure every {long(v.mtbf_s)}"
            + f" (between {long(v.mtbf_low_s)} and {long(v.mtbf_high_s)})"
            * (v.mtbf_low_s != v.mtbf_high_s),
        ),
        ("", ""),
        ("save every", f"{long(v.interval_s)}{_steps(v.interval_steps)}: {v.ratio:.2%} effective"),
    ]
    if v.interval_low_s != v.interval_high_s:
        best = f"{long(v.interval_low_s)} to {long(v.interval_high_s)}, as failures may be"
        rows.append(("", f"{best}; Young: {long(v.young_s)}"))
    if v.now_s is not None and v.now_ratio is not None:
        rows.append(("now", f"{long(v.now_s)}{_steps(v.now_steps)}: {v.now_ratio:.2%} effective"))
    for name, text in rows:
        lines = wrap(text, max(40, out.width - 13)) or [""]
        for head, line in zip_longest([name], lines, fillvalue=""):
            out.print(f"{head:<12} {line}".rstrip(), markup=False)
    out.print()
    out.print("INTERVAL      EFFECTIVE TRAINING TIME", markup=False)
    for row in v.table:
        out.print(f"{long(row.interval_s):<12}  {row.ratio:.2%}", markup=False)
    for note in v.notes:
        out.print()
        out.print(note, markup=False)


def _steps(steps: int | None) -> str:
    return "" if steps is None else f" ({steps} step{'s' * (steps != 1)})"
