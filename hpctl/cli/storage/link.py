"""`hpctl storage link`: a directory of FSx for Lustre that shows what is under an S3 prefix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from hpctl.cli import output
from hpctl.cli.arguments import FILE_SYSTEM, usage
from hpctl.cli.aws_options import aws_options, open_aws
from hpctl.cli.durations import DurationType
from hpctl.clusters.storage import Link, Wanted, looked_up, wait
from hpctl.clusters.storage import link as make
from hpctl.errors import HpctlError


@dataclass(frozen=True, slots=True)
class LinkView:
    """What `hpctl storage link` shows. `made`: by this call; false where it was there already.

    `dry_run`: nothing was asked for; a `link` without an id is what would be.
    """

    link: Link
    made: bool
    dry_run: bool = False


@click.command()
@click.argument("file_system", metavar="FS", type=FILE_SYSTEM)
@click.argument("s3", metavar="S3_URI")
@click.option("--path", required=True, help="The directory, from the file system's root: /data.")
@click.option(
    "--auto-import/--no-auto-import",
    default=True,
    show_default=True,
    help="Keep the names as S3 has them when objects come, change and go.",
)
@click.option(
    "--auto-export/--no-auto-export",
    default=False,
    show_default=True,
    help="Write what is written there to S3.",
)
@click.option("--wait/--no-wait", "waits", default=True, show_default=True, help="Until it serves.")
@click.option(
    "--timeout",
    "timeout_s",
    type=DurationType(),
    default="30min",
    show_default=True,
    help="When to give up waiting; the work goes on.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be asked for.")
@aws_options
@output.json_option
def link(
    file_system: str,
    s3: str,
    path: str,
    auto_import: bool,
    auto_export: bool,
    waits: bool,
    timeout_s: float,
    dry_run: bool,
    profile: str | None,
    region: str | None,
    endpoint_url: str | None,
    as_json: bool,
) -> None:
    """Link an FSx for Lustre directory to S3.

    The names below S3_URI (s3://bucket/prefix) appear at once; a file's contents are loaded from
    S3 when it is first read, which is slow for the first reader. `hpctl storage preload` loads
    them ahead.
    """
    from hpctl.cli import render_storage

    try:
        wanted = Wanted.of(file_system, s3, path, auto_import=auto_import, auto_export=auto_export)
    except HpctlError as error:
        raise usage(error) from error
    aws = open_aws(profile, region, endpoint_url)
    if dry_run:
        there = looked_up(aws, wanted)
        planned = there or Link("", wanted.file_system, wanted.path, wanted.s3, "")
        view = LinkView(planned, False, True)
        output.show("storage-link", view, as_json, render_storage.link)
        return
    known, made = make(aws, wanted)
    if waits:
        known = _follow(wait(aws, known, timeout_s=timeout_s), quiet=as_json)
    output.show("storage-link", LinkView(known, made), as_json, render_storage.link)
    if known.lifecycle in ("FAILED", "MISCONFIGURED"):
        output.leave(output.Exit.PROBLEM)
    if waits and not known.settled:
        output.leave(output.Exit.CANNOT_TELL)


def _follow(looks: Iterator[Link], *, quiet: bool) -> Link:
    """The last look; each new state is said on standard error."""
    said, known = "", None
    for known in looks:
        if known.lifecycle != said and not quiet:
            output.echo(f"  {known.id} is {known.lifecycle} ...", err=True)
        said = known.lifecycle
    assert known is not None
    return known
