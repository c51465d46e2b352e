"""ListClusterNodes and DescribeClusterNode."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from hpctl.core.model import LogicalId
from hpctl.sandbox.emulator.errors import not_found, validation
from hpctl.sandbox.emulator.faults import FaultKind, Faults
from hpctl.sandbox.emulator.pages import page
from hpctl.sandbox.emulator.shapes import Body
from hpctl.sandbox.emulator.state import Cluster, Node, NodeState, World

CONTINUOUS_ONLY = (
    "{} is only supported for clusters with NodeProvisioningMode Continuous. Use instance ids "
    "for clusters with the default provisioning mode."
)

_KEPT = (
    "LifeCycleConfig", "ThreadsPerCore", "InstanceStorageConfigs", "OverrideVpcConfig",
    "NetworkInterface",
)  # fmt: skip


@dataclass(slots=True)
class NodeOperations:
    """The two reads of nodes. Addresses stand in DescribeClusterNode only."""

    world: World
    faults: Faults

    def list_nodes(self, request: Body) -> Body:
        """ListClusterNodes: pages of 100; nodes without an instance only where asked for."""
        cluster = self.world.cluster(request["ClusterName"])
        whole = bool(request.get("IncludeNodeLogicalIds"))
        if whole and not cluster.continuous:
            raise validation(CONTINUOUS_ONLY.format("IncludeNodeLogicalIds"))
        found = [
            (node, state)
            for node, state in (*self._seen(cluster), *cluster.lingering())
            if (whole or state.instance_id) and _matches(node, state, request)
        ]
        by_name = request.get("SortBy") == "NAME"
        found.sort(
            key=lambda at: (at[0].group.name if by_name else "", at[1].launched, at[0].logical_id),
            reverse=request.get("SortOrder") == "Descending",
        )
        nodes, token = page(found, request)
        body: Body = {"ClusterNodeSummaries": [self._summary(n, s, whole=whole) for n, s in nodes]}
        return {**body, "NextToken": token} if token else body

    def describe_node(self, request: Body) -> Body:
        """DescribeClusterNode, by instance id or, with Continuous, by logical id."""
        cluster = self.world.cluster(request["ClusterName"])
        instance, logical = request.get("NodeId"), request.get("NodeLogicalId")
        if (instance is None) == (logical is None):
            raise validation("Exactly one of NodeId and NodeLogicalId must be provided.")
        if logical is not None and not cluster.continuous:
            raise validation(CONTINUOUS_ONLY.format("NodeLogicalId"))
        node = (
            cluster.of_instance(instance)
            if instance
            else cluster.nodes.get(LogicalId(str(logical)))
        )
        state = node.state if node else None
        if node is None and instance:
            node, state = next(iter(cluster.lingering(instance)), (None, None))
        if node is None or state is None:
            raise not_found(f"Node {instance or logical} not found in cluster {cluster.name}.")
        kept = {key: node.group.spec[key] for key in _KEPT if key in node.group.spec}
        software = node.group.software
        return {
            "NodeDetails": {
                **self._summary(node, state, whole=cluster.continuous),
                **kept,
                "PrivatePrimaryIp": node.address,
                "Placement": self.world.placement(cluster, node),
                "CurrentImageId": software.image or self.world.image_of(node.release),
                "DesiredImageId": software.image or self.world.image_of(software.desired),
                "DesiredImageReleaseVersion": software.desired,
                "CapacityType": "Spot" if node.spot else "OnDemand",
            }
        }

    def _seen(self, cluster: Cluster) -> list[tuple[Node, NodeState]]:
        """The nodes as a list shows them now: perhaps late, perhaps with some left out."""
        lag = self.faults.holds(FaultKind.LIST_LAG, operation="ListClusterNodes")
        moment = time.monotonic() - (lag.seconds if lag else 0.0)
        seen = []
        for node in (*cluster.nodes.values(), *cluster.deleted):
            state = node.state_at(moment)
            if state and not self.faults.holds(FaultKind.VANISH, names=node.names):
                seen.append((node, state))
        return seen

    def _summary(self, node: Node, state: NodeState, *, whole: bool) -> dict[str, Any]:
        """Of ListClusterNodes "only included when IncludeNodeLogicalIds is set" (API model)."""
        status = {"Status": state.status, **({"Message": state.message} if state.message else {})}
        named = state.instance_id and not self.faults.holds(FaultKind.NO_DNS, names=node.names)
        return {
            "InstanceGroupName": node.group.name,
            "InstanceId": state.instance_id or "",
            "InstanceType": node.instance_type or node.group.instance_type,
            "LaunchTime": state.launched,
            "InstanceStatus": status,
            **({"PrivateDnsHostname": self.world.dns_name(node)} if named else {}),
            **({"NodeLogicalId": node.logical_id} if whole else {}),
            **({"LastSoftwareUpdateTime": node.updated} if node.updated else {}),
            "CurrentImageReleaseVersion": node.release,
            "ImageVersionStatus": self.world.version_status(node.release),
        }


def _matches(node: Node, state: NodeState, request: Body) -> bool:
    after, before = request.get("CreationTimeAfter"), request.get("CreationTimeBefore")
    return (
        request.get("InstanceGroupNameContains", "") in node.group.name
        and (after is None or state.launched > after)
        and (before is None or state.launched < before)
    )
