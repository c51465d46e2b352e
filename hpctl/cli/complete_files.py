"""Shell completion of files and presets, which needs no journal: cheap to import inside a job."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


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
