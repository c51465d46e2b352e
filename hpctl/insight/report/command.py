"""`hpctl report`: failures, costs and savings of the fleet in a period."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import click
from msgspec import Meta, Struct, field

from hpctl.engine import config_loading, views
from hpctl.engine.world_offline import JournalReplayer
from hpctl.insight.report.decide import (
    CostReport,
    CostTotal,
    FaultCostRow,
    PricedNode,
    PublishedFailureRate,
    StageRow,
)
from hpctl.insight.report.decide import build_cost_report as figures
from hpctl.insight.report.held import UntreatedFaultCollector
from hpctl.insight.report.html import render_report_page
from hpctl.toolkit import output, yaml_files
from hpctl.toolkit.arguments import DurationType
from hpctl.toolkit.declared_view import (
    Column,
    ItemTextLines,
    LabeledValueRow,
    LabeledValueTable,
    Layout,
    RowTable,
    TextLine,
    make_number_column,
)
from hpctl.toolkit.durations import format_duration
from hpctl.toolkit.errors import InvalidFileError
from hpctl.toolkit.tables import DIM

if TYPE_CHECKING:
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


class PriceListError(InvalidFileError):
    """A price list cannot be read; every problem has its place."""


class GpuPrices(Struct, frozen=True, forbid_unknown_fields=True):
    """A price list: what an hour of one GPU costs, by default and by partition."""

    gpu_hour: Price
    currency: str = "USD"
    partitions: Mapping[str, Price] = field(default_factory=dict)

    def of(self, partitions: tuple[str, ...]) -> float:
        """Return the price of the first partition that has a price."""
        return next((self.partitions[p] for p in partitions if p in self.partitions), self.gpu_hour)


def format_cost(total: CostTotal, currency: str) -> str:
    """Return `12.5 GPU-hours (31.25 USD)`."""
    money = f" ({total.cost:,.2f} {currency})" if currency and total.cost is not None else ""
    return f"{total.gpu_hours:,.1f} GPU-hours{money}"


def format_published_failure_rates(rates: tuple[PublishedFailureRate, ...]) -> str:
    """Return `3.79 (Llama 3, arXiv 2407.21783); ...`."""
    return "; ".join(f"{one.rate:.2f} ({one.source})" for one in rates)


def _format_fault_class_cost(fault: FaultCostRow) -> str:
    return "-" if fault.lost.cost is None else f"{fault.lost.cost:,.2f}"


def _describe_untreated_faults(held: Mapping[str, int]) -> str:
    """Return `3, not treated: drain_budget 2, observing 1`; "" where there are none."""
    if not held:
        return ""
    gates = ", ".join(f"{gate} {count}" for gate, count in held.items())
    return f"{sum(held.values())}, not treated: {gates}"


class StageRowText(Struct, frozen=True):
    """A stage of the recoveries of nodes or of jobs."""

    of: str
    stage: StageRow


def _list_recovery_stage_rows(view: ReportView) -> list[StageRowText]:
    nodes = [StageRowText("node", stage) for stage in view.report.node_stages]
    return nodes + [StageRowText("job", stage) for stage in view.report.job_stages]


# The figures that matter most, in words.
SUMMARY = LabeledValueTable(
    (
        LabeledValueRow(
            "fleet", "{report.nodes} nodes, {report.gpus} GPUs, {report.node_days:,.1f} node-days"
        ),
        LabeledValueRow(
            "failures", "{report.all.failures}, {report.all.per_1000:.2f} per 1,000 node-days"
        ),
        LabeledValueRow("jobs hit", "{report.idle.count}; they waited for {idle}"),
        LabeledValueRow("nodes out", "{report.out.count}; out of service for {out}"),
        LabeledValueRow("saved: jobs", "{report.restarts.count} restarts; {restarts}"),
        LabeledValueRow("saved: nodes", "{report.kept.count} repaired without a person; {kept}"),
        LabeledValueRow(
            "false drains",
            "{report.unneeded.count} drain(s) of nodes that needed no remedy, {unneeded_cost}",
        ),
        LabeledValueRow("faults held", lambda view: _describe_untreated_faults(view.report.held)),
        LabeledValueRow(
            "handed over",
            "{report.escalated} recoveries escalated; {report.orders} ordered by operators",
        ),
    )
)


TABLES = (
    RowTable(
        lambda view: (view.report.all, *view.report.classes),
        (
            Column("CLASS", "name"),
            make_number_column("FAILURES", "failures"),
            make_number_column("PER 1,000 NODE-DAYS", "{per_1000:.2f}"),
            make_number_column("GPU-HOURS", "{lost.gpu_hours:,.1f}"),
            make_number_column("{currency}", _format_fault_class_cost, when="currency"),
            Column(
                "PUBLISHED",
                lambda row: format_published_failure_rates(row.published),
                fold=True,
                wide=True,
            ),
        ),
        title="Failures",
    ),
    RowTable(
        lambda view: view.report.runs.items(),
        (
            Column("TROUBLE", lambda row: row[0].replace("_", " ")),
            Column("RUNS", lambda row: row[1], fold=True),
        ),
        title="Runs that went wrong by themselves",
    ),
    RowTable(
        _list_recovery_stage_rows,
        (
            Column("OF", "of"),
            make_number_column("STAGE", lambda row: row.stage.name.replace("_", " ")),
            make_number_column("COUNT", "stage.count"),
            make_number_column("MEAN", lambda row: format_duration(row.stage.mean_s)),
            Column("MEDIAN", lambda row: format_duration(row.stage.median_s), fold=True),
        ),
        title="Time to repair",
    ),
    RowTable(
        "report.again",
        (
            Column("NODE", "node"),
            make_number_column("INSTANCE", "instance"),
            make_number_column("BREAKS", "breaks"),
            make_number_column("30 D", "{month:.0%}"),
            Column("WHY", "why", fold=True),
        ),
        title="Instances that break again",
    ),
    RowTable(
        "report.spares",
        (
            Column("GROUP", "group"),
            make_number_column("FEWEST", "fewest"),
            make_number_column("MOST", "most"),
            Column("NOW", "last", fold=True),
        ),
        title="Spares",
    ),
)


class ReportView(Struct, frozen=True):
    """What `hpctl report` shows. `currency` is empty without a price list."""

    cluster: str
    currency: str
    report: CostReport
    assumptions: tuple[str, ...]

    layout: ClassVar[Layout] = (
        TextLine("{name}: {report.since:%Y-%m-%d %H:%M} to {report.until:%Y-%m-%d %H:%M} UTC"),
        SUMMARY,
        *TABLES,
        ItemTextLines("assumptions", title="What this assumes", style=DIM, indent=2),
    )

    @property
    def name(self) -> str:
        """Return the cluster's name, where it has one."""
        return self.cluster or "hpctl"

    @property
    def idle(self) -> str:
        """Return what jobs cost while they waited."""
        return format_cost(self.report.idle, self.currency)

    @property
    def out(self) -> str:
        """Return what nodes cost while they were out of service."""
        return format_cost(self.report.out, self.currency)

    @property
    def restarts(self) -> str:
        """Return what restarts of jobs saved."""
        return format_cost(self.report.restarts, self.currency)

    @property
    def kept(self) -> str:
        """Return what nodes that were repaired saved."""
        return format_cost(self.report.kept, self.currency)

    @property
    def unneeded_cost(self) -> str:
        """Return what drains without a remedy cost."""
        return format_cost(self.report.unneeded, self.currency)


def render_html_cost_report(view: ReportView) -> str:
    """Return the report as one page: the facts and the tables of its text."""
    from hpctl.toolkit.view_drawing import format_labeled_value_table, format_row_table

    tables = [(str(one.title), *format_row_table(one, view)) for one in TABLES]
    facts = format_labeled_value_table(SUMMARY, view)
    return render_report_page(view.cluster, view.report, facts, tables, view.assumptions)


def read_cost_report(
    config: Config, since: datetime, until: datetime, by_hand: timedelta, prices: GpuPrices | None
) -> CostReport:
    """Return the figures, from the journal with its past and the nodes that Slurm knows now.

    Raises what opening the journal raises, and Unavailable where Slurm does not answer.
    """
    from rich.progress import Progress

    from hpctl.engine.adapters import open_journal_reader
    from hpctl.engine.world_reader import read_current_scheduler_view

    nodes = read_current_scheduler_view(config).nodes
    journal = JournalReplayer(
        since, past=views.needs_archived_recoveries(until, ended=False, since=since)
    )
    held = UntreatedFaultCollector()
    quiet, err = not sys.stderr.isatty(), output.make_console(err=True)
    with (
        closing(open_journal_reader(config)) as store,
        Progress(console=err, transient=True, disable=quiet) as bar,
    ):
        task = bar.add_task("reading the journal", total=(until - since).total_seconds())
        for count, (_, event) in enumerate(journal.news(store)):
            held.take(event, journal.state)
            if count % BAR_EVERY == 0:
                bar.update(task, completed=max(0.0, (event.at - since).total_seconds()))
    fleet = {}
    for name, node in nodes.items():
        price = prices.of(node.partitions) if prices else None
        fleet[name] = PricedNode(dict(node.has.gres).get("gpu", 0), price)
    return figures(journal.state, fleet, since, until, by_hand, held.list_untreated_faults())


_SINCE = "Where the period begins (12h, 30d, ISO); it ends now."


_BY_HAND = "Time in which a person would repair a node without hpctl."


_PRICES = "A YAML file: gpu_hour, currency, partitions. Without it costs are GPU-hours."


_HTML = "Write one HTML file with plots, which loads nothing else."


_FILE = click.Path(dir_okay=False)


_TIME = DurationType("1min", "90d")


@click.command()
@click.option("--since", type=output.PastTimeType(), default="30d", show_default=True, help=_SINCE)
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
    loaded, until = config_loading.load_config(config), output.get_current_utc_time()
    if since >= until:
        raise click.UsageError("the time in --since is not in the past: give an earlier time")
    listed = None
    if prices is not None:
        listed = yaml_files.parse_yaml_struct(
            GpuPrices,
            yaml_files.read_size_limited_text(prices, PriceListError),
            prices,
            PriceListError,
        )
    found = read_cost_report(loaded, since, until, timedelta(seconds=by_hand), listed)
    assumed = tuple(text.format(by_hand=format_duration(by_hand)) for text in ASSUMED)
    view = ReportView(loaded.cluster.name, listed.currency if listed else "", found, assumed)
    if html is not None:
        text = render_html_cost_report(view)
        Path(html).write_text(text, encoding="utf-8")
        output.echo(f"hpctl: wrote {html}", err=True)
    if html is None or as_json:
        output.show_view("report", view, as_json)
