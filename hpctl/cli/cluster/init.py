"""`hpctl cluster init`: a first cluster.yaml, by asking or from flags."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpctl.cli import output
from hpctl.cli.cluster.file import may_write, write
from hpctl.cli.cluster.word import LustreType, WordType

if TYPE_CHECKING:
    from hpctl.clusters.cluster_file import Answers

NAME = WordType("ClusterName", "name")
ROLE = WordType("RoleArn", "arn")
TYPE = WordType("InstanceType", "type")
SUBNET = WordType("SubnetId", "subnet-id")
SECURITY_GROUP = WordType("SecurityGroupId", "group-id")
S3_URI = WordType("S3Uri", "s3-uri")
COUNT = click.IntRange(0, 6758)


@dataclass(frozen=True, slots=True)
class ClusterInitView:
    """What `hpctl cluster init` shows. `path` is empty with `--dry-run`."""

    path: str
    cluster: str
    groups: tuple[str, ...]
    yaml: str


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked on a terminal for an option that was not given."""

    option: str
    text: str
    type: Any
    default: Any = None
    many: bool = False


NEEDED = (
    Question("name", "Name of the cluster", NAME),
    Question("role", "Execution role of the instances (ARN)", ROLE),
    Question("instance_types", "Instance type of the workers (several: in order)", TYPE, many=True),
    Question("count", "How many workers", COUNT),
)
ASKED = (
    *NEEDED,
    Question("subnets", "Subnets (none: the service's own VPC)", SUBNET, "", many=True),
    Question("security_groups", "Security groups", SECURITY_GROUP, "", many=True),
    Question("scripts", "S3 prefix of lifecycle scripts (none: the AMI alone)", S3_URI, ""),
    Question("lustre", "FSx for Lustre, DNS-NAME/MOUNT-NAME (none)", LustreType(), ""),
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
@click.option("--fsx-lustre", "lustre", type=LustreType(), help="An FSx for Lustre file system.")
@click.option(
    "--fsx-openzfs",
    "openzfs",
    type=WordType("FsxDnsName", "dns-name"),
    help="An FSx for OpenZFS file system.",
)
@click.option(
    "--training-plan", type=WordType("TrainingPlanArn", "arn"), help="The workers' training plan."
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
    from hpctl.clusters.cluster_file import OFFERS, begun, to_yaml

    if not dry_run:
        may_write(path, force)
    spec = begun(_answers(given))
    text = to_yaml(spec, [_head(path)], OFFERS)
    if not dry_run:
        write(path, text)
    groups = tuple(group.name for group in spec.groups)
    view = ClusterInitView("" if dry_run else str(path), spec.name, groups, text)
    if as_json:
        output.echo(output.to_json("cluster-init", view))
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
        output.echo(f"Next: hpctl cluster validate {path}, then hpctl cluster create {path}.")


def _head(path: Path) -> str:
    return (
        "A HyperPod cluster with Slurm. Every key: docs/cluster.md. Check it with "
        f"`hpctl cluster validate {path.name}`; `hpctl cluster create {path.name}` makes it."
    )


def _answers(given: dict[str, Any]) -> Answers:
    """The options, and on a terminal what was asked beside them. Raises UsageError."""
    from hpctl.clusters.cluster_file import Answers

    missing = [question for question in NEEDED if given[question.option] in (None, ())]
    if missing and not sys.stdin.isatty():
        flags = {"instance_types": "--instance-type"}
        names = [flags.get(question.option, f"--{question.option}") for question in missing]
        raise click.UsageError(f"{', '.join(names)} must be given where nobody can be asked")
    if missing:
        for question in ASKED:
            if given[question.option] in (None, ()):
                given[question.option] = _asked(question)
    return Answers(**{key: value for key, value in given.items() if value not in (None, "")})


def _asked(question: Question) -> Any:
    """The answer of a person, asked again until it is one."""

    def one(text: str) -> Any:
        if not text.strip() and question.default == "":
            return () if question.many else None
        convert: Callable[[str], Any] = lambda word: question.type.convert(word, None, None)  # noqa: E731
        if question.many:
            return tuple(convert(word) for word in text.replace(",", " ").split())
        return convert(text)

    shown = question.default is not None and question.default != ""
    return output.prompt(
        question.text, default=question.default, show_default=shown, value_proc=one
    )
