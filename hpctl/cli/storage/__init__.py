"""`hpctl storage`: a table of commands, each in a module of its own."""

from __future__ import annotations

import click

from hpctl.cli.lazy import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "link": ("hpctl.cli.storage.link:link", "Link an FSx for Lustre directory to S3."),
    "ls": ("hpctl.cli.storage.ls:ls", "The links between file systems and S3."),
    "preload": ("hpctl.cli.storage.preload:preload", "Load files from S3 before they are read."),
}


@click.command(
    cls=LazyGroup,
    table=COMMANDS,
    epilog="Exit codes: 0 done or fine, 1 problem found or refused, 2 usage, 3 cannot tell.",
)
def storage() -> None:
    """Link file systems to S3, and load files ahead of use."""
