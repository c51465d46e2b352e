"""Extensions of a cluster: AWS's own software on every node, such as sagemaker-observability."""

import json
import secrets
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from hpctl.clusters.apply import Patience, ordered
from hpctl.toolkit.errors import Absent, HpctlError, Refused
from hpctl.vocabulary.ports import Aws

OBSERVABILITY: Final = "sagemaker-observability"
BROKEN: Final = ("CreateFailed", "UpdateFailed", "Degraded", "DeleteFailed")
MOVING: Final = ("Creating", "Updating", "Deleting")

Extension = Mapping[str, Any]
"""ExtensionDetails, or a list's summary; of a single one with `NodeSummary` and `Health`."""


def fit(description: Mapping[str, Any]) -> None:
    """Raise Refused where a cluster takes no extension: it is for Slurm with Continuous alone."""
    name = description.get("ClusterName", "")
    if "Eks" in description.get("Orchestrator", {}):
        raise Refused(
            f"cluster {name} is orchestrated by EKS: extensions are for Slurm",
            "on EKS it is an add-on: aws eks create-addon",
        )
    if description.get("NodeProvisioningMode") != "Continuous":
        raise Refused(
            f"cluster {name} has no continuous provisioning, which extensions need",
            "write node_provisioning_mode: Continuous into its file (docs/cluster.md)",
        )


def settings(path: Path) -> str:
    """A JSON file as ConfigurationValues. Raises HpctlError for what is no JSON object."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise HpctlError(f"{path} is not JSON: {error}") from error
    kept = json.dumps(found, separators=(",", ":"))
    if not isinstance(found, dict) or len(kept) > 10240:
        raise HpctlError(f"{path} holds no JSON object of at most 10240 characters")
    return kept


def listed(aws: Aws, cluster: str) -> tuple[Extension, ...]:
    """Those of a cluster's ARN."""
    found = aws.service("sagemaker").pages(
        "list_cluster_extensions", "Extensions", ClusterArn=cluster
    )
    return tuple(found)


def find(aws: Aws, cluster: str, name: str) -> Extension | None:
    """One, with its nodes; None where there is none of that name."""
    for one in listed(aws, cluster):
        if one["ExtensionName"] == name:
            request = {"ClusterArn": cluster, "ExtensionArn": one["ExtensionArn"]}
            try:
                answer = aws.service("sagemaker").read("describe_cluster_extension", **request)
            except Absent:
                return None
            more = {key: answer[key] for key in ("NodeSummary", "Health") if key in answer}
            return {**answer["ExtensionDetails"], **more}
    return None


def named(aws: Aws, cluster: str, name: str) -> Extension:
    """One that is there. Raises Absent with the nearest."""
    if found := find(aws, cluster, name):
        return found
    every = [str(one["ExtensionName"]) for one in listed(aws, cluster)]
    near = get_close_matches(name, every, n=2) or every
    hint = f"is it {' or '.join(near)}?" if near else "it has none at all"
    raise Absent(f"the cluster has no extension {name!r}", hint)


def put(
    aws: Aws, cluster: str, name: str, there: Extension | None, wanted: Mapping[str, str],
    patience: Patience,
) -> None:  # fmt: skip
    """Create or update one. The client token makes it one order, however often it is sent.

    An update with nothing wanted is AWS's way to try again where it has failed.
    """
    sagemaker = aws.service("sagemaker")
    which = {"ExtensionArn": there["ExtensionArn"]} if there else {"ExtensionName": name}
    request = {"ClusterArn": cluster, "ClientToken": secrets.token_hex(16), **which, **wanted}
    operation = "update_cluster_extension" if there else "create_cluster_extension"
    # Of an update nothing certain is to be seen: it is sent again with its token.
    look = Patience(patience.sleep, 1) if there else patience
    try:
        ordered(
            lambda: sagemaker.order(operation, **request),
            lambda: there is None and find(aws, cluster, name) is not None,
            look,
        )
    except Refused as error:
        offered = sagemaker.pages(
            "list_cluster_extension_versions", "ExtensionVersions", ExtensionName=name
        )
        known = ", ".join(str(one["ExtensionVersion"]) for one in offered)
        hint = error.hint or f"its versions: {known or 'none, so is its name right?'}"
        raise type(error)(str(error), hint, code=error.code) from error


def remove(aws: Aws, cluster: str, there: Extension, patience: Patience) -> None:
    """DeleteClusterExtension by ARN, which a later extension of that name does not have."""
    request = {"ClusterArn": cluster, "ExtensionArn": there["ExtensionArn"]}

    def taken() -> bool:
        left = [o for o in listed(aws, cluster) if o["ExtensionArn"] == there["ExtensionArn"]]
        return not left or left[0]["Status"] == "Deleting"

    order = aws.service("sagemaker").order
    ordered(lambda: order("delete_cluster_extension", **request), taken, patience)
