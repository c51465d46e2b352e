"""`hpctl report`: a period of the fleet for whoever pays for it: failures, costs, savings."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
from msgspec import Meta, Struct, field

from hpctl.engine import config_loading, views
from hpctl.engine.world_offline import Followed
from hpctl.insight.report.decide import Node, Published, Report, Total
from hpctl.insight.report.decide import report as figures
from hpctl.insight.report.html import page
from hpctl.toolkit import output, yaml_files
from hpctl.toolkit.arguments import DurationType
from hpctl.toolkit.durations import duration
from hpctl.toolkit.errors import FileProblems
from hpctl.toolkit.tables import DIM, grid, heading, indented, numbers, styled, table, wrapped

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.engine.config import Config


BAR_EVERY = 5000


ASSUMED = (
    "The nodes that Slurm knows now count for the whole period.",
    "Savings are against plain Slurm as it is shipped: a requeued job waits 121 s; no node is"
    " rebooted or replaced until a person does it, here {by_hand} after its drain (--by-hand).",
    "Work lost since the last checkpoint is not counted. Jobs count whole nodes.",
)
"""What the figures rest on; part of every form of the report."""


Price = Annotated[float, Meta(ge=0)]


class PriceError(FileProblems):
    """A price list cannot be read; every problem has its place."""


class Prices(Struct, frozen=True, forbid_unknown_fields=True):
    """A price list: what an hour of one GPU costs, by default and by partition."""

    gpu_hour: Price
    currency: str = "USD"
    partitions: Mapping[str, Price] = field(default_factory=dict)

    def of(self, partitions: tuple[str, ...]) -> float:
        """The price in the first partition that has one of its own."""
        return next((self.partitions[p] for p in partitions if p in self.partitions), self.gpu_hour)


class ReportView(Struct, frozen=True):
    """What `hpctl report` shows. `currency` is empty without a price list."""

    cluster: str
    currency: str
    report: Report
    assumptions: tuple[str, ...]


def read(
    config: Config, since: datetime, until: datetime, by_hand: timedelta, prices: Prices | None
) -> Report:
    """The figures, from the journal with its past and the nodes that Slurm knows now.

    Raises what opening the journal raises, and Unavailable where Slurm does not answer.
    """
    from rich.progress import Progress

    from hpctl.engine.adapters import make_scheduler, open_reader

    nodes = make_scheduler(config).view().nodes
    journal = Followed(since, past=views.looks_back(until, ended=False, since=since))
    quiet, err = not sys.stderr.isatty(), output.console(err=True)
    with (
        closing(open_reader(config)) as store,
        Progress(console=err, transient=True, disable=quiet) as bar,
    ):
        task = bar.add_task("reading the journal", total=(until - since).total_seconds())
        for count, (_, event) in enumerate(journal.news(store)):
            if count % BAR_EVERY == 0:
                bar.update(task, completed=max(0.0, (event.at - since).total_seconds()))
    fleet = {}
    for name, node in nodes.items():
        price = prices.of(node.partitions) if prices else None
        fleet[name] = Node(dict(node.has.gres).get("gpu", 0), price)
    return figures(journal.state, fleet, since, until, by_hand)


_SINCE = "Where the period begins (12h, 30d, ISO); it ends now."


_BY_HAND = "Time in which a person would repair a node without hpctl."


_PRICES = "A YAML file: gpu_hour, currency, partitions. Without it costs are GPU-hours."


_HTML = "Write one HTML file with plots, which loads nothing else."


_FILE = click.Path(dir_okay=False)


_TIME = DurationType("1min", "90d")


@click.command()
@click.option("--since", type=output.SinceType(), default="30d", show_default=True, help=_SINCE)
@click.option("--by-hand", type=_TIME, default="1d", show_default=True, help=_BY_HAND)
@click.option("--prices", type=_FILE, metavar="FILE", help=_PRICES)
@click.option("--html", type=_FILE, metavar="FILE", help=_HTML)
@output.json_option
@output.config_option
def report(
    since: datetime, by_hand: float, prices: str | None, html: str | None, config: str,
    as_json: bool,
) -> None:  # fmt: skip
    """What failed, what it cost, and what hpctl saved.

    Failures by class are compared with published rates. The report says what it assumes.
    """
    loaded, until = config_loading.load_config(config), output.now()
    if since >= until:
        raise click.UsageError("--since is not in the past")
    listed = None
    if prices is not None:
        listed = yaml_files.struct_of(
            Prices, yaml_files.read(prices, PriceError), prices, PriceError
        )
    found = read(loaded, since, until, timedelta(seconds=by_hand), listed)
    assumed = tuple(text.format(by_hand=duration(by_hand)) for text in ASSUMED)
    view = ReportView(loaded.cluster.name, listed.currency if listed else "", found, assumed)
    if html is not None:
        text = page(view.cluster, found, summary(view), tables(view), assumed)
        Path(html).write_text(text, encoding="utf-8")
        output.echo(f"hpctl: wrote {html}", err=True)
    if html is None or as_json:
        output.show("report", view, as_json, draw)


def spent(total: Total, currency: str) -> str:
    """`12.5 GPU-hours (31.25 USD)`."""
    money = f" ({total.cost:,.2f} {currency})" if currency and total.cost is not None else ""
    return f"{total.gpu_hours:,.1f} GPU-hours{money}"


def summary(view: ReportView) -> list[tuple[str, str]]:
    """The figures that matter most, in words."""
    r, money = view.report, view.currency
    rate = f"{r.unneeded.count} drain(s) of nodes that needed no remedy, "
    return [
        ("fleet", f"{r.nodes} nodes, {r.gpus} GPUs, {r.node_days:,.1f} node-days"),
        ("failures", f"{r.all.failures}, {r.all.per_1000:.2f} per 1,000 node-days"),
        ("jobs hit", f"{r.idle.count}; they waited for {spent(r.idle, money)}"),
        ("nodes out", f"{r.out.count}; out of service for {spent(r.out, money)}"),
        ("saved: jobs", f"{r.restarts.count} restarts; {spent(r.restarts, money)}"),
        ("saved: nodes", f"{r.kept.count} repaired without a person; {spent(r.kept, money)}"),
        ("false drains", rate + spent(r.unneeded, money)),
        ("handed over", f"{r.escalated} recoveries escalated; {r.orders} ordered by operators"),
    ]  # fmt: skip


def published(rates: tuple[Published, ...]) -> str:
    """`3.79 (Llama 3, arXiv 2407.21783); ...`."""
    return "; ".join(f"{one.rate:.2f} ({one.source})" for one in rates)


def tables(view: ReportView) -> list[tuple[str, tuple[str, ...], Sequence[tuple[str, ...]]]]:
    """Every table of the report: title, headings, rows; without money where there is no price."""
    r, priced = view.report, bool(view.currency)
    faults = []
    for c in (r.all, *r.classes):
        money = ("-" if c.lost.cost is None else f"{c.lost.cost:,.2f}",) * priced
        figure = (str(c.failures), f"{c.per_1000:.2f}", f"{c.lost.gpu_hours:,.1f}")
        faults.append((c.name, *figure, *money, published(c.published)))
    heads = ("CLASS", "FAILURES", "PER 1,000 NODE-DAYS", "GPU-HOURS")
    stages = [
        (what, s.name.replace("_", " "), str(s.count), duration(s.mean_s), duration(s.median_s))
        for what, rows in (("node", r.node_stages), ("job", r.job_stages))
        for s in rows
    ]
    again = [(i.node, i.instance, str(i.breaks), f"{i.month:.0%}", i.why) for i in r.again]
    spares = [(s.group, str(s.fewest), str(s.most), str(s.last)) for s in r.spares]
    return [
        ("Failures", (*heads, *((view.currency,) * priced), "PUBLISHED"), faults),
        ("Runs that went wrong by themselves", ("TROUBLE", "RUNS"),
         [(kind.replace("_", " "), str(n)) for kind, n in r.runs.items()]),
        ("Time to repair", ("OF", "STAGE", "COUNT", "MEAN", "MEDIAN"), stages),
        ("Instances that break again", ("NODE", "INSTANCE", "BREAKS", "30 D", "WHY"), again),
        ("Spares", ("GROUP", "FEWEST", "MOST", "NOW"), spares),
    ]  # fmt: skip


def draw(out: Console, view: ReportView) -> None:
    """The report as text."""
    r = view.report
    out.print(
        f"{view.cluster or 'hpctl'}: {r.since:%Y-%m-%d %H:%M} to {r.until:%Y-%m-%d %H:%M} UTC"
    )
    facts = grid(DIM)
    for name, text in summary(view):
        facts.add_row(name, text)
    out.print(facts)
    for title, heads, rows in tables(view):
        if rows:
            heading(out, title)
            first, *middle, last = heads
            table(out, (first, *numbers(*middle), wrapped(last)), rows, wide=("PUBLISHED",))
    heading(out, "What this assumes")
    for line in view.assumptions:
        out.print(indented(styled(line, DIM)))
