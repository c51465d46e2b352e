"""`hpctl storage ls`: the links between file systems and S3."""

from __future__ import annotations

from dataclasses import dataclass

import click

from hpctl.cli import output
from hpctl.cli.arguments import FILE_SYSTEM
from hpctl.cli.aws_options import aws_options, open_aws
from hpctl.clusters.storage import Link, links


@dataclass(frozen=True, slots=True)
class LinksView:
    """What `hpctl storage ls` shows. `file_system`: the one that was asked for, empty for all."""

    links: tuple[Link, ...]
    file_system: str = ""


@click.command()
@click.argument("file_system", metavar="[FS]", type=FILE_SYSTEM, required=False)
@aws_options
@output.json_option
def ls(
    file_system: str | None,
    profile: str | None,
    region: str | None,
    endpoint_url: str | None,
    as_json: bool,
) -> None:
    """The links between file systems and S3.

    Of one file system, or of all in the region. Exit code 1 where one of them does not serve.
    """
    from hpctl.cli import render_storage

    found = links(open_aws(profile, region, endpoint_url), file_system)
    output.show("storage-ls", LinksView(found, file_system or ""), as_json, render_storage.links)
    if any(one.lifecycle in ("FAILED", "MISCONFIGURED") for one in found):
        output.leave(output.Exit.PROBLEM)
