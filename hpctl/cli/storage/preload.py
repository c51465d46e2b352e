"""`hpctl storage preload`: the contents of a linked directory, before anybody reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpctl.cli import output
from hpctl.cli.arguments import ThereType

if TYPE_CHECKING:
    from hpctl.cli.storage.lustre import Preload


@click.command()
@click.argument("path", type=ThereType(exists=True, path_type=Path))
@click.option("--dry-run", is_flag=True, help="Count what would be loaded.")
@output.json_option
def preload(path: Path, dry_run: bool, as_json: bool) -> None:
    """Load files from S3 before they are read.

    PATH is a file or a directory of a mounted FSx for Lustre file system. Interrupted, what was
    asked for goes on; called again, it loads what is left.
    """
    from hpctl.cli import render_storage
    from hpctl.cli.storage.lustre import Lfs
    from hpctl.cli.storage.lustre import preload as loading

    looks = loading(path, Lfs())
    last = next(looks) if dry_run else _last(looks, quiet=as_json)
    output.show("storage-preload", last, as_json, render_storage.preloaded)
    if dry_run and not as_json:
        output.echo(output.DRY_RUN)
    if last.failed:
        output.leave(output.Exit.PROBLEM)


def _last(looks: Iterator[Preload], *, quiet: bool) -> Preload:
    """Go through with it, its progress on standard error."""
    from hpctl.cli import render_storage

    return render_storage.follow(looks, quiet=quiet)
