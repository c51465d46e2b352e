"""What hpctl asks of Service Quotas that moto does not have, and extensions of a cluster.

Requests and answers are held against these services' own models.

Extensions, such as sagemaker-observability, are for Slurm with Continuous alone. They follow the
service model's documentation. The words of its refusals are not known, nor how long a node takes
(`install_s`, of all nodes alike).
"""

import json
import secrets
import zlib
from collections.abc import Callable, Iterator
from datetime import timedelta

from msgspec import Struct, field

from hpctl.core.model import InstanceStatus
from hpctl.sandbox.emulator import shapes
from hpctl.sandbox.emulator.capacity import Capacity
from hpctl.sandbox.emulator.faults import ApiError, in_use, not_found, validation
from hpctl.sandbox.emulator.shapes import Body, paged
from hpctl.sandbox.emulator.state import Cluster, World

PLENTY = 1000.0
"""The quota of whatever no test has bounded."""

TOTALS = (
    "Maximum number instances allowed per SageMaker HyperPod cluster",
    "Total number of instances allowed across SageMaker HyperPod clusters",
    "Maximum size of EBS volume in GB for a SageMaker HyperPod cluster instance",
)
"""Quotas of HyperPod that are not for one instance type, by their names in Service Quotas."""


class Quotas(Struct):
    """SageMaker's quotas for clusters, as `Capacity.quotas` bounds them."""

    world: World
    capacity: Capacity

    def list(self, request: Body) -> Body:
        """ListServiceQuotas and ListAWSDefaultServiceQuotas."""
        return paged("Quotas", list(self._all(request["ServiceCode"])), request)

    def _all(self, service: str) -> Iterator[Body]:
        if service != "sagemaker":
            raise ApiError("NoSuchResourceException", f"There are no quotas of {service} here.")
        bounds = self.capacity.quotas
        for kind in shapes.enumeration("ClusterInstanceType"):
            yield self._quota(f"{kind} for cluster usage", bounds.get(kind, PLENTY))
            yield self._quota(f"{kind} for cluster spot instance usage", bounds.get(kind, PLENTY))
        for name in TOTALS:
            yield self._quota(name, bounds.get(name, 16384.0 if "EBS" in name else PLENTY))

    def _quota(self, name: str, value: float) -> Body:
        code = f"L-{zlib.crc32(name.encode()):08X}"
        place = f"{self.world.region}:{self.world.account}"
        return {
            "ServiceCode": "sagemaker",
            "ServiceName": "Amazon SageMaker",
            "QuotaArn": f"arn:aws:servicequotas:{place}:sagemaker/{code}",
            "QuotaCode": code,
            "QuotaName": name,
            "Value": float(value),
            "Unit": "None",
            "Adjustable": True,
            "GlobalQuota": False,
        }


_SUMMARY = ("ExtensionArn", "ExtensionName", "ExtensionVersion", "Status", "CreationTime")


class Extensions(Struct):
    """Each extension as DescribeClusterExtension's ExtensionDetails, by its ARN."""

    world: World
    install_s: float = 0.0
    versions: tuple[str, ...] = ("1.1.0", "1.0.0")
    """Of sagemaker-observability, the highest first. Nothing else is offered."""
    issues: list[Body] = field(default_factory=list)
    """Health's issues; while there are some, what is installed is Degraded."""
    _kept: dict[str, Body] = field(default_factory=dict)
    _tokens: dict[str, str] = field(default_factory=dict)

    def handlers(self) -> dict[str, Callable[[Body], Body]]:
        """Each operation by its name."""
        return {
            "CreateClusterExtension": self.create,
            "DescribeClusterExtension": self.describe,
            "ListClusterExtensions": self.list_all,
            "ListClusterExtensionVersions": self.list_versions,
            "UpdateClusterExtension": self.update,
            "DeleteClusterExtension": self.delete,
        }

    def create(self, request: Body) -> Body:
        """CreateClusterExtension. The same ClientToken: the same ARN."""
        cluster = self.world.cluster(request["ClusterArn"])
        token, name = request.get("ClientToken", ""), request["ExtensionName"]
        if token in self._tokens:
            return {"ExtensionArn": self._tokens[token]}
        if "Eks" in cluster.spec.get("Orchestrator", {}) or not cluster.continuous:
            raise validation("Extensions need Slurm and NodeProvisioningMode Continuous.")
        if any(one["ExtensionName"] == name for one in self._of(cluster)):
            raise in_use(f"Extension {name} already exists on the cluster.")
        if name != "sagemaker-observability":
            raise validation(f"There is no extension {name}.")
        place, cluster_id = cluster.arn.split(":cluster/")
        arn = f"{place}:extension/sagemaker-{cluster_id}/{name}/{secrets.token_hex(6)}"
        details = {"ClusterArn": cluster.arn, "ExtensionArn": arn, "ExtensionName": name}
        details |= {"ConfigurationValues": "{}", "CreationTime": self.world.now()}
        details |= {"ExtensionVersion": self.versions[0]}
        self._kept[arn] = self._changed(details, request, "Creating")
        self._tokens |= {token: arn} if token else {}
        return {"ExtensionArn": arn}

    def describe(self, request: Body) -> Body:
        """DescribeClusterExtension, with the nodes that run it."""
        details = self._find(request)
        nodes = self.world.cluster(request["ClusterArn"]).nodes.values()
        total = sum(n.state.status is InstanceStatus.RUNNING for n in nodes)
        ill = sum(one["NodeCount"] for one in self.issues)
        active = max(0, total - ill) if details["Status"] in ("Active", "Degraded") else 0
        counts = {"TotalCount": total, "ActiveCount": active}
        body: Body = {"ExtensionDetails": details, "NodeSummary": counts}
        return {**body, "Health": {"Issues": self.issues}} if self.issues else body

    def list_all(self, request: Body) -> Body:
        """ListClusterExtensions."""
        found = self._of(self.world.cluster(request["ClusterArn"]))
        return {"Extensions": [{key: one[key] for key in _SUMMARY} for one in found]}

    def list_versions(self, request: Body) -> Body:
        """ListClusterExtensionVersions: none of what is not offered."""
        known = self.versions if request["ExtensionName"] == "sagemaker-observability" else ()
        return {"ExtensionVersions": [{"ExtensionVersion": one} for one in known]}

    def update(self, request: Body) -> Body:
        """UpdateClusterExtension: settings that are left out stay, null takes one back."""
        details = self._find(request)
        self._kept[details["ExtensionArn"]] = self._changed(details, request, "Updating")
        return {"ExtensionArn": details["ExtensionArn"]}

    def delete(self, request: Body) -> Body:
        """DeleteClusterExtension."""
        details = self._find(request)
        details |= {"Status": "Deleting", "LastModifiedTime": self.world.now()}
        return {"ExtensionArn": details["ExtensionArn"]}

    # --- inside -------------------------------------------------------------------------------

    def _of(self, cluster: Cluster) -> list[Body]:
        """Those of a cluster as they stand now."""
        for arn, one in list(self._kept.items()):
            age = self.world.now() - one["LastModifiedTime"]
            if age >= timedelta(seconds=self.install_s):
                if one["Status"] == "Deleting":
                    del self._kept[arn]
                one["Status"] = "Degraded" if self.issues else "Active"
        return [one for one in self._kept.values() if one["ClusterArn"] == cluster.arn]

    def _find(self, request: Body) -> Body:
        for one in self._of(self.world.cluster(request["ClusterArn"])):
            if one["ExtensionArn"] == request["ExtensionArn"]:
                return one
        raise not_found(f"Extension {request['ExtensionArn']} not found.")

    def _changed(self, details: Body, request: Body, status: str) -> Body:
        now = details["ExtensionVersion"]
        version = request.get("ExtensionVersion", now)
        if version not in self.versions or (status == "Updating" and version < now):
            raise validation(f"ExtensionVersion {version} is not one to go to.")
        try:
            changes = dict(json.loads(request.get("ConfigurationValues", "{}")))
        except (ValueError, TypeError) as error:
            raise validation(f"ConfigurationValues is no JSON object: {error}") from error
        both = {**json.loads(details["ConfigurationValues"]), **changes}
        kept = json.dumps({key: value for key, value in both.items() if value is not None})
        more = {"ExtensionVersion": version, "ConfigurationValues": kept, "Status": status}
        return {**details, **more, "LastModifiedTime": self.world.now()}
