"""`hpctl cluster extension`: AWS's own software on every node, such as sagemaker-observability."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from hpctl.clusters import extensions
from hpctl.clusters.commands.context import Place, no_cluster, place, place_options, place_so_far
from hpctl.clusters.commands.waiting import Waiting, confirm, settled, until_options, yes_option
from hpctl.clusters.extensions import BROKEN, MOVING, Extension
from hpctl.toolkit import output
from hpctl.toolkit.arguments import NameType, ThereType
from hpctl.toolkit.errors import Absent, HpctlError
from hpctl.toolkit.output import Exit

if TYPE_CHECKING:
    from rich.console import Console

EVERY_S = 10.0
NAME = NameType("extension", "[a-z]([a-z0-9]|-[a-z0-9]){0,127}", "an extension's name")
VERSION = NameType("version", r"\d+\.\d+\.\d+", "a version such as 1.0.0")


class ExtensionsView(Struct, frozen=True):
    """What `hpctl cluster extension` shows, and what it did: `outcome` is shown, dry_run, ordered,
    done, unchanged, failed or deadline.
    """

    as_of: datetime
    cluster: str
    outcome: str
    extensions: tuple[Extension, ...]


def complete_extension(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """The cluster's extensions; for `add` the one that AWS offers for Slurm."""
    names = [extensions.OBSERVABILITY]
    try:
        if ctx.info_name != "add":
            here = place_so_far(ctx)
            names = [o["ExtensionName"] for o in extensions.listed(here.aws, _cluster(here)[0])]
    except (HpctlError, click.UsageError):
        return []
    return [name for name in names if name.startswith(incomplete)]


named = click.argument("name", metavar="EXTENSION", type=NAME, shell_complete=complete_extension)
until_node_options = until_options("Until every node is through.")


@click.group()
def extension() -> None:
    """AWS's own software on every node, such as sagemaker-observability.

    For clusters with continuous provisioning.
    """


@extension.command("list", short_help="The extensions of a cluster.")
@output.json_option
@place_options
def list_extensions(as_json: bool, **where: Any) -> None:
    """The extensions of a cluster. Exit code 1 where one is failed or degraded."""
    here = place(**where)
    _tell(here, "shown", extensions.listed(here.aws, _cluster(here)[0]), as_json)


@extension.command(short_help="An extension, and how many nodes run it.")
@named
@output.json_option
@place_options
def describe(name: str, as_json: bool, **where: Any) -> None:
    """An extension, on how many nodes it runs, and what is wrong on the others."""
    here = place(**where)
    _tell(here, "shown", (extensions.named(here.aws, _cluster(here)[0], name),), as_json)


@extension.command(short_help="Install an extension, or change it.")
@named
@click.option("--version", type=VERSION, help="This version; else the highest, or as it is.")
@click.option(
    "--settings",
    type=ThereType(dir_okay=False, exists=True, path_type=Path),
    help="A JSON file with settings; what it does not say stays as it is.",
)
@until_node_options
@place_options
def add(
    name: str, version: str | None, settings: Path | None, waits: bool, timeout_s: float,
    dry_run: bool, as_json: bool, **where: Any,
) -> None:  # fmt: skip
    """Install an extension, or bring the one that is there to a version and settings.

    One that has failed on some nodes is tried again. Exit code: 0 on every node, 1 not, 3 not yet.
    """
    wanted = {"ExtensionVersion": version} if version else {}
    wanted |= {"ConfigurationValues": extensions.settings(settings)} if settings else {}
    here = place(**where)
    arn, description = _cluster(here)
    extensions.fit(description)
    there = extensions.find(here.aws, arn, name)
    status = there["Status"] if there else ""
    # What settings come to, with the defaults that they leave, the service alone can say.
    same = there is not None and not settings and version in (None, there["ExtensionVersion"])
    if dry_run:
        return _tell(
            here, "dry_run", ({"ExtensionName": name, **(there or {}), **wanted},), as_json
        )
    if there and same and status == "Active":
        return _tell(here, "unchanged", (there,), as_json)
    if not (same and status in MOVING):
        patience = Waiting(every_s=EVERY_S).patience
        extensions.put(here.aws, arn, name, there, wanted, patience)
    return _end(here, arn, name, waits, timeout_s, as_json)


@extension.command(short_help="Remove an extension from every node.")
@named
@yes_option
@until_node_options
@place_options
def remove(
    name: str, yes: bool, waits: bool, timeout_s: float, dry_run: bool, as_json: bool, **where: Any
) -> None:
    """Remove an extension from every node. What it has sent elsewhere stays there."""
    here = place(**where)
    arn, _ = _cluster(here)
    there = extensions.named(here.aws, arn, name)
    if dry_run:
        return _tell(here, "dry_run", (there,), as_json)
    if there["Status"] != "Deleting":
        confirm(f"Remove {name} from every node of {here.cluster}?", yes)
        extensions.remove(here.aws, arn, there, Waiting(every_s=EVERY_S).patience)
    return _end(here, arn, name, waits, timeout_s, as_json, gone=True)


def _cluster(here: Place) -> tuple[str, Mapping[str, Any]]:
    """Its ARN and DescribeCluster's answer. Raises Absent with the nearest."""
    try:
        answer = here.aws.service("sagemaker").read("describe_cluster", ClusterName=here.cluster)
    except Absent as error:
        raise no_cluster(here.aws, here.cluster, error) from error
    return str(answer["ClusterArn"]), answer


def _end(
    here: Place, arn: str, name: str, waits: bool, timeout_s: float, as_json: bool, *,
    gone: bool = False,
) -> None:  # fmt: skip
    """Follow it, each new state on standard error, and tell how it ended."""

    def look() -> tuple[str, bool, Extension | None]:
        one = extensions.find(here.aws, arn, name)
        now = f"{one['Status']}{_nodes(one)}" if one else "gone"
        return now, one is not None and one["Status"] in MOVING, one

    last = settled(name, look, timeout_s if waits else 0.0, EVERY_S, as_json)
    moving = last is not None and last["Status"] in MOVING
    fine = last is None if gone else last is not None and last["Status"] == "Active"
    outcome = "done" if fine else "failed"
    outcome = ("deadline" if waits else "ordered") if moving else outcome
    _tell(here, outcome, (last,) if last else (), as_json)


def _tell(here: Place, outcome: str, found: tuple[Extension, ...], as_json: bool) -> None:
    view = ExtensionsView(output.now(), here.cluster, outcome, found)
    output.show("cluster-extensions", view, as_json, _draw)
    broken = outcome == "failed" or any(one.get("Status") in BROKEN for one in found)
    output.leave(Exit.CANNOT_TELL if outcome == "deadline" else Exit(broken))


def _draw(out: Console, view: ExtensionsView) -> None:
    for one in view.extensions:
        version, status = one.get("ExtensionVersion", ""), one.get("Status", "not there")
        what = f"{one['ExtensionName']} {version}".rstrip()
        out.print(f"{what} on {view.cluster}: {status}{_nodes(one)}")
        if one.get("ConfigurationValues", "{}") != "{}":
            out.print(f"  settings {one['ConfigurationValues']}")
        for ill in one.get("Health", {}).get("Issues", ()):
            out.print(f"  {ill['NodeCount']} nodes: {ill['Code']}: {ill['Message']}")
    if not view.extensions:
        gone = "It is gone from every node." if view.outcome == "done" else "It has no extension."
        out.print(f"{view.cluster}: {gone}")
    if view.outcome in ("dry_run", "unchanged"):
        out.print(output.DRY_RUN if view.outcome == "dry_run" else "Nothing to do.")


def _nodes(one: Extension) -> str:
    counts = one.get("NodeSummary")
    return f", {counts['ActiveCount']} of {counts['TotalCount']} nodes" if counts else ""
