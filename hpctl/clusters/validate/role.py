"""The execution roles: there, trusted, and allowed what a node does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hpctl.clusters.policies import SERVICE
from hpctl.clusters.validate.facts import Facts
from hpctl.clusters.validate.role_facts import Role
from hpctl.clusters.validate.verdict import (
    Check,
    Family,
    Finding,
    Place,
    Unanswered,
    fail,
    ok,
    settled,
    unknown,
)
from hpctl.clusters.validate.wanted import Wanted

MEND = "`hpctl iam execution-role` prints the policy"


def exists(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """Every execution role is there."""
    for arn, place, role in _roles(wanted, facts):
        if isinstance(role.entry, Unanswered):
            yield unknown(place, role.entry)
        elif role.entry is None:
            yield fail(
                place,
                f"there is no role {arn}",
                f"make it; {MEND}, and with --trust whom it must trust",
            )
        elif role.entry.get("Arn") != arn:
            yield fail(
                place,
                f"the role's ARN is {role.entry.get('Arn')}, not {arn}",
                "write the ARN as IAM has it, path and account included",
            )
        else:
            yield ok(f"{arn} is there", place)


def trusted(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """SageMaker may take on the role."""
    for arn, place, role in _roles(wanted, facts):
        if role.entry is None or isinstance(role.entry, Unanswered):
            continue
        policy = role.entry.get("AssumeRolePolicyDocument") or {}
        policy = json.loads(policy) if isinstance(policy, str) else policy
        yield from settled(
            [] if _trusts(policy) else [_untrusted(arn, place)],
            f"{arn} trusts {SERVICE}",
            place,
        )


def allowed(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """The role allows what HyperPod's agents and the lifecycle scripts do on a node."""
    for arn, place, role in _roles(wanted, facts):
        if role.entry is None or isinstance(role.entry, Unanswered):
            continue
        if isinstance(role.simulated, Unanswered):
            mend = role.simulated.mend or f"allow iam:SimulatePrincipalPolicy on it; {MEND}"
            yield unknown(
                place,
                Unanswered(f"whether {arn} allows what a node does ({role.simulated.why})", mend),
            )
            continue
        denied, unsure = role.simulated.denied, role.simulated.unsure
        if denied:
            said = ", ".join(f"{name} on {on}" for name, on in sorted(denied.items()))
            yield fail(place, f"{arn} does not allow {said}", f"allow it; {MEND}")
        if unsure:
            said = ", ".join(f"{name} depends on {keys}" for name, keys in sorted(unsure.items()))
            yield unknown(
                place,
                Unanswered(
                    f"{arn} has conditions on what only a node's own request has: {said}",
                    f"see that its nodes meet them; {MEND}",
                ),
            )
        if not denied and not unsure:
            yield ok(f"{arn} allows what a node does", place)


def _untrusted(arn: str, place: Place) -> Finding:
    return fail(
        place,
        f"{arn} does not let {SERVICE} take it on",
        "`hpctl iam execution-role --trust` prints the trust policy",
    )


def _trusts(policy: Mapping[str, Any]) -> bool:
    return any(
        one.get("Effect") == "Allow"
        and "sts:AssumeRole" in _list(one.get("Action"))
        and SERVICE in _list((one.get("Principal") or {}).get("Service"))
        for one in _list(policy.get("Statement"))
    )


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _roles(wanted: Wanted, facts: Facts) -> Iterator[tuple[str, Place, Role]]:
    """Each role once, with the place that names it first."""
    places: dict[str, Place] = {}
    for group in wanted.groups:
        places.setdefault(group.execution_role, group.at("ExecutionRole"))
    for arn, role in facts.role.roles.items():
        yield arn, places[arn], role


FAMILY = Family(
    "iam",
    "The execution roles of the groups.",
    ("role",),
    (
        Check("role", "The execution role is there.", exists),
        Check("trust", f"{SERVICE} may take it on.", trusted),
        Check(
            "allowed",
            "It allows what HyperPod's agents and the lifecycle scripts do on a node "
            "(iam:SimulatePrincipalPolicy).",
            allowed,
        ),
    ),
)
