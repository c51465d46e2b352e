"""`hpctl lemons`: instances that break again and again, worst first. Advice from history alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import click

from hpctl.cli import output
from hpctl.cli.gather import World, gather
from hpctl.cli.tables import BAD, DIM, GOOD, WIDE, ago, columns, styled, wrapped
from hpctl.core.lemons import DEFAULT, Lemon, scores

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True, slots=True)
class LemonView:
    """One instance's history. `rules` counts its recoveries by rule."""

    node: str
    instance_id: str
    score: float
    lemon: bool
    recoveries: int
    jobs: int
    escalated: int
    rules: Mapping[str, int]
    first: datetime
    last: datetime
    why: str


@dataclass(frozen=True, slots=True)
class LemonsView:
    """What `hpctl lemons` shows. `not_shown` counts instances with a history below `limit`."""

    as_of: datetime
    limit: float
    instances: tuple[LemonView, ...]
    not_shown: int


def lemons_view(w: World, *, everybody: bool = False) -> LemonsView:
    """The table as a value: instances at the limit, or all that were ever treated."""
    scored = scores(w.state, w.now)
    shown = tuple(s for s in scored if everybody or s.score >= DEFAULT.limit)
    return LemonsView(
        as_of=w.now,
        limit=DEFAULT.limit,
        instances=tuple(map(_view, shown)),
        not_shown=len(scored) - len(shown),
    )


def _view(lemon: Lemon) -> LemonView:
    return LemonView(
        node=lemon.node,
        instance_id=lemon.instance,
        score=round(lemon.score, 2),
        lemon=lemon.score >= DEFAULT.limit,
        recoveries=lemon.recoveries,
        jobs=lemon.jobs,
        escalated=lemon.escalated,
        rules=lemon.rules,
        first=lemon.first,
        last=lemon.last,
        why=lemon.why,
    )


@click.command()
@click.option("--all", "everybody", is_flag=True, help="Show every instance ever treated.")
@output.json_option
@output.config_option
def lemons(everybody: bool, config: str, as_json: bool) -> None:
    """Instances that break again and again.

    Advice from the journal alone: test such an instance, or `hpctl replace` its node. Exit code 0.
    """
    world = gather(output.load_config(config), output.now())
    output.show("lemons", lemons_view(world, everybody=everybody), as_json, draw)


def draw(out: Console, view: LemonsView) -> None:
    """The table of `hpctl lemons`."""
    if view.instances:
        wide = out.width >= WIDE
        extra = ("RECOVERIES", "JOBS") if wide else ()
        table = columns("NODE", "INSTANCE", "SCORE", *extra, "LAST", wrapped("WHY"))
        for i in view.instances:
            table.add_row(
                i.node,
                i.instance_id,
                styled(f"{i.score:.2f}", BAD if i.lemon else ""),
                *((styled(str(i.recoveries)), styled(str(i.jobs))) if wide else ()),
                ago(i.last, view.as_of),
                i.why,
            )
        out.print(table)
    else:
        out.print(styled("No instance breaks again and again.", GOOD))
    if view.not_shown:
        below = f"{view.not_shown} more with a history below {view.limit:g}: hpctl lemons --all"
        out.print(styled(below, DIM))
