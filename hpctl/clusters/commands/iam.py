"""`hpctl iam`: the IAM policies of least privilege, and whether a role has one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from hpctl.engine.aws_account import open_aws
from hpctl.toolkit import output
from hpctl.toolkit.arguments import BUCKET, ROLE_ARN, aws_options, usage
from hpctl.toolkit.output import Exit
from hpctl.toolkit.tables import table, wrapped

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.clusters.iam_policies import Scope


WHO = ("head-node", "autoscale", "execution-role", "operator", "buyer")


class IamView(Struct, frozen=True):
    """What `hpctl iam head-node` and its siblings show."""

    who: str
    policy: dict[str, Any]
    trust: dict[str, Any] | None


class DeniedView(Struct, frozen=True):
    """An action that a role does not allow."""

    action: str
    resource: str


class UnsureView(Struct, frozen=True):
    """An action that a role allows under conditions on what only a real request has."""

    action: str
    keys: str


class IamCheckView(Struct, frozen=True):
    """What `hpctl iam check` shows. `error`: why nobody can say."""

    who: str
    role: str
    denied: tuple[DeniedView, ...]
    unsure: tuple[UnsureView, ...]
    error: str


scope_options = output.together(
    click.option(
        "--cluster",
        metavar="NAME",
        default="",
        help="The cluster: its name, or its ARN, which alone narrows what is done to it.",
    ),
    click.option("--account", metavar="ID", default="", help="The account's 12 digits."),
    click.option("--region", default="", help="The AWS region."),
    click.option("--bucket", metavar="NAME", type=BUCKET, default="", help="The scripts' bucket."),
    click.option("--role", metavar="NAME", default="", help="The execution role."),
)
"""What a policy is narrowed to."""


@click.group(short_help="Print IAM policies of least privilege.")
def iam() -> None:
    """Print IAM policies of least privilege, and check a role against one (docs/validate.md).

    What is not named stays `*`. A policy goes to standard output as IAM takes it:
    `hpctl iam operator > policy.json`.
    """


def _command(who: str, text: str, *, trusted: bool = True) -> None:
    @iam.command(who, help=text)
    @scope_options
    @output.json_option
    def command(as_json: bool, trust: bool = False, **narrowed: str) -> None:
        _print(who, narrowed, trusted=trusted, trust=trust, as_json=as_json)

    if who in ("head-node", "autoscale"):
        meant = "The secret of an accounting database of your own."
        click.option("--secret", metavar="ARN", default="", help=meant)(command)
    if who == "execution-role":
        meant = "The CloudWatch alarms that roll updates back; * for any."
        click.option("--alarm", metavar="NAME", default="", help=meant)(command)
    if trusted:
        click.option("--trust", is_flag=True, help="Print the trust policy instead.")(command)


_BESIDE = "The nodes' policy stands beside it."
_command("head-node", f"Print what hpctl's daemon needs on a controller. {_BESIDE}")
_command("autoscale", "Print what hpctl's daemon needs where autoscaling is on.")
_command("execution-role", "Print what every node of a cluster needs.")
_command("operator", "Print what somebody needs who runs `hpctl cluster`.", trusted=False)
_command("buyer", "Print what the operator needs besides who buys capacity.", trusted=False)


@iam.command(short_help="Ask IAM whether a role allows what a policy does.")
@click.argument("principal", metavar="ROLE-ARN", type=ROLE_ARN)
@click.option("--as", "who", required=True, type=click.Choice(WHO), help="The policy meant.")
@click.option("--cluster", metavar="NAME", default="", help="The cluster: its name, or its ARN.")
@click.option("--bucket", metavar="NAME", type=BUCKET, default="", help="The scripts' bucket.")
@click.option("--role", metavar="NAME", default="", help="The execution role that is passed on.")
@output.json_option
@aws_options
def check(
    principal: str,
    who: str,
    cluster: str,
    bucket: str,
    role: str,
    as_json: bool,
    **account: str | None,
) -> None:
    """Ask IAM whether a role allows what a policy does (iam:SimulatePrincipalPolicy).

    Exit code: 0 it does, 1 something is denied or there is no such role, 3 IAM cannot be asked or
    cannot tell.
    """
    from hpctl.clusters.iam_policies import PERSONAS, document
    from hpctl.clusters.validate.role import NoRole, simulate
    from hpctl.clusters.validate.wanted import Unanswered
    from hpctl.toolkit.errors import Absent

    aws = open_aws(**account)
    number = principal.split(":")[4]
    to = _scope(cluster=cluster, account=number, region=aws.region, bucket=bucket, role=role)
    statements = PERSONAS[who](to)
    if open_ := _open(to, document(statements)):
        output.echo(f"hpctl: asked with invented names for want of {', '.join(open_)}", err=True)
    found = simulate(aws.service("iam"), principal, statements)
    if isinstance(found, NoRole):
        raise Absent(found.why, found.fix)
    if isinstance(found, Unanswered):
        view = IamCheckView(who, principal, (), (), found.why)
    else:
        denied = tuple(DeniedView(*one) for one in found.denied.items())
        unsure = tuple(UnsureView(*one) for one in found.unsure.items())
        view = IamCheckView(who, principal, denied, unsure, "")
    output.show("iam-check", view, as_json, draw_check)
    if view.denied:
        output.leave(Exit.PROBLEM)
    output.leave(Exit.CANNOT_TELL if view.error or view.unsure else Exit.FINE)


def _print(
    who: str, narrowed: dict[str, str], *, trusted: bool, trust: bool, as_json: bool
) -> None:
    from hpctl.clusters import iam_policies

    to = _scope(**narrowed)
    view = IamView(
        who,
        iam_policies.document(iam_policies.PERSONAS[who](to)),
        iam_policies.trust() if trusted else None,
    )
    if as_json:
        output.echo(output.to_json("iam", view))
    else:
        output.echo(json.dumps(view.trust if trust else view.policy, indent=2))
    if open_ := [] if trust else _open(to, view.policy):
        output.echo(f"hpctl: {', '.join(open_)} would narrow it", err=True)


def _scope(**narrowed: str) -> Scope:
    from hpctl.clusters import iam_policies
    from hpctl.toolkit.errors import HpctlError

    try:
        return iam_policies.scope(**narrowed)
    except HpctlError as error:
        raise usage(error) from error


def _open(to: Scope, policy: dict[str, Any]) -> list[str]:
    """The options that would narrow a policy."""
    text = json.dumps(policy)
    options = {"cluster_id": "--cluster ARN", "cluster": "--cluster NAME"}
    uses = {"bucket": ":s3:::*", "role": ":role/*", "cluster": "/aws/sagemaker/Clusters/*"}
    uses |= {"cluster_id": ":cluster/*", "region": "arn:", "account": "arn:"}
    return [
        options.get(name, f"--{name}")
        for name in to.__struct_fields__
        if getattr(to, name) == "*" and uses.get(name, "\0") in text
    ]


def draw_check(out: Console, view: IamCheckView) -> None:
    """One line, and a table of what is denied."""
    if view.error:
        out.print(f"cannot tell: {view.error}")
        return
    if not view.denied and not view.unsure:
        out.print(f"{view.role} allows what {view.who} needs")
    denied = [(one.action, one.resource) for one in view.denied]
    unsure = [(one.action, one.keys) for one in view.unsure]
    for finding, head, found in (
        (f"does not allow all that {view.who} needs:", "ON", denied),
        ("has conditions that only a real request meets:", "DEPENDS ON", unsure),
    ):
        if found:
            out.print(f"{view.role} {finding}")
            table(out, ("ACTION", wrapped(head)), found)
