"""The execution roles: there, trusted, and allowed what a node does."""

import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from msgspec.structs import replace

from hpctl.clusters import iam_policies
from hpctl.clusters.iam_policies import SERVICE
from hpctl.clusters.validate.facts import (
    ExecutionRole,
    IamSimulationResult,
    SpecCheckFamily,
    SpecValidationFacts,
    call_aws_or_return_none_if_missing,
)
from hpctl.clusters.validate.scripts import parse_s3_uri
from hpctl.clusters.validate.wanted import (
    FailedAwsCall,
    Place,
    RequestedCluster,
    SpecFinding,
    list_findings_or_ok,
    make_failure_finding,
    make_ok_finding,
    make_unknown_finding,
)
from hpctl.vocabulary.ports import AwsClientFactory, AwsServiceClient

FAMILY = SpecCheckFamily("iam", "The execution roles of the groups.", ("role",))


class IamRoleNotFound(FailedAwsCall, frozen=True):
    """The role itself is not there."""


def gather_execution_role_facts(
    aws: AwsClientFactory, wanted: RequestedCluster
) -> dict[str, ExecutionRole]:
    """Two calls or more a role."""
    iam = aws.service("iam")
    arns = {group.execution_role for group in wanted.groups if group.execution_role}
    return {
        arn: _read_execution_role_permissions(iam, wanted, arn, aws.region) for arn in sorted(arns)
    }


def simulate_iam_role_permissions(
    iam: AwsServiceClient, role: str, statements: tuple[iam_policies.IamPolicyStatement, ...]
) -> IamSimulationResult | FailedAwsCall:
    """What a principal is not allowed of these statements, and what depends on the request."""
    refused: dict[str, str] = {}
    unsure: dict[str, str] = {}
    for statement in statements:
        answer = call_aws_or_return_none_if_missing(
            _simulate_iam_policy_statement, iam, role, statement
        )
        if answer is None:
            # Silence about a role that is not there is no permission.
            return IamRoleNotFound(f"there is no role {role}", "check the account and the name")
        if isinstance(answer, FailedAwsCall):
            return answer
        for result in answer:
            if result["EvalDecision"] == "allowed":
                continue
            # A condition on what only a real request has, such as the VPC that it comes from.
            missing = result.get("MissingContextValues")
            text = ", ".join(missing) if missing else str(result.get("EvalResourceName", "*"))
            (unsure if missing else refused)[str(result["EvalActionName"])] = text
    return IamSimulationResult(refused, unsure)


def _simulate_iam_policy_statement(
    iam: AwsServiceClient, role: str, statement: iam_policies.IamPolicyStatement
) -> list[Any]:
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
        ResourceArns=[_replace_arn_wildcard_with_example(arn) for arn in statement.resources],
        ContextEntries=context,
    )
    return list(found)


def _replace_arn_wildcard_with_example(arn: str) -> str:
    """A resource that a pattern is about: what may do everything may do this."""
    return arn if arn == "*" else arn.replace("*", "hpctl-example")


def _read_execution_role_permissions(
    iam: AwsServiceClient, wanted: RequestedCluster, arn: str, region: str
) -> ExecutionRole:
    name = arn.rpartition("/")[2]
    entry = call_aws_or_return_none_if_missing(_read_iam_role, iam, name)
    if entry is None or isinstance(entry, FailedAwsCall):
        return ExecutionRole(entry)
    return ExecutionRole(
        entry,
        simulate_iam_role_permissions(iam, arn, list_required_iam_statements(wanted, arn, region)),
    )


def _read_iam_role(iam: AwsServiceClient, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = iam.read("get_role", RoleName=name)["Role"]
    return found


def list_required_iam_statements(
    wanted: RequestedCluster, arn: str, region: str
) -> tuple[iam_policies.IamPolicyStatement, ...]:
    """What the nodes of the groups that have this role do."""
    groups = [group for group in wanted.groups if group.execution_role == arn]
    to = iam_policies.make_iam_policy_scope(
        cluster=wanted.name, account=arn.split(":")[4], region=region
    )
    statements = []
    for one in iam_policies.list_execution_role_statements(to):
        if one.sid.startswith("Lifecycle"):
            continue
        if one.sid.startswith("Interface") and not any(group.network.subnets for group in groups):
            continue
        statements.append(one)
    alarms = tuple(sorted(set(chain.from_iterable(group.alarms for group in groups))))
    statements += iam_policies.list_alarm_rollback_statements(replace(to, alarms=alarms))
    if wanted.secret and any(group.role == "Controller" for group in groups):
        statements += iam_policies.list_secret_access_statements(wanted.secret)
    for uri in sorted({group.lifecycle.get("SourceS3Uri", "") for group in groups}):
        place = parse_s3_uri(uri)
        if place is None:
            continue
        bucket, prefix = place
        running = [group for group in groups if group.lifecycle.get("SourceS3Uri") == uri]
        listed = chain.from_iterable(group.scripts for group in running)
        names = {name for _, name in listed}
        keys = ("/".join(filter(None, (bucket, prefix, name))) for name in names)
        scripts = sorted(f"arn:{to.partition}:s3:::{key}" for key in keys)
        statements += [
            iam_policies.IamPolicyStatement("Scripts", ("s3:GetObject",), tuple(scripts)),
            iam_policies.IamPolicyStatement(
                "Prefix", ("s3:ListBucket",), (f"arn:{to.partition}:s3:::{bucket}",)
            ),
        ]
    return tuple(statements)


FIX = "`hpctl cluster iam policy execution-role` prints the policy"


@FAMILY.check("role")
def check_execution_role_exists(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """The execution role is there."""
    for arn, place, role in _list_execution_roles(wanted, facts):
        if isinstance(role.entry, FailedAwsCall):
            yield make_unknown_finding(place, role.entry)
        elif role.entry is None:
            yield make_failure_finding(
                place,
                f"there is no role {arn}",
                f"make it; {FIX}, and with --trust whom it must trust",
            )
        elif role.entry.get("Arn") != arn:
            yield make_failure_finding(
                place,
                f"the role's ARN is {role.entry.get('Arn')}, not {arn}",
                "write the ARN as IAM has it, path and account included",
            )
        else:
            yield make_ok_finding(f"{arn} is there", place)


@FAMILY.check("trust")
def check_execution_role_trust_policy(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """sagemaker.amazonaws.com may take it on."""
    for arn, place, role in _list_execution_roles(wanted, facts):
        if role.entry is None or isinstance(role.entry, FailedAwsCall):
            continue
        policy = role.entry.get("AssumeRolePolicyDocument") or {}
        policy = json.loads(policy) if isinstance(policy, str) else policy
        yield from list_findings_or_ok(
            []
            if _is_sagemaker_trusted_by_policy(policy)
            else [_make_trust_policy_failure_finding(arn, place)],
            f"{arn} trusts {SERVICE}",
            place,
        )


@FAMILY.check("allowed")
def check_execution_role_permissions(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[SpecFinding]:
    """It allows what HyperPod's agents and the lifecycle scripts do on a node
    (iam:SimulatePrincipalPolicy).
    """
    for arn, place, role in _list_execution_roles(wanted, facts):
        if role.entry is None or isinstance(role.entry, FailedAwsCall):
            continue
        if isinstance(role.simulated, FailedAwsCall):
            fix = role.simulated.fix or f"allow iam:SimulatePrincipalPolicy on it; {FIX}"
            yield make_unknown_finding(
                place,
                FailedAwsCall(f"whether {arn} allows what a node does ({role.simulated.why})", fix),
            )
            continue
        denied, unsure = role.simulated.denied, role.simulated.unsure
        if denied:
            text = ", ".join(f"{name} on {on}" for name, on in sorted(denied.items()))
            yield make_failure_finding(place, f"{arn} does not allow {text}", f"allow it; {FIX}")
        if unsure:
            text = ", ".join(f"{name} depends on {keys}" for name, keys in sorted(unsure.items()))
            yield make_unknown_finding(
                place,
                FailedAwsCall(
                    f"{arn} has conditions on what only a node's own request has: {text}",
                    f"see that its nodes meet them; {FIX}",
                ),
            )
        if not denied and not unsure:
            yield make_ok_finding(f"{arn} allows what a node does", place)


def _make_trust_policy_failure_finding(arn: str, place: Place) -> SpecFinding:
    return make_failure_finding(
        place,
        f"{arn} does not let {SERVICE} take it on",
        "`hpctl cluster iam policy execution-role --trust` prints the trust policy",
    )


def _is_sagemaker_trusted_by_policy(policy: Mapping[str, Any]) -> bool:
    return any(
        one.get("Effect") == "Allow"
        and "sts:AssumeRole" in _wrap_policy_value_in_list(one.get("Action"))
        and SERVICE in _wrap_policy_value_in_list((one.get("Principal") or {}).get("Service"))
        for one in _wrap_policy_value_in_list(policy.get("Statement"))
    )


def _wrap_policy_value_in_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _list_execution_roles(
    wanted: RequestedCluster, facts: SpecValidationFacts
) -> Iterator[tuple[str, Place, ExecutionRole]]:
    """Each role once, with the place that names it first."""
    places: dict[str, Place] = {}
    for group in wanted.groups:
        places.setdefault(group.execution_role, group.at("ExecutionRole"))
    for arn, role in facts.role.items():
        yield arn, places[arn], role
