"""Shell completion of log rules."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from hpctl.toolkit.arguments import complete_file


def complete_rule_presets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Return names of presets of log rules."""
    from hpctl.vocabulary.log_presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def complete_rule_files(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return presets of log rules; where none begins so, files. (bash drops names among files.)"""
    presets = [CompletionItem(name) for name in complete_rule_presets(ctx, param, incomplete)]
    return presets or complete_file(ctx, param, incomplete)
