"""Asks IAM for the execution roles, and whether they allow what a node does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpctl.clusters import policies
from hpctl.clusters.validate.ask import ask
from hpctl.clusters.validate.bucket_facts import parsed
from hpctl.clusters.validate.verdict import Unanswered
from hpctl.clusters.validate.wanted import Wanted
from hpctl.ports import Aws, Service


@dataclass(frozen=True, slots=True)
class Simulated:
    """By action, what is not allowed and on what; and what depends on keys of a request."""

    denied: Mapping[str, str] = field(default_factory=dict)
    unsure: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Role:
    """One role, and what IAM says that it allows of what a node does."""

    entry: Mapping[str, Any] | Unanswered | None
    simulated: Simulated | Unanswered = field(default_factory=Simulated)


class NoRole(Unanswered):
    """The role itself is not there."""


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """By ARN."""

    roles: Mapping[str, Role] = field(default_factory=dict)


def gather(aws: Aws, wanted: Wanted) -> RoleFacts:
    """Two calls or more a role."""
    iam = aws.service("iam")
    arns = {group.execution_role for group in wanted.groups if group.execution_role}
    return RoleFacts({arn: _role(iam, wanted, arn, aws.region) for arn in sorted(arns)})


def simulate(
    iam: Service, role: str, statements: tuple[policies.Statement, ...]
) -> Simulated | Unanswered:
    """What a principal is not allowed of these statements, and what depends on the request."""
    refused: dict[str, str] = {}
    unsure: dict[str, str] = {}
    for statement in statements:
        answer = ask(_results, iam, role, statement)
        if answer is None:
            # Silence about a role that is not there is no permission.
            return NoRole(f"there is no role {role}", "check the account and the name")
        if isinstance(answer, Unanswered):
            return answer
        for result in answer:
            if result["EvalDecision"] == "allowed":
                continue
            # A condition on what only a real request has, such as the VPC that it comes from.
            missing = result.get("MissingContextValues")
            said = ", ".join(missing) if missing else str(result.get("EvalResourceName", "*"))
            (unsure if missing else refused)[str(result["EvalActionName"])] = said
    return Simulated(refused, unsure)


def _results(iam: Service, role: str, statement: policies.Statement) -> list[Any]:
    account = role.split(":")[4]
    known = {"aws:PrincipalAccount": account, "aws:ResourceAccount": account}
    for keys in statement.condition.values():
        known |= keys
    context = [
        {"ContextKeyName": key, "ContextKeyType": "string", "ContextKeyValues": [value]}
        for key, value in known.items()
    ]
    found = iam.pages(
        "simulate_principal_policy",
        "EvaluationResults",
        PolicySourceArn=role,
        ActionNames=list(statement.actions),
        ResourceArns=[_example(arn) for arn in statement.resources],
        ContextEntries=context,
    )
    return list(found)


def _example(arn: str) -> str:
    """A resource that a pattern is about: what may do everything may do this."""
    return arn if arn == "*" else arn.replace("*", "hpctl-example")


def _role(iam: Service, wanted: Wanted, arn: str, region: str) -> Role:
    name = arn.rpartition("/")[2]
    entry = ask(_entry, iam, name)
    if entry is None or isinstance(entry, Unanswered):
        return Role(entry)
    return Role(entry, simulate(iam, arn, needed(wanted, arn, region)))


def _entry(iam: Service, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = iam.read("get_role", RoleName=name)["Role"]
    return found


def needed(wanted: Wanted, arn: str, region: str) -> tuple[policies.Statement, ...]:
    """What the nodes of the groups that have this role do."""
    groups = [group for group in wanted.groups if group.execution_role == arn]
    to = policies.scope(cluster=wanted.name, account=arn.split(":")[4], region=region)
    statements = []
    for one in policies.execution_role(to):
        if one.sid.startswith("Lifecycle"):
            continue
        if one.sid.startswith("Interface") and not any(group.network.subnets for group in groups):
            continue
        statements.append(one)
    for alarm in sorted({name for group in groups for name in group.alarms}):
        statements += policies.rollback_alarms(replace(to, alarm=alarm))
    if wanted.secret and any(group.role == "Controller" for group in groups):
        statements += policies.accounting_secret(wanted.secret)
    for uri in sorted({group.lifecycle.get("SourceS3Uri", "") for group in groups}):
        place = parsed(uri)
        if place is None:
            continue
        bucket, prefix = place
        scripts = sorted(
            f"arn:{to.partition}:s3:::" + "/".join(filter(None, (bucket, prefix, name)))
            for name in {
                name
                for group in groups
                if group.lifecycle.get("SourceS3Uri") == uri
                for _, name in group.scripts
            }
        )
        statements += [
            policies.Statement("Scripts", ("s3:GetObject",), tuple(scripts)),
            policies.Statement(
                "Prefix", ("s3:ListBucket",), (f"arn:{to.partition}:s3:::{bucket}",)
            ),
        ]
    return tuple(statements)
