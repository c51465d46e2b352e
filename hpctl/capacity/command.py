"""`hpctl autoscale`: how groups grow and shrink, what was done, and why nothing is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine import config_loading
from hpctl.engine.views import ChangeView, change_table, change_view
from hpctl.toolkit import output
from hpctl.toolkit.errors import Unavailable
from hpctl.toolkit.output import Exit
from hpctl.toolkit.tables import moment, numbers, table, wrapped

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.capacity.autoscale import Decision, ScaledGroup
    from hpctl.engine.config import Config
    from hpctl.engine.world import World
    from hpctl.vocabulary.identity import NodeName


class GroupScaleView(Struct, frozen=True):
    """One group of the configuration. What nobody could say is None.

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


class WaitingView(Struct, frozen=True):
    """A job that waits for nodes and for nothing else."""

    job: int
    partitions: tuple[str, ...]
    nodes: int
    since: datetime


class AutoscaleView(Struct, frozen=True):
    """What `hpctl autoscale` shows. `adds_left` and `hours_left`: of these 24 hours' budget.

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
    changes: tuple[ChangeView, ...]
    unknown: tuple[str, ...] = ()


@click.group()
def autoscale() -> None:
    """How groups grow and shrink, and why not."""


@autoscale.command(short_help="Each group and what is decided for it now.")
@output.config_option
@output.json_option
def status(config: str, as_json: bool) -> None:
    """Each group, what is decided for it now, and the changes under way."""
    _show(config, as_json, explain=False)


@autoscale.command(short_help="Why each group grows, shrinks or stays.")
@output.config_option
@output.json_option
def explain(config: str, as_json: bool) -> None:
    """Why each group grows, shrinks or stays: the jobs that wait, and the changes before."""
    _show(config, as_json, explain=True)


def _show(config: str, as_json: bool, *, explain: bool) -> None:
    from hpctl.engine.adapters import make_scheduler
    from hpctl.engine.world import gather
    from hpctl.engine.world_offline import attempt

    loaded = config_loading.load_config(config)
    journal = loaded.state_dir / "journal.db"
    if loaded.database_url is None and not journal.exists():
        off = "; it is off in any case (autoscale.enabled)" * (not loaded.autoscale.enabled)
        raise Unavailable(
            f"hpctl's daemon decides on autoscaling, and has never run here: {journal} is not"
            f" there{off}",
            "start it (`hpctl daemon run`), or name the configuration of one that runs in --config",
        )
    world = gather(loaded, output.now(), slurm=True, cloud=True)
    reservations, why = attempt(True, make_scheduler(loaded).reservations)
    view = autoscale_view(loaded, world, reservations or {}, explain=explain)
    if why:
        view = replace(view, unknown=(*view.unknown, f"Slurm's reservations: {why}"))
    output.show("autoscale", view, as_json, draw)
    output.leave(Exit.CANNOT_TELL if view.unknown else Exit.FINE)


def autoscale_view(
    config: Config,
    w: World,
    reservations: Mapping[str, tuple[NodeName, ...]],
    *,
    explain: bool = False,
) -> AutoscaleView:
    """The daemon's own decision, made anew from what can be read here."""
    from hpctl.capacity.autoscale import budget_left
    from hpctl.capacity.facts import scale_view
    from hpctl.capacity.plan import scale_decisions

    policy = w.policy
    seen = replace(w.view(), reservations=reservations)
    scale = scale_view(seen, policy, w.now)
    # Where the world cannot be read whole, no answer is made up from the part that can.
    decided = scale_decisions(seen, policy, w.now) if w.slurm and w.cloud else ()
    answers = {decision.group: decision for decision in decided}
    adds, hours = budget_left(scale.history, policy.autoscale, w.now, scale.groups)
    unread = [f"Slurm: {w.slurm_error}"] * (w.slurm is None)
    unread += [f"the cloud: {w.cloud_error}"] * (w.cloud is None)
    changes = sorted(w.state.changes.values(), key=lambda c: c.opened.at, reverse=True)
    shown = changes[:20] if explain else [c for c in changes if not c.ended]
    return AutoscaleView(
        as_of=w.now,
        enabled=config.autoscale.enabled,
        mode=str(config.mode),
        adds_left=max(adds, 0),
        hours_left=None if hours is None else round(max(hours, 0.0), 1),
        groups=tuple(
            _group(name, config, scale.groups.get(name), answers.get(name))
            for name in config.autoscale.groups
        ),
        waiting=tuple(
            WaitingView(w.job, w.partitions, w.nodes, w.since)
            for w in (scale.waiting if explain else ())
            if w.grows
        ),
        changes=tuple(map(change_view, shown)),
        unknown=tuple(unread),
    )


def _group(
    name: str, config: Config, now: ScaledGroup | None, answer: Decision | None
) -> GroupScaleView:
    from hpctl.capacity.autoscale import Hold, ScaleUp

    limits = config.autoscale.groups[name]
    word, count, rule = "unknown", 0, ""
    if isinstance(answer, Hold):
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


def draw(out: Console, view: AutoscaleView) -> None:
    """Each group with its answer, then what waits, then the changes."""
    hours = "" if view.hours_left is None else f", {view.hours_left:g} instance-hours"
    left = f"{view.adds_left} instances{hours} may be added within these 24 hours"
    observe = "; mode observe: nothing is done" if view.mode == "observe" else ""
    if view.enabled:
        out.print(f"Autoscaling is on{observe}. {left}.")
    else:
        out.print("Autoscaling is off (autoscale.enabled): nothing is added or removed.")
    if not view.groups:
        out.print("No group is named in autoscale.groups.")
    else:
        _draw_groups(out, view)
    if view.waiting:
        out.print()
        waiting = (
            (one.job, ",".join(one.partitions), one.nodes, moment(one.since))
            for one in view.waiting
        )
        table(out, ("JOB", "PARTITION", *numbers("NODES"), "SINCE"), waiting)
    if view.changes:
        out.print()
        change_table(out, view.changes)
    for why in view.unknown:
        out.print(f"Not known: {why}")


def _draw_groups(out: Console, view: AutoscaleView) -> None:
    wide = ("RUNNING", "IDLE", "COMING", "SPARES")
    heads = ("GROUP", "LIMITS", *numbers("TARGET", *wide), "ANSWER", wrapped("WHY"))
    rows = []
    for g in view.groups:
        answer = f"{g.answer} {g.count}" if g.count else g.answer
        why = f"{g.rule}: {g.why}" if g.rule else g.why
        counts = (g.target, g.running, g.idle, g.arriving, g.spares)
        rows.append((g.group, f"{g.min_count}-{g.max_count}", *counts, answer, why))
    table(out, heads, rows, wide)
