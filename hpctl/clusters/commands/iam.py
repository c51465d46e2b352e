"""`hpctl cluster iam`: the IAM policies of least privilege, and whether a role has one."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import click
from msgspec import Struct

from hpctl.clusters.commands.context import read_daemon_config
from hpctl.engine.aws_account import make_aws_client_for_command
from hpctl.toolkit import output
from hpctl.toolkit.arguments import (
    BUCKET,
    ROLE_ARN,
    ExistingPathType,
    aws_options,
    make_usage_error,
)
from hpctl.toolkit.declared_view import Column, Columns, Layout, RowTable, TextLine
from hpctl.toolkit.errors import HpctlError, ResourceNotFound
from hpctl.toolkit.output import ExitCode

if TYPE_CHECKING:
    from hpctl.clusters.iam_policies import IamPolicyScope


WHO = ("head-node", "execution-role", "operator")


class IamPolicyView(Struct, frozen=True):
    """What `hpctl cluster iam policy` shows."""

    who: str
    policy: dict[str, Any]
    trust: dict[str, Any] | None


class DeniedIamActionView(Struct, frozen=True):
    """An action that a role does not allow."""

    action: str
    resource: str

    columns: ClassVar[Columns] = (Column("ACTION", "action"), Column("ON", "resource", fold=True))


class ConditionallyAllowedIamActionView(Struct, frozen=True):
    """An action that a role allows under conditions on what only a real request has."""

    action: str
    keys: str

    columns: ClassVar[Columns] = (
        Column("ACTION", "action"),
        Column("DEPENDS ON", "keys", fold=True),
    )


class IamCheckView(Struct, frozen=True):
    """What `hpctl cluster iam check` shows. `error`: why the answer is unknown."""

    who: str
    role: str
    denied: tuple[DeniedIamActionView, ...]
    unsure: tuple[ConditionallyAllowedIamActionView, ...]
    error: str

    layout: ClassVar[Layout] = (
        TextLine("cannot tell: {error}", when="error"),
        TextLine("{role} allows what {who} needs", when="allows_all"),
        TextLine("{role} does not allow all that {who} needs:", when="denied"),
        RowTable("denied"),
        TextLine("{role} has conditions that only a real request meets:", when="unsure"),
        RowTable("unsure"),
    )

    @property
    def allows_all(self) -> bool:
        """Return whether the role allows everything, without conditions."""
        return not (self.error or self.denied or self.unsure)


scope_options = output.combine_click_options(
    click.option(
        "--file",
        metavar="FILE",
        type=ExistingPathType(exists=True, dir_okay=False),
        help="cluster.yaml: its alarms, accounting secret, bucket and execution role.",
    ),
    output.config_option,
    click.option(
        "--cluster",
        metavar="NAME",
        default="",
        help="The cluster: its name, or its ARN, which alone narrows what is done to it.",
    ),
    click.option("--bucket", metavar="NAME", type=BUCKET, default="", help="The scripts' bucket."),
    click.option("--role", metavar="NAME", default="", help="The execution role."),
)
"""What a policy is for, and what it is narrowed to."""


@click.group(short_help="Print IAM policies of least privilege.")
def iam() -> None:
    """Print IAM policies of least privilege, and check a role against one (docs/validate.md)."""


@iam.command()
@click.argument("who", metavar="WHO", type=click.Choice(WHO))
@scope_options
@click.option("--account", metavar="ID", default="", help="The account's 12 digits.")
@click.option("--region", default="", help="The AWS region.")
@click.option("--trust", is_flag=True, help="Print the trust policy of the role instead.")
@output.json_option
def policy(
    who: str, file: str | None, config: str, as_json: bool, trust: bool, **names: str
) -> None:
    """Print the policy of least privilege for the configuration in use.

    WHO is `head-node` (the daemon, on a controller), `execution-role` (every node of a cluster) or
    `operator` (the person or CI job that runs `hpctl cluster`). What is not named stays `*`. The
    policy goes to standard output as IAM takes it:
    `hpctl cluster iam policy operator > policy.json`.
    """
    from hpctl.clusters import iam_policies

    trusted = who != "operator"
    if trust and not trusted:
        raise click.UsageError(
            "--trust cannot be used with the operator policy: an operator is a user, and only "
            "roles of instances have a trust policy"
        )
    to = _read_iam_policy_scope(file=file, config=config, **names)
    view = IamPolicyView(
        who,
        iam_policies.make_iam_policy_document(iam_policies.PERSONAS[who](to)),
        iam_policies.make_iam_trust_policy() if trusted else None,
    )
    if as_json:
        output.echo(output.format_view_json("iam", view))
    else:
        output.echo(json.dumps(view.trust if trust else view.policy, indent=2))
    open_ = [] if trust else _list_policy_narrowing_options(to, view.policy)
    if open_:
        output.echo(f"hpctl: {', '.join(open_)} would narrow it", err=True)


@iam.command(short_help="Ask IAM whether a role allows what a policy does.")
@click.argument("principal", metavar="ROLE-ARN", type=ROLE_ARN)
@click.option("--as", "who", required=True, type=click.Choice(WHO), help="The policy meant.")
@scope_options
@output.json_option
@aws_options
def check(
    principal: str,
    who: str,
    file: str | None,
    config: str,
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
    from hpctl.clusters.iam_policies import PERSONAS, make_iam_policy_document
    from hpctl.clusters.validate.role import IamRoleNotFound, simulate_iam_role_permissions
    from hpctl.clusters.validate.wanted import FailedAwsCall

    aws = make_aws_client_for_command(**account)
    number = principal.split(":")[4]
    to = _read_iam_policy_scope(
        file=file,
        config=config,
        cluster=cluster,
        account=number,
        region=aws.region,
        bucket=bucket,
        role=role,
    )
    statements = PERSONAS[who](to)
    open_ = _list_policy_narrowing_options(to, make_iam_policy_document(statements))
    if open_:
        output.echo(f"hpctl: asked with invented names for want of {', '.join(open_)}", err=True)
    found = simulate_iam_role_permissions(aws.service("iam"), principal, statements)
    if isinstance(found, IamRoleNotFound):
        raise ResourceNotFound(found.why, found.fix)
    if isinstance(found, FailedAwsCall):
        view = IamCheckView(who, principal, (), (), found.why)
    else:
        denied = tuple(DeniedIamActionView(action, why) for action, why in found.denied.items())
        unsure = tuple(
            ConditionallyAllowedIamActionView(action, keys) for action, keys in found.unsure.items()
        )
        view = IamCheckView(who, principal, denied, unsure, "")
    output.show_view("iam-check", view, as_json)
    if view.denied:
        output.exit_with_code(ExitCode.PROBLEM)
    output.exit_with_code(ExitCode.CANNOT_TELL if view.error or view.unsure else ExitCode.FINE)


def _read_iam_policy_scope(*, file: str | None, config: str, **names: str) -> IamPolicyScope:
    """Read a scope from the files and options. What an option names outweighs a file."""
    from hpctl.clusters import iam_policies

    settings = _read_iam_policy_scope_from_spec(file) if file else {}
    settings |= {key: value for key, value in names.items() if value}
    loaded = read_daemon_config(config)
    autoscale = loaded is not None and loaded.autoscale.enabled
    evidence = loaded.evidence.directory if loaded is not None else ""
    try:
        return iam_policies.make_iam_policy_scope(
            **settings, autoscale=autoscale, evidence=evidence
        )
    except HpctlError as error:
        raise make_usage_error(error) from error


def _read_iam_policy_scope_from_spec(file: str) -> dict[str, Any]:
    """Read what a cluster's file names; several buckets or roles stay `*`."""
    from hpctl.clusters.spec import read_cluster_spec
    from hpctl.clusters.validate.wanted import build_requested_cluster

    wanted = build_requested_cluster(read_cluster_spec(file))
    roles = {group.execution_role for group in wanted.groups if group.execution_role}
    uris = {group.lifecycle.get("SourceS3Uri", "") for group in wanted.groups}
    buckets = {uri.removeprefix("s3://").partition("/")[0] for uri in uris if uri}
    alarms = set(chain.from_iterable(group.alarms for group in wanted.groups))
    return {
        "cluster": wanted.name,
        "role": roles.pop() if len(roles) == 1 else "",
        "bucket": buckets.pop() if len(buckets) == 1 else "",
        "secret": wanted.secret,
        "alarms": tuple(sorted(alarms)),
    }


def _list_policy_narrowing_options(to: IamPolicyScope, policy: dict[str, Any]) -> list[str]:
    """Return the options that would narrow a policy."""
    text = json.dumps(policy)
    options = {"cluster_id": "--cluster ARN", "cluster": "--cluster NAME"}
    uses = {"bucket": ":s3:::*", "role": ":role/*", "cluster": "/aws/sagemaker/Clusters/*"}
    uses |= {"cluster_id": ":cluster/*", "region": "arn:", "account": "arn:"}
    return [
        options.get(name, f"--{name}")
        for name in to.__struct_fields__
        if getattr(to, name) == "*" and uses.get(name, "\0") in text
    ]
