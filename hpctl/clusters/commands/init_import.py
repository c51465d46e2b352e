"""`hpctl cluster init`, `import`, `provisioning-parameters` and `schema`: write a cluster file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from hpctl.clusters.arguments import FsxLustreType, SpecFieldType
from hpctl.clusters.commands.context import cluster_argument, make_missing_cluster_error
from hpctl.clusters.commands.file_writing import (
    require_overwrite_allowed,
    write_text_file_atomically,
)
from hpctl.engine.aws_account import make_aws_client_for_command
from hpctl.toolkit import output
from hpctl.toolkit.arguments import ExistingPathType, aws_options, complete_file_path, spec_argument
from hpctl.toolkit.errors import HpctlError, ResourceNotFound

if TYPE_CHECKING:
    from hpctl.clusters.cluster_file import ClusterInitAnswers
    from hpctl.vocabulary.ports import AwsClientFactory


NAME = SpecFieldType("ClusterName", "name")


ROLE = SpecFieldType("RoleArn", "arn")


TYPE = SpecFieldType("InstanceType", "type")


SUBNET = SpecFieldType("SubnetId", "subnet-id")


SECURITY_GROUP = SpecFieldType("SecurityGroupId", "group-id")


S3_URI = SpecFieldType("S3Uri", "s3-uri")


COUNT = click.IntRange(0, 6758)


class ClusterInitView(Struct, frozen=True):
    """What `hpctl cluster init` shows. `path` is empty with `--dry-run`."""

    path: str
    cluster: str
    groups: tuple[str, ...]
    yaml: str


class ClusterInitQuestion(Struct, frozen=True):
    """What is asked on a terminal for an option that was not given."""

    option: str
    text: str
    type: Any
    default: Any = None
    many: bool = False


NEEDED = (
    ClusterInitQuestion("name", "Name of the cluster", NAME),
    ClusterInitQuestion("role", "Execution role of the instances (ARN)", ROLE),
    ClusterInitQuestion(
        "instance_types", "Instance type of the workers (several: in order)", TYPE, many=True
    ),
    ClusterInitQuestion("count", "How many workers", COUNT),
)


ASKED = (
    *NEEDED,
    ClusterInitQuestion("subnets", "Subnets (none: the service's own VPC)", SUBNET, "", many=True),
    ClusterInitQuestion("security_groups", "Security groups", SECURITY_GROUP, "", many=True),
    ClusterInitQuestion(
        "scripts", "S3 prefix of lifecycle scripts (none: the AMI alone)", S3_URI, ""
    ),
    ClusterInitQuestion(
        "lustre", "FSx for Lustre, DNS-NAME/MOUNT-NAME (none)", FsxLustreType(), ""
    ),
)


@click.command(short_help="Write a first cluster.yaml.")
@click.argument("path", metavar="[FILE]", default="cluster.yaml", type=click.Path(path_type=Path))
@click.option("--name", type=NAME, help="The cluster's name.")
@click.option("--role", type=ROLE, help="The execution role of the instances.")
@click.option(
    "--instance-type",
    "instance_types",
    type=TYPE,
    multiple=True,
    help="The workers' instance type; given again: the next best one.",
)
@click.option("--count", type=COUNT, help="How many workers.")
@click.option(
    "--group", type=NAME, default="workers", show_default=True, help="The workers' group."
)
@click.option("--partition", type=NAME, help="Their Slurm partition; else named as the group.")
@click.option("--subnet", "subnets", type=SUBNET, multiple=True, help="A subnet of the nodes.")
@click.option(
    "--security-group", "security_groups", type=SECURITY_GROUP, multiple=True, help="One of theirs."
)
@click.option("--controller-type", type=TYPE, help="The controller's type, else ml.m5.4xlarge.")
@click.option("--login-type", type=TYPE, help="Adds a login node of this type.")
@click.option("--scripts", type=S3_URI, help="The S3 prefix of lifecycle scripts.")
@click.option("--entry", help="The script there that runs after the AMI's own set-up.")
@click.option("--fsx-lustre", "lustre", type=FsxLustreType(), help="An FSx for Lustre file system.")
@click.option(
    "--fsx-openzfs",
    "openzfs",
    type=SpecFieldType("FsxDnsName", "dns-name"),
    help="An FSx for OpenZFS file system.",
)
@click.option(
    "--training-plan",
    type=SpecFieldType("TrainingPlanArn", "arn"),
    help="The workers' training plan.",
)
@click.option("--spot", is_flag=True, help="Spot instances for the workers.")
@click.option("--continuous", is_flag=True, help="Continuous provisioning.")
@click.option(
    "--mode",
    type=click.Choice(["observe", "assist", "own"]),
    help="What hpctl may do there; own: it replaces nodes, and the service does not.",
)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--dry-run", is_flag=True, help="Print the file instead of writing it.")
@output.json_option
def init(path: Path, force: bool, dry_run: bool, as_json: bool, **given: Any) -> None:
    """Write a first cluster.yaml, commented.

    On a terminal it asks for what no option says; elsewhere --name, --role, --instance-type and
    --count are needed.
    """
    from hpctl.clusters.cluster_file import (
        OFFERS,
        build_spec_from_answers,
        format_commented_cluster_spec_yaml,
    )

    if not dry_run:
        require_overwrite_allowed(path, force)
    spec = build_spec_from_answers(_collect_cluster_init_answers(given))
    text = format_commented_cluster_spec_yaml(spec, [_format_spec_file_header(path)], OFFERS)
    if not dry_run:
        write_text_file_atomically(path, text)
    groups = tuple(group.name for group in spec.groups)
    view = ClusterInitView("" if dry_run else str(path), spec.name, groups, text)
    if as_json:
        output.echo(output.format_view_json("cluster-init", view))
    elif dry_run:
        output.echo(text, nl=False)
        output.echo(output.DRY_RUN, err=True)
    else:
        output.echo(f"{path} says what {spec.name} is: {', '.join(groups)}.")
        if spec.hpctl.mode != "own":
            output.echo(
                f"hpctl's mode is {spec.hpctl.mode}: the service replaces broken nodes. --mode own "
                "has hpctl do it, and writes what that needs (node_recovery: None)."
            )
        if not any(group.lifecycle for group in spec.groups):
            output.echo(
                "No lifecycle scripts: nothing installs hpctl on the nodes. "
                "`hpctl cluster lifecycle bundle` and `hpctl cluster lifecycle push` make and "
                "upload them; name their prefix with --scripts."
            )
        output.echo(f"Next: hpctl cluster validate {path}, then hpctl cluster create {path}.")


def _format_spec_file_header(path: Path) -> str:
    return (
        "A HyperPod cluster with Slurm. Every key: docs/cluster.md. Check it with "
        f"`hpctl cluster validate {path.name}`; `hpctl cluster create {path.name}` makes it."
    )


def _collect_cluster_init_answers(given: dict[str, Any]) -> ClusterInitAnswers:
    """Return the options, and on a terminal what was asked beside them. Raises UsageError."""
    from hpctl.clusters.cluster_file import ClusterInitAnswers

    missing = [question for question in NEEDED if given[question.option] in (None, ())]
    if missing and not sys.stdin.isatty():
        flags = {"instance_types": "--instance-type"}
        names = [flags.get(question.option, f"--{question.option}") for question in missing]
        raise click.UsageError(
            "cannot ask for the missing values, because there is no terminal: give "
            f"{', '.join(names)}"
        )
    if missing:
        for question in ASKED:
            if given[question.option] in (None, ()):
                given[question.option] = _ask_cluster_init_question(question)
    return ClusterInitAnswers(
        **{key: value for key, value in given.items() if value not in (None, "")}
    )


def _ask_cluster_init_question(question: ClusterInitQuestion) -> Any:
    """Return the answer of a person, asked again until it is one."""

    def parse_init_answer(text: str) -> Any:
        if not text.strip() and question.default == "":
            return () if question.many else None
        convert: Callable[[str], Any] = lambda word: question.type.convert(word, None, None)  # noqa: E731
        if question.many:
            return tuple(convert(word) for word in text.replace(",", " ").split())
        return convert(text)

    shown = question.default is not None and question.default != ""
    return output.prompt(
        question.text, default=question.default, show_default=shown, value_proc=parse_init_answer
    )


class ClusterImportView(Struct, frozen=True):
    """What `hpctl cluster import` shows. `path` is empty where the file went to standard output."""

    cluster: str
    path: str
    groups: tuple[str, ...]
    unsaid: tuple[str, ...]
    yaml: str


@click.command("import", short_help="Write cluster.yaml from an existing cluster or a request.")
@cluster_argument
@click.option(
    "--from-json",
    "request",
    metavar="FILE",
    type=ExistingPathType(exists=True, dir_okay=False, allow_dash=True),
    shell_complete=complete_file_path,
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
    **where: Any,
) -> None:
    """Write cluster.yaml from an existing cluster; `hpctl cluster update` with it changes nothing.

    Or from a request that would create one. What is unknown is left as a comment at the top.
    """
    if (name is None) == (request is None):
        raise click.UsageError(
            "nothing to import: name a CLUSTER, or a file with a CreateCluster request in "
            "--from-json FILE"
        )
    if path:
        require_overwrite_allowed(path, force)
    if request:
        view = _import_spec_from_create_request(request, str(path or ""))
    else:
        view = _import_spec_from_existing_cluster(
            make_aws_client_for_command(**where), str(name), str(path or "")
        )
    if path:
        write_text_file_atomically(path, view.yaml)
    if as_json:
        output.echo(output.format_view_json("cluster-import", view))
    elif path:
        output.echo(f"{path} says what {view.cluster} is: {', '.join(view.groups)}.")
        for one in view.unsaid:
            output.echo(f"{'The request' if request else 'The service'} does not tell {one}.")
    else:
        output.echo(view.yaml, nl=False)


def _import_spec_from_create_request(file: str, path: str) -> ClusterImportView:
    from hpctl.clusters.cluster_file import (
        format_commented_cluster_spec_yaml,
        import_spec_from_request_json,
        list_settings_missing_from_import,
    )
    from hpctl.clusters.service_model import load_sagemaker_service_model

    try:
        with click.open_file(file, encoding="utf-8") as opened:
            text = opened.read()
    except (OSError, ValueError) as error:
        raise HpctlError(
            f"cannot read the CreateCluster request in {file}: {error}",
            "check that the file exists and is valid JSON",
        ) from error
    spec = import_spec_from_request_json(text, file, load_sagemaker_service_model())
    silent = list_settings_missing_from_import(spec, "write them in", images=False)
    head = [
        f"HyperPod cluster {spec.name}, as a create-cluster request has it: `hpctl cluster create` "
        "with this file sends the same. Every key: docs/cluster.md.",
        "What the request does not tell:",
        *(f"- {one}" for one in silent),
    ]
    groups = tuple(group.name for group in spec.groups)
    return ClusterImportView(
        spec.name, path, groups, tuple(silent), format_commented_cluster_spec_yaml(spec, head)
    )


def _import_spec_from_existing_cluster(
    aws: AwsClientFactory, name: str, path: str
) -> ClusterImportView:
    from hpctl.clusters.cluster_file import (
        format_commented_cluster_spec_yaml,
        import_spec_from_cluster_description,
        list_settings_missing_from_import,
        read_group_image_settings,
    )
    from hpctl.clusters.request import read_provisioning_parameters

    sagemaker = aws.service("sagemaker")
    try:
        describe = sagemaker.read("describe_cluster", ClusterName=name)
    except ResourceNotFound as error:
        raise make_missing_cluster_error(aws, name, error) from error
    silent: list[str] = []
    tags: dict[str, str] = {}
    try:
        found = sagemaker.pages("list_tags", "Tags", ResourceArn=describe["ClusterArn"])
        tags = {tag["Key"]: tag["Value"] for tag in found}
    except HpctlError as error:
        silent.append(f"the tags: {error}")
    parameters, why = read_provisioning_parameters(aws, describe)
    spec = import_spec_from_cluster_description(describe, tags, parameters)
    silent = [*list_settings_missing_from_import(spec, why), *silent]
    remarks = {}
    for group, images in read_group_image_settings(describe).items():
        if images:
            pins = [f"{key}: {value}" for key, value in images.items()]
            remarks[group] = ("The AMI that it has. Without the #, the file pins it:", *pins)
    head = [
        f"HyperPod cluster {spec.name}, as the service describes it: `hpctl cluster update` with "
        "this file changes nothing. Every key: docs/cluster.md.",
        "What the service does not tell:",
        *(f"- {one}" for one in silent),
    ]
    text = format_commented_cluster_spec_yaml(spec, head, remarks=remarks)
    groups = tuple(group.name for group in spec.groups)
    return ClusterImportView(spec.name, path, groups, tuple(silent), text)


@click.command(
    "provisioning-parameters", short_help="Print provisioning_parameters.json of cluster.yaml."
)
@spec_argument
@click.option(
    "-o", "--output", "target", metavar="FILE", type=click.Path(path_type=Path),
    help="Write this file instead of standard output.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print it with --output, too: it is JSON.")
def provisioning_parameters(path: str, target: Path | None, force: bool, as_json: bool) -> None:
    """Print provisioning_parameters.json, as the lifecycle scripts read it from their directory.

    For clusters with `slurm_config: provisioning_parameters`; `hpctl cluster lifecycle bundle`
    takes the file along.
    """
    from hpctl.clusters.request import render_provisioning_parameters
    from hpctl.clusters.spec import read_cluster_spec

    if target:
        require_overwrite_allowed(target, force)
    text = json.dumps(render_provisioning_parameters(read_cluster_spec(path)), indent=2) + "\n"
    if target:
        write_text_file_atomically(target, text)
    if as_json or not target:
        output.echo(text, nl=False)


@click.command(short_help="Print the JSON schema of cluster.yaml.")
@output.json_anyway_option
def schema(as_json: bool) -> None:  # noqa: ARG001 -- JSON either way
    """Print the JSON schema of cluster.yaml, for editors that complete and check while you type.

    With the YAML language server, as a first line of the file:

    # yaml-language-server: $schema=cluster.schema.json
    """
    from hpctl.clusters.spec.schema import format_cluster_spec_schema

    output.echo(format_cluster_spec_schema(), nl=False)
