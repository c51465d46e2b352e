"""`hpctl lifecycle`: a table of commands, each in a module of its own."""

from __future__ import annotations

import click

from hpctl.cli.lazy import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "bundle": ("hpctl.cli.lifecycle.bundle:bundle", "Pack what nodes run at birth, and check it."),
    "push": ("hpctl.cli.lifecycle.push:push", "Upload a bundle to S3, what changed of it."),
    "test": ("hpctl.cli.lifecycle.trial:test", "Run a bundle before a node is paid for it."),
    "show": ("hpctl.cli.lifecycle.show:show", "What became of each step on this node."),
}


@click.command(
    cls=LazyGroup,
    table=COMMANDS,
    epilog="Exit codes: 0 fine, 1 problem found or refused, 2 usage, 3 cannot tell.",
)
def lifecycle() -> None:
    """Make, try and send what runs on a node at birth."""
