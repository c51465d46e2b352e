"""`hpctl cluster import`: cluster.yaml from a living cluster, or from a request."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpctl.cli import output
from hpctl.cli.arguments import CLUSTER, ThereType
from hpctl.cli.aws_options import aws_options, open_aws
from hpctl.cli.cluster.at_hand import complete_cluster, no_cluster
from hpctl.cli.cluster.file import may_write, write
from hpctl.cli.complete_files import complete_file
from hpctl.errors import Absent, HpctlError

if TYPE_CHECKING:
    from hpctl.ports import Aws


@dataclass(frozen=True, slots=True)
class ClusterImportView:
    """What `hpctl cluster import` shows. `path` is empty where the file went to standard output."""

    cluster: str
    path: str
    groups: tuple[str, ...]
    unsaid: tuple[str, ...]
    yaml: str


@click.command("import", short_help="Write cluster.yaml from a living cluster or a request.")
@click.argument(
    "name", metavar="[CLUSTER]", type=CLUSTER, required=False, shell_complete=complete_cluster
)
@click.option(
    "--from-json",
    "request",
    metavar="FILE",
    type=ThereType(exists=True, dir_okay=False, allow_dash=True),
    shell_complete=complete_file,
    help="A create-cluster request, as the AWS CLI's --cli-input-json takes it; - for stdin.",
)
@click.option(
    "-o", "--output", "path", metavar="FILE", type=click.Path(path_type=Path),
    help="Write this file instead of standard output.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@aws_options
@output.json_option
def import_(
    name: str | None,
    request: str | None,
    path: Path | None,
    force: bool,
    as_json: bool,
    profile: str | None,
    region: str | None,
    endpoint_url: str | None,
) -> None:
    """Write cluster.yaml from a living cluster; `hpctl cluster update` with it changes nothing.

    Or from a request that would create one. What nobody tells stands as a comment at the top.
    """
    if (name is None) == (request is None):
        raise click.UsageError("name a CLUSTER, or a request in --from-json")
    if path:
        may_write(path, force)
    if request:
        view = _requested(request, str(path or ""))
    else:
        view = _imported(open_aws(profile, region, endpoint_url), str(name), str(path or ""))
    if path:
        write(path, view.yaml)
    if as_json:
        output.echo(output.to_json("cluster-import", view))
    elif path:
        output.echo(f"{path} says what {view.cluster} is: {', '.join(view.groups)}.")
        for one in view.unsaid:
            output.echo(f"{'The request' if request else 'The service'} does not tell {one}.")
    else:
        output.echo(view.yaml, nl=False)


def _requested(file: str, path: str) -> ClusterImportView:
    from hpctl.clusters.imported import spec_of_json, to_yaml, unsaid
    from hpctl.wiring import open_model

    try:
        with click.open_file(file, encoding="utf-8") as opened:
            text = opened.read()
    except (OSError, ValueError) as error:
        raise HpctlError(f"{file} cannot be read: {error}") from error
    spec = spec_of_json(text, file, open_model())
    silent = unsaid(spec, "write them in", images=False)
    head = [
        f"HyperPod cluster {spec.name}, as a create-cluster request has it: `hpctl cluster create` "
        "with this file sends the same. Every key: docs/cluster.md.",
        "What the request does not tell:",
        *(f"- {one}" for one in silent),
    ]
    groups = tuple(group.name for group in spec.groups)
    return ClusterImportView(spec.name, path, groups, tuple(silent), to_yaml(spec, head))


def _imported(aws: Aws, name: str, path: str) -> ClusterImportView:
    from hpctl.clusters.imported import images_of, spec_of, to_yaml, unsaid
    from hpctl.clusters.provisioning import beside

    sagemaker = aws.service("sagemaker")
    try:
        describe = sagemaker.read("describe_cluster", ClusterName=name)
    except Absent as error:
        raise no_cluster(aws, name, error) from error
    silent: list[str] = []
    tags: dict[str, str] = {}
    try:
        found = sagemaker.pages("list_tags", "Tags", ResourceArn=describe["ClusterArn"])
        tags = {tag["Key"]: tag["Value"] for tag in found}
    except HpctlError as error:
        silent.append(f"the tags: {error}")
    parameters, why = beside(aws, describe)
    spec = spec_of(describe, tags, parameters)
    silent = [*unsaid(spec, why), *silent]
    remarks = {
        group: (
            "The AMI that it has. Without the #, the file pins it:",
            *(f"{key}: {value}" for key, value in images.items()),
        )
        for group, images in images_of(describe).items()
        if images
    }
    head = [
        f"HyperPod cluster {spec.name}, as the service describes it: `hpctl cluster update` with "
        "this file changes nothing. Every key: docs/cluster.md.",
        "What the service does not tell:",
        *(f"- {one}" for one in silent),
    ]
    text = to_yaml(spec, head, remarks=remarks)
    groups = tuple(group.name for group in spec.groups)
    return ClusterImportView(spec.name, path, groups, tuple(silent), text)
