"""`hpctl cluster autoscale`: how groups grow and shrink, what was done, and why nothing is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine import config_loading
from hpctl.engine.views import CapacityChangeView, list_capacity_changes, make_capacity_change_view
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import (
    Column,
    Columns,
    ItemTextLines,
    Layout,
    RowTable,
    TextLine,
    make_number_column,
)
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.toolkit.output import ExitCode
from hpctl.vocabulary.slurm_facts import map_reserved_nodes

if TYPE_CHECKING:
    from hpctl.capacity.autoscale import AutoscaledInstanceGroup, Decision
    from hpctl.engine.config import Config
    from hpctl.engine.world import World
    from hpctl.vocabulary.identity import NodeName


class GroupScaleView(Struct, frozen=True):
    """One group of the configuration. What is unknown is None.

    `answer` is what autoscaling answers now: up, down or hold; `rule` the check that holds.
    """

    group: str
    min_count: int
    max_count: int
    target: int | None
    running: int | None
    idle: int | None
    arriving: int | None
    spares: int
    answer: str
    count: int
    rule: str
    why: str

    columns: ClassVar[Columns] = (
        Column("GROUP", "group"),
        Column("LIMITS", "{min_count}-{max_count}"),
        make_number_column("TARGET", "target"),
        make_number_column("RUNNING", "running", wide=True),
        make_number_column("IDLE", "idle", wide=True),
        make_number_column("COMING", "arriving", wide=True),
        make_number_column("SPARES", "spares", wide=True),
        Column("ANSWER", lambda row: f"{row.answer} {row.count}" if row.count else row.answer),
        Column("WHY", lambda row: f"{row.rule}: {row.why}" if row.rule else row.why, fold=True),
    )


class WaitingView(Struct, frozen=True):
    """A job that waits for nodes and for nothing else."""

    job: int
    partitions: tuple[str, ...]
    nodes: int
    since: datetime

    columns: ClassVar[Columns] = (
        Column("JOB", "job"),
        Column("PARTITION", lambda row: ",".join(row.partitions)),
        make_number_column("NODES", "nodes"),
        Column("SINCE", "since"),
    )


class AutoscaleView(Struct, frozen=True):
    """What `hpctl cluster autoscale` shows. `adds_left`, `hours_left`: of these 24 hours' budget.

    `waiting` and the older `changes` are there with explain alone. `unknown`: what could not be
    read, and why; no answer rests on it.
    """

    as_of: datetime
    enabled: bool
    mode: str
    adds_left: int
    hours_left: float | None
    groups: tuple[GroupScaleView, ...]
    waiting: tuple[WaitingView, ...]
    changes: tuple[CapacityChangeView, ...]
    unknown: tuple[str, ...] = ()

    layout: ClassVar[Layout] = (
        TextLine("{headline}"),
        RowTable("groups", otherwise="No group is named in autoscale.groups."),
        RowTable("waiting", gap=True),
        RowTable("changes", gap=True),
        ItemTextLines("unknown", "Not known: {}"),
    )

    @property
    def headline(self) -> str:
        """Return whether autoscaling is on, and what it may still add."""
        if not self.enabled:
            return "Autoscaling is off (autoscale.enabled): nothing is added or removed."
        observe = "; mode observe: nothing is done" if self.mode == "observe" else ""
        hours = "" if self.hours_left is None else f", {self.hours_left:g} instance-hours"
        left = f"{self.adds_left} instances{hours} may be added within these 24 hours"
        return f"Autoscaling is on{observe}. {left}."


@click.group()
def autoscale() -> None:
    """How groups grow and shrink, and why not."""


@autoscale.command(short_help="Each group and what is decided for it now.")
@output.config_option
@output.json_option
def status(config: str, as_json: bool) -> None:
    """Each group, what is decided for it now, and the changes under way."""
    _show_autoscaled_groups(config, as_json, explain=False)


@autoscale.command(short_help="Why each group grows, shrinks or stays.")
@output.config_option
@output.json_option
def explain(config: str, as_json: bool) -> None:
    """Why each group grows, shrinks or stays: the jobs that wait, and the changes before."""
    _show_autoscaled_groups(config, as_json, explain=True)


def _show_autoscaled_groups(config: str, as_json: bool, *, explain: bool) -> None:
    from hpctl.engine.adapters import make_slurm_command_client
    from hpctl.engine.world_offline import read_source_if_requested
    from hpctl.engine.world_reader import WorldReader

    loaded = config_loading.load_config(config)
    journal = loaded.state_dir / "journal.db"
    if loaded.database_url is None and not journal.exists():
        off = "; it is off in any case (autoscale.enabled)" * (not loaded.autoscale.enabled)
        raise ServiceUnavailable(
            f"cannot show autoscaling: hpctl's daemon, which decides on it, has never run here "
            f"(there is no journal {journal}){off}",
            "start the daemon (`hpctl daemon run`), or give the configuration of a running one "
            "with --config",
        )
    world = WorldReader(loaded).read(
        output.get_current_utc_time(), slurm=True, cloud=True, placement=True
    )
    reservations, why = world.reservations, ""
    if reservations is None:
        found, why = read_source_if_requested(True, make_slurm_command_client(loaded).reservations)
        reservations = map_reserved_nodes(found or {})
    view = make_autoscale_view(loaded, world, reservations or {}, explain=explain)
    if why:
        view = replace(view, unknown=(*view.unknown, f"Slurm's reservations: {why}"))
    output.show_view("autoscale", view, as_json)
    output.exit_with_code(ExitCode.CANNOT_TELL if view.unknown else ExitCode.FINE)


def make_autoscale_view(
    config: Config,
    w: World,
    reservations: Mapping[str, tuple[NodeName, ...]],
    *,
    explain: bool = False,
) -> AutoscaleView:
    """Repeat the daemon's decision with what can be read here."""
    from hpctl.capacity.autoscale import compute_remaining_scaling_budget
    from hpctl.capacity.facts import make_scaling_input
    from hpctl.capacity.plan import decide_scaling_of_all_groups

    policy = w.policy
    seen = replace(w.view(), reservations=reservations)
    scale = make_scaling_input(seen, policy, w.now)
    # Where the world cannot be read whole, no answer is made up from the part that can.
    decided = decide_scaling_of_all_groups(seen, policy, w.now) if w.slurm and w.cloud else ()
    answers = {decision.group: decision for decision in decided}
    adds, hours = compute_remaining_scaling_budget(
        scale.history, policy.autoscale, w.now, scale.groups
    )
    unread = [f"Slurm: {w.slurm_error}"] * (w.slurm is None)
    unread += [f"the cloud: {w.cloud_error}"] * (w.cloud is None)
    changes = list_capacity_changes(w.state)[::-1]
    shown = changes[:20] if explain else [c for c in changes if not c.ended]
    return AutoscaleView(
        as_of=w.now,
        enabled=config.autoscale.enabled,
        mode=str(config.mode),
        adds_left=max(adds, 0),
        hours_left=None if hours is None else round(max(hours, 0.0), 1),
        groups=tuple(
            _build_group_scale_view(name, config, scale.groups.get(name), answers.get(name))
            for name in config.autoscale.groups
        ),
        waiting=tuple(
            WaitingView(w.job, w.partitions, w.nodes, w.since)
            for w in (scale.waiting if explain else ())
            if w.grows
        ),
        changes=tuple(map(make_capacity_change_view, shown)),
        unknown=tuple(unread),
    )


def _build_group_scale_view(
    name: str, config: Config, now: AutoscaledInstanceGroup | None, answer: Decision | None
) -> GroupScaleView:
    from hpctl.capacity.autoscale import ScaleUp, ScalingHoldDecision

    limits = config.autoscale.groups[name]
    word, count, rule = "unknown", 0, ""
    if isinstance(answer, ScalingHoldDecision):
        word, rule = "hold", answer.rule
    elif answer is not None:
        up = isinstance(answer, ScaleUp)
        word = "up" if up else "down"
        count = answer.count if isinstance(answer, ScaleUp) else len(answer.nodes)
    return GroupScaleView(
        group=name,
        min_count=limits.min_count,
        max_count=limits.max_count,
        target=now.target if now else None,
        running=now.alive if now else None,
        idle=len(now.idle) if now else None,
        arriving=now.arriving if now else None,
        spares=config.spares.get(name, 0),
        answer=word,
        count=count,
        rule=rule,
        why=answer.why if answer is not None else "",
    )
