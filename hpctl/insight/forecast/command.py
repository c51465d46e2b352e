"""`hpctl cluster forecast`: how likely nodes break soon, why, and how right that was here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine import config_loading
from hpctl.engine.completion import complete_node
from hpctl.engine.request_client import expand_hostlists
from hpctl.engine.world import World, list_known_nodes
from hpctl.engine.world_reader import read_world_once
from hpctl.insight.forecast.history import (
    ForecastCalibrationBin,
    InstanceFailureForecast,
    compute_forecast_calibration_error,
    compute_slurm_weights,
    count_needed_spares,
    forecast_node_failures,
    measure_forecast_calibration,
)
from hpctl.toolkit import output, view_copy
from hpctl.toolkit.declared_view import (
    Column,
    Columns,
    ItemTextLines,
    JsonOnly,
    Layout,
    RowTable,
    TextLine,
)
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.toolkit.output import DRY_RUN
from hpctl.toolkit.tables import BAD, DIM, HEAD
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.outcome import OutcomeKind

if TYPE_CHECKING:
    from hpctl.engine.config import Config


class NodeForecastView(Struct, frozen=True):
    """One node's instance. `day`, `week`, `month`: how likely it breaks within 1, 7 and 30 days, 0
    to 1. `again`: it breaks again and again. `rules` counts its recoveries by rule; `classes`: what
    part each class of fault has of the chance. `signs`: the indicators that it shows now."""

    node: str
    instance_id: str
    day: float
    week: float
    month: float
    again: bool
    breaks: int
    jobs: int
    escalated: int
    rules: Mapping[str, int]
    classes: Mapping[str, float]
    signs: tuple[str, ...]
    first: datetime | None
    last: datetime | None
    why: str

    columns: ClassVar[Columns] = (
        Column("NODE", "node"),
        Column("1 D", "{day:.1%}"),
        Column("7 D", "{week:.1%}"),
        Column("30 D", "{month:.1%}", style=lambda node: BAD if node.again else ""),
        Column("MOST LIKELY", lambda node: next(iter(node.classes), "")),
        Column("WHY", "why", fold=True),
    )
    json_only: ClassVar[JsonOnly] = (
        "instance_id",
        "breaks",
        "jobs",
        "escalated",
        "rules",
        "signs",
        "first",
        "last",
    )


def _has_failure_history(view: ForecastView) -> bool:
    return view.error is not None


BAND_COLUMNS = (
    Column("CHANCE IN 7 D", "{low:.0%} to {high:.0%}"),
    Column("NODE-WEEKS", "node_weeks"),
    Column("PREDICTED", "{predicted:.1%}"),
    Column("HAPPENED", "{happened:.1%}"),
)


class ForecastView(Struct, frozen=True):
    """What `hpctl cluster forecast` shows, the worst node first. `not_shown` counts nodes with
    neither a break nor an indicator. `spares`: so many are enough for the breaks of a day, of all
    nodes asked for, in 95 of 100 days. `weights`: the nodes by the Weight that was set, or would
    be; null where none was asked for. `calibration`: past weeks' forecasts by chance, and what
    happened; `error`: how far they lay apart on average, null where no week has passed."""

    as_of: datetime
    nodes: tuple[NodeForecastView, ...]
    not_shown: int
    spares: int
    weights: Mapping[str, str] | None
    calibration: tuple[ForecastCalibrationBin, ...]
    error: float | None
    dry_run: bool = False

    layout: ClassVar[Layout] = (
        RowTable("nodes"),
        TextLine(
            "{not_shown} more without a history: hpctl cluster forecast --all",
            style=DIM,
            when="not_shown",
        ),
        ItemTextLines("weight_lines", unbroken=True),
        TextLine("Spares enough for a day's breaks of these, in 95 of 100 days: {spares}"),
        TextLine("Forecasts of past weeks", style=HEAD, gap=True),
        TextLine("None yet: they need two weeks of journal.", when=lambda view: view.error is None),
        RowTable("calibration", BAND_COLUMNS, when=_has_failure_history),
        TextLine(
            "Predicted and happened lie {error:.2%} apart on average.", when=_has_failure_history
        ),
        TextLine(DRY_RUN, when="dry_run"),
    )

    @property
    def weight_lines(self) -> list[str]:
        """Return each Weight with its nodes."""
        return [f"Weight {weight}: {names}" for weight, names in (self.weights or {}).items()]


def make_forecast_view(
    w: World,
    names: Collection[NodeName] = (),
    *,
    every: bool,
    by: Mapping[int, Sequence[NodeName]] | None = None,
) -> ForecastView:
    """Return the table as a value: the nodes asked for, else those with a history, or `every` one.
    `by`: the nodes of each Weight."""
    known = list_known_nodes(w)
    found = forecast_node_failures(w.state, known, w.health, w.now, of=names or None)
    shown = [f for f in found if every or names or f.breaks or f.signs]
    bands = measure_forecast_calibration(w.state, known, w.now)
    return ForecastView(
        as_of=w.now,
        nodes=tuple(map(_build_node_forecast_view, shown)),
        not_shown=len(found) - len(shown),
        spares=count_needed_spares(found),
        weights=None
        if by is None
        else {str(weight): fold_hostlist(nodes) for weight, nodes in by.items()},
        calibration=bands,
        error=round(compute_forecast_calibration_error(bands), 4) if bands else None,
    )


def _build_node_forecast_view(f: InstanceFailureForecast) -> NodeForecastView:
    chances = {name: round(getattr(f, name), 4) for name in ("day", "week", "month")}
    classes = {kind: round(part, 3) for kind, part in f.classes.items()}
    return view_copy.build_view_from_source(
        NodeForecastView, f, instance_id=f.instance, again=f.again, classes=classes, **chances
    )


@click.command()
@click.argument("names", metavar="[NODE]...", nargs=-1, shell_complete=complete_node)
@click.option("--all", "every", is_flag=True, help="Show nodes without a history too.")
@click.option(
    "--set-weights", is_flag=True, help="Set Slurm's Weight by it: jobs go to other nodes first."
)
@click.option("--dry-run", is_flag=True, help="Show the weights; set none.")
@output.json_option
@output.config_option
def forecast(
    names: tuple[str, ...],
    every: bool,
    set_weights: bool,
    dry_run: bool,
    config: str,
    as_json: bool,
) -> None:
    """How likely nodes break in the next days.

    NODE may be a hostlist. Advice from the journal and what agents report: it orders tests of idle
    nodes, and drains none. The last table tells what was predicted here, and what happened.
    """
    loaded = config_loading.load_config(config)
    world = read_world_once(loaded, output.get_current_utc_time(), slurm=True)
    known = [str(n) for n in list_known_nodes(world)]
    wanted = [NodeName(name) for name in expand_hostlists(names)]
    for name in wanted:
        if name not in known:
            raise output.make_not_found_error("nodes", name, known)
    asked = tuple(dict.fromkeys(wanted))
    found = (
        _set_slurm_node_weights(loaded, world, asked, dry_run) if set_weights or dry_run else None
    )
    view = make_forecast_view(world, asked, every=every, by=found)
    output.show_view("forecast", replace(view, dry_run=dry_run), as_json)


def _set_slurm_node_weights(
    loaded: Config, w: World, names: Collection[NodeName], dry_run: bool
) -> Mapping[int, Sequence[NodeName]]:
    """Set the weights of these nodes, or of all that Slurm has. Raises HpctlError."""
    from hpctl.engine.adapters import make_slurm_command_client

    if w.slurm is None:
        raise ServiceUnavailable(w.slurm_error, "No weight was set.")
    nodes = [n for n in names or w.slurm.nodes if n in w.slurm.nodes]
    found = compute_slurm_weights(forecast_node_failures(w.state, nodes, w.health, w.now, of=nodes))
    slurm = make_slurm_command_client(loaded)
    for weight, these in () if dry_run else found.items():
        outcome = slurm.set_node_weight(these, weight)
        if outcome.kind is not OutcomeKind.ACCEPTED:
            raise HpctlError(
                f"Slurm did not set the scheduling Weight of the nodes {fold_hostlist(these)}:"
                f" {outcome.detail or outcome.code}",
                "Run the command as root, SlurmUser or an administrator of Slurm.",
            )
    return found
