"""Shell completion of log rules."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from hpctl.toolkit.arguments import complete_file_path


def complete_log_rule_preset_names(
    ctx: click.Context,  # noqa: ARG001
    param: click.Parameter,  # noqa: ARG001
    incomplete: str,
) -> list[str]:
    """Return names of presets of log rules."""
    from hpctl.vocabulary.log_presets import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


def complete_log_rule_file_paths(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return presets of log rules; where none begins so, files. (bash drops names among files.)"""
    presets = [
        CompletionItem(name) for name in complete_log_rule_preset_names(ctx, param, incomplete)
    ]
    return presets or complete_file_path(ctx, param, incomplete)
