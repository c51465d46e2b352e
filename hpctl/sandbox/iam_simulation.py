"""SimulatePrincipalPolicy for moto, which knows policies and what they permit, but not this call.

Only roles, their inline and their attached policies; no conditions, boundaries or organisations.
"""

from __future__ import annotations

from typing import Any


def install() -> None:
    """Let moto's IAM answer the call, in this process."""
    from moto.iam.responses import IamResponse

    IamResponse.simulate_principal_policy = _simulate  # type: ignore[attr-defined]


def _simulate(response: Any) -> Any:
    """A method of moto's IamResponse."""
    from moto.core.responses import ActionResult

    backend = response.backend
    role = backend.get_role_by_arn(response._get_param("PolicySourceArn"))
    documents = [
        backend.get_role_policy(role.name, name)[1]
        for name in backend.list_role_policies(role.name)
    ]
    policies = [*documents, *role.managed_policies.values()]
    resources = response._get_param("ResourceArns") or ["*"]
    return ActionResult(
        {
            "IsTruncated": False,
            "EvaluationResults": [
                {
                    "EvalActionName": action,
                    "EvalResourceName": resource,
                    "EvalDecision": _decision(policies, action, resource),
                }
                for action in response._get_param("ActionNames")
                for resource in resources
            ],
        }
    )


def _decision(policies: list[Any], action: str, resource: str) -> str:
    from moto.iam.access_control import IAMPolicy, PermissionResult

    found = {IAMPolicy(policy).is_action_permitted(action, resource) for policy in policies}
    if PermissionResult.DENIED in found:
        return "explicitDeny"
    return "allowed" if PermissionResult.PERMITTED in found else "implicitDeny"
