"""Shell completion of names from the store: quick, and silent where anything is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from hpctl.errors import HpctlError

if TYPE_CHECKING:
    from hpctl.core.journal import State


def _names(ctx: click.Context, pick: Callable[[State], list[str]], incomplete: str) -> list[str]:
    from hpctl.cli.gather import fold
    from hpctl.cli.output import DEFAULT_CONFIG, load_config
    from hpctl.wiring import open_store

    path = ctx.params.get("config") or os.environ.get("HPCTL_CONFIG") or DEFAULT_CONFIG
    try:
        store = open_store(load_config(path))
        try:
            names = pick(fold(store.events()))
            names += [str(n) for n in store.health()] if pick is _nodes else []
        finally:
            store.close()
    except (HpctlError, OSError):
        return []
    return sorted({n for n in names if n.startswith(incomplete)})


def _nodes(state: State) -> list[str]:
    return [str(r.node) for r in state.nodes.values()]


def _open(state: State) -> list[str]:
    return [*map(str, state.open_nodes.values()), *map(str, state.open_jobs.values())]


def _holds(state: State) -> list[str]:
    return [t for t, hold in state.holds.items() if hold.approvable]


def _any(state: State) -> list[str]:
    jobs = [str(r.attempt.job) for r in state.jobs.values()]
    ids = [*map(str, state.nodes), *map(str, state.jobs), *map(str, state.changes)]
    return [*ids, *state.holds, *_nodes(state), *jobs]


def complete_node(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Node names that agents or recoveries speak of."""
    return _names(ctx, _nodes, incomplete)


def complete_open(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Ids of open recoveries."""
    return _names(ctx, _open, incomplete)


def complete_hold(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Targets of holds that an approval lifts."""
    return _names(ctx, _holds, incomplete)


def complete_any(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Whatever `explain` can explain."""
    return _names(ctx, _any, incomplete)


def complete_preset(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Names of presets of log rules."""
    from hpctl.jobs.logs.rules import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def complete_file(
    ctx: click.Context,  # noqa: ARG001
    param: click.Parameter | None,  # noqa: ARG001
    incomplete: str,
) -> list[CompletionItem]:
    """The shell's own completion of files."""
    return [CompletionItem(incomplete, type="file")]


def complete_rules(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Presets of log rules; where none begins so, files. (bash drops names beside files.)"""
    presets = [CompletionItem(name) for name in complete_preset(ctx, param, incomplete)]
    return presets or complete_file(ctx, param, incomplete)
