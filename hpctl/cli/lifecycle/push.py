"""`hpctl lifecycle push`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpctl.cli import output
from hpctl.cli.arguments import PrefixType, ThereType
from hpctl.cli.aws_options import aws_options, open_aws
from hpctl.cli.cluster.following import confirm
from hpctl.cli.output import Exit, json_option, leave, show

if TYPE_CHECKING:
    from hpctl.clusters.bundle import S3Prefix


@dataclass(frozen=True, slots=True)
class PushView:
    """What `hpctl lifecycle push` shows. `dry_run`: nothing was sent."""

    source_s3_uri: str
    digest: str
    dry_run: bool
    sent: tuple[str, ...]
    unchanged: int
    left_over: tuple[str, ...]
    pruned: bool


@click.command()
@click.argument("directory", metavar="BUNDLE", type=ThereType(path_type=Path, exists=True))
@click.argument("target", metavar="S3://BUCKET/PREFIX", type=PrefixType())
@click.option("--prune", is_flag=True, help="Delete what lies in the prefix and in no bundle.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent, and send nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask before --prune deletes.")
@aws_options
@json_option
def push(
    directory: Path,
    target: S3Prefix,
    prune: bool,
    dry_run: bool,
    yes: bool,
    profile: str | None,
    region: str | None,
    endpoint_url: str | None,
    as_json: bool,
) -> None:
    """Upload a bundle to S3, what changed of it.

    MANIFEST goes last: a node that comes up meanwhile refuses what it does not vouch for. Nodes
    that are up are not touched; new and replaced ones run the new scripts.
    """
    from hpctl.cli import render_lifecycle
    from hpctl.clusters import bundle, bundle_checks
    from hpctl.errors import HpctlError

    if prune and not target.prefix:
        raise click.UsageError(f"--prune would delete all else in {target}: name a prefix there")
    read = bundle.read(directory)
    found = bundle_checks.problems(directory)
    if found:
        raise HpctlError(f"{found[0].path} {found[0].what}", "see: hpctl lifecycle bundle")
    aws = open_aws(profile, region, endpoint_url)
    plan = bundle.plan(aws, read, target)
    deletes = prune and bool(plan.left_over)
    if deletes and not dry_run:
        confirm(f"Delete {len(plan.left_over)} objects in {target}?", yes)
    if not dry_run:
        told = (
            (lambda _: None) if as_json else (lambda path: output.echo(f"sending {path}", err=True))
        )
        bundle.push(aws, read, target, plan, told)
        if deletes:
            bundle.prune(aws, target, plan)
    view = PushView(
        source_s3_uri=str(target),
        digest=read.digest,
        dry_run=dry_run,
        sent=plan.send,
        unchanged=len(plan.unchanged),
        left_over=plan.left_over,
        pruned=deletes and not dry_run,
    )
    show("lifecycle-push", view, as_json, render_lifecycle.push)
    leave(Exit.FINE)
