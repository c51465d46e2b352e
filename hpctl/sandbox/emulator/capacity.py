"""How many instances there are to be had, what quotas allow, and what training plans hold.

Everything is plentiful unless a test says otherwise: `types` and `groups` bound how many
instances of a type, or in a group (`<cluster>/<group>`), the service can find; `quotas` is what
Service Quotas grants of a type over all clusters, a call beyond which is refused.

Training plans are those that a test has added: none can be bought here.
"""

import zlib
from collections import Counter
from collections.abc import Mapping
from itertools import chain
from typing import Any

from msgspec import Struct, field

from hpctl.sandbox.emulator.faults import (
    ApiError,
    make_not_found_error,
    make_resource_limit_exceeded_error,
    make_validation_error,
)
from hpctl.sandbox.emulator.shapes import Body, build_paginated_response, list_enum_values
from hpctl.sandbox.emulator.state import (
    EmulatedAwsRegion,
    EmulatedCluster,
    EmulatedInstanceGroup,
    EmulatedNode,
)

PLENTY = 1000.0
"""The quota of whatever no test has bounded."""

TOTALS = {
    "Maximum number instances allowed per SageMaker HyperPod cluster": PLENTY,
    "Total number of instances allowed across SageMaker HyperPod clusters": PLENTY,
    "Maximum size of EBS volume in GB for a SageMaker HyperPod cluster instance": 16384.0,
}
"""Quotas of HyperPod that are not for one instance type, by their names in Service Quotas."""


class EmulatedCapacity(Struct):
    """The account's instances. Hold the world's lock to call anything."""

    world: EmulatedAwsRegion
    types: dict[str, int] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    quotas: dict[str, int] = field(default_factory=dict)
    places: int | None = None
    """How many instances of all kinds the process that runs them has room for."""
    plans: dict[str, Body] = field(default_factory=dict)
    """Training plans by ARN, as DescribeTrainingPlan answers without its counts in use."""

    def set(self, given: Mapping[str, Any]) -> None:
        """Change the bounds by name: `{"types": {"ml.p5.48xlarge": 3}}`; None lifts one."""
        bounds = {"types": self.types, "groups": self.groups, "quotas": self.quotas}
        for kind, changes in given.items():
            for name, count in changes.items():
                if count is None:
                    bounds[kind].pop(name, None)
                else:
                    bounds[kind][name] = int(count)
        with self.world.changed:
            self.world.changed.notify_all()

    def list_capacity_limits(self) -> Body:
        """Return the bounds in force, for the admin route."""
        return {"types": dict(self.types), "groups": dict(self.groups), "quotas": dict(self.quotas)}

    def take(self, cluster: EmulatedCluster, node: EmulatedNode) -> bool:
        """Give a node the first type of its group that is to be had; False where none is.

        A node that holds an instance gives it back first.
        """
        node.instance_type = ""
        mine = f"{cluster.name}/{node.group.name}"
        if self._count_instances(group=node.group) >= self.groups.get(mine, 1 << 30):
            return False
        plan = self.plans.get(str(node.group.spec.get("TrainingPlanArn", "")))
        for kind in node.group.instance_types:
            held = self._count_instances(kind=kind)
            if held < self.types.get(kind, 1 << 30) and (
                plan is None or self._has_plan_capacity(plan, kind)
            ):
                node.instance_type = kind
                return True
        return False

    def check_quota(
        self, cluster: EmulatedCluster | None, groups: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Raise ApiError ResourceLimitExceeded where these groups of a cluster go too far.

        `groups` are specifications by name, over those that the cluster has. A flexible group
        is counted against its first type.
        """
        wanted: Counter[str] = Counter()
        used: Counter[str] = Counter()
        for one in self.world.clusters.values():
            for group in one.groups.values():
                used[group.instance_type] += group.target
                if one is not cluster or group.name not in groups:
                    wanted[group.instance_type] += group.target
        for spec in groups.values():
            kind = spec.get("InstanceType") or spec["InstanceRequirements"]["InstanceTypes"][0]
            wanted[kind] += spec["InstanceCount"]
        for kind, quota in self.quotas.items():
            if wanted[kind] > quota and wanted[kind] > used[kind]:
                raise make_resource_limit_exceeded_error(
                    kind, quota, used[kind], wanted[kind] - used[kind]
                )
        self._check_sandbox_limit(cluster, groups)

    def _check_sandbox_limit(
        self, cluster: EmulatedCluster | None, groups: Mapping[str, Mapping[str, Any]]
    ) -> None:
        if self.places is None:
            return
        there = Counter(n.group.name for n in cluster.nodes.values()) if cluster else Counter()
        more = sum(max(0, s["InstanceCount"] - there[name]) for name, s in groups.items())
        used = sum(len(c.nodes) for c in self.world.clusters.values())
        if more and used + more > self.places:
            raise make_resource_limit_exceeded_error(
                "instances of this sandbox", self.places, used, more
            )

    def check_training_plans(self, groups: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise ApiError where a group names a training plan that it cannot use."""
        for name, spec in groups.items():
            arn = spec.get("TrainingPlanArn")
            if arn is None:
                continue
            plan = self.plans.get(arn)
            if plan is None:
                raise make_not_found_error(f"Training plan {arn} not found.")
            kinds = {s["InstanceType"] for s in plan.get("ReservedCapacitySummaries", ())}
            if spec.get("InstanceType") not in kinds:
                raise make_validation_error(
                    f"Instance group {name}: training plan {plan['TrainingPlanName']} holds "
                    f"{', '.join(sorted(kinds)) or 'nothing'}, not {spec.get('InstanceType')}."
                )

    def add_training_plan(self, name: str, **more: Any) -> str:
        """Add a training plan for tests, Active unless `more` says otherwise; its ARN.

        `more` are members of DescribeTrainingPlan's answer.
        """
        arn = f"arn:aws:sagemaker:{self.world.region}:{self.world.account}:training-plan/{name}"
        total = sum(s["TotalInstanceCount"] for s in more.get("ReservedCapacitySummaries", ()))
        self.plans[arn] = {
            "TrainingPlanArn": arn,
            "TrainingPlanName": name,
            "Status": "Active",
            "TargetResources": ["hyperpod-cluster"],
            "TotalInstanceCount": total,
            **more,
        }
        return arn

    def describe_training_plan(self, request: Body) -> Body:
        """DescribeTrainingPlan, by name or ARN."""
        wanted = request["TrainingPlanName"]
        for arn, plan in self.plans.items():
            if wanted in (arn, plan["TrainingPlanName"]):
                mine = self._count_instances(plan=arn)
                left = max(0, plan["TotalInstanceCount"] - mine)
                return {"InUseInstanceCount": mine, "AvailableInstanceCount": left, **plan}
        raise make_not_found_error(f"Training plan {wanted} not found.")

    def list_quotas(self, request: Body) -> Body:
        """ListServiceQuotas and ListAWSDefaultServiceQuotas."""
        if request["ServiceCode"] != "sagemaker":
            text = f"There are no quotas of {request['ServiceCode']} here."
            raise ApiError("NoSuchResourceException", text)
        found = []
        for kind in list_enum_values("ClusterInstanceType"):
            value = self.quotas.get(kind, PLENTY)
            for usage in ("usage", "spot instance usage"):
                found.append(self._make_quota_body(f"{kind} for cluster {usage}", value))
        return build_paginated_response(
            "Quotas", [*found, *(self._make_quota_body(*one) for one in TOTALS.items())], request
        )

    def _make_quota_body(self, name: str, value: float) -> Body:
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

    def _has_plan_capacity(self, plan: Body, kind: str) -> bool:
        if plan["Status"] != "Active":
            return False
        total = sum(
            int(s["TotalInstanceCount"])
            for s in plan.get("ReservedCapacitySummaries", ())
            if s["InstanceType"] == kind
        )
        return total > self._count_instances(plan=plan["TrainingPlanArn"], kind=kind)

    def _count_instances(
        self, *, group: EmulatedInstanceGroup | None = None, kind: str = "", plan: str = ""
    ) -> int:
        """Return how many instances there are: in a group, of a type, of a training plan by its
        ARN."""
        clusters = self.world.clusters.values()
        nodes = chain.from_iterable(cluster.nodes.values() for cluster in clusters)
        return sum(
            bool(node.instance_type)
            and group in (None, node.group)
            and kind in ("", node.instance_type)
            and plan in ("", node.group.spec.get("TrainingPlanArn"))
            for node in nodes
        )
