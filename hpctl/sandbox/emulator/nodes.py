"""What is asked of nodes: lists, the batch orders, deep health checks.

Answers are per node: a call that is accepted may hold refusals. None but BatchAdd takes a client
token, so a repeated call is a second order; what protects the fresh machine is its fresh id.
"""

import time
from collections.abc import Callable
from itertools import chain
from typing import Any

from msgspec import Struct

from hpctl.sandbox.emulator.faults import (
    FaultInjector,
    FaultKind,
    make_conflict_error,
    make_not_found_error,
    make_validation_error,
)
from hpctl.sandbox.emulator.launch import GroupScaler, NodeTransitions
from hpctl.sandbox.emulator.shapes import ONE_CONTROLLER, Body, build_paginated_response
from hpctl.sandbox.emulator.state import (
    EmulatedAwsRegion,
    EmulatedCluster,
    EmulatedNode,
    EmulatedNodeState,
    make_operation_id,
)
from hpctl.vocabulary.cloud_facts import InstanceStatus
from hpctl.vocabulary.identity import LogicalId

CONTINUOUS_ONLY = (
    "{} is only supported for clusters with NodeProvisioningMode Continuous. Use instance ids "
    "for clusters with the default provisioning mode."
)

_KEPT = (
    "LifeCycleConfig", "ThreadsPerCore", "InstanceStorageConfigs", "OverrideVpcConfig",
    "NetworkInterface",
)  # fmt: skip


class NodeOperations(Struct):
    """The two reads of nodes. Addresses stand in DescribeClusterNode only."""

    world: EmulatedAwsRegion
    faults: FaultInjector

    def list_nodes(self, request: Body) -> Body:
        """ListClusterNodes: pages of 100; nodes without an instance only where asked for."""
        cluster = self.world.cluster(request["ClusterName"])
        whole = bool(request.get("IncludeNodeLogicalIds"))
        if whole and not cluster.continuous:
            raise make_validation_error(CONTINUOUS_ONLY.format("IncludeNodeLogicalIds"))
        found = [
            (node, state)
            for node, state in self._list_nodes_visible_to_caller(cluster)
            if (whole or state.instance_id)
            and request.get("InstanceGroupNameContains", "") in node.group.name
        ]
        found.sort(key=lambda at: (at[1].launched, at[0].logical_id))
        return build_paginated_response(
            "ClusterNodeSummaries",
            found,
            request,
            lambda one: self._make_node_summary(*one, whole=whole),
        )

    def describe_node(self, request: Body) -> Body:
        """DescribeClusterNode, by instance id or, with Continuous, by logical id."""
        cluster = self.world.cluster(request["ClusterName"])
        instance, logical = request.get("NodeId"), request.get("NodeLogicalId")
        if (instance is None) == (logical is None):
            raise make_validation_error("Exactly one of NodeId and NodeLogicalId must be provided.")
        if logical is not None and not cluster.continuous:
            raise make_validation_error(CONTINUOUS_ONLY.format("NodeLogicalId"))
        node = (
            cluster.find_node_of_instance(instance)
            if instance
            else cluster.nodes.get(LogicalId(str(logical)))
        )
        if node is None:
            raise make_not_found_error(
                f"Node {instance or logical} not found in cluster {cluster.name}."
            )
        kept = {key: node.group.spec[key] for key in _KEPT if key in node.group.spec}
        software = node.group.software
        return {
            "NodeDetails": {
                **self._make_node_summary(node, node.state, whole=cluster.continuous),
                **kept,
                "PrivatePrimaryIp": node.address,
                "Placement": self.world.placement(cluster, node),
                "CurrentImageId": software.image or self.world.find_image_id(node.release),
                "DesiredImageId": software.image or self.world.find_image_id(software.desired),
                "DesiredImageReleaseVersion": software.desired,
                "CapacityType": "Spot" if node.spot else "OnDemand",
            }
        }

    def _list_nodes_visible_to_caller(
        self, cluster: EmulatedCluster
    ) -> list[tuple[EmulatedNode, EmulatedNodeState]]:
        """Return the nodes as a list shows them now: perhaps late, perhaps with some left out."""
        lag = self.faults.holds(FaultKind.LIST_LAG, operation="ListClusterNodes")
        moment = time.monotonic() - (lag.seconds if lag else 0.0)
        seen = []
        for node in (*cluster.nodes.values(), *cluster.deleted):
            state = node.get_state_at_time(moment)
            if state and not self.faults.holds(FaultKind.VANISH, names=node.names):
                seen.append((node, state))
        return seen

    def _make_node_summary(
        self, node: EmulatedNode, state: EmulatedNodeState, *, whole: bool
    ) -> dict[str, Any]:
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
            "ImageVersionStatus": self.world.get_image_version_status(node.release),
        }


TOKEN_VALID_S = 8 * 3600.0
MAX_ADDED = 50
MAX_DELETED_BY_ID = 99
MAX_DELETED = 50
"""With logical ids; by instance ids alone 99 (the service's own text says both)."""

Refusal = tuple[str, str]
_DELETE_CODES = {
    "InstanceIdNotFound": "NodeIdNotFound",
    "InvalidInstanceStatus": "InvalidNodeStatus",
    "InstanceIdInUse": "NodeIdInUse",
    "InternalServerError": "InvalidNodeStatus",
}
_BY = (("NodeIds", ""), ("NodeLogicalIds", "NodeLogicalIds"))
_REPLACEABLE = (InstanceStatus.RUNNING, InstanceStatus.FAILURE)


class BatchNodeOperations(Struct):
    """The four batch operations."""

    world: EmulatedAwsRegion
    walks: NodeTransitions
    scaling: GroupScaler

    def replace(self, request: Body) -> Body:
        """BatchReplaceClusterNodes: at most 25; never a controller."""
        cluster = self._get_cluster_in_service(request)

        def find_node_refusal(node: EmulatedNode) -> Refusal | None:
            if node.group.role == "controller":
                return "InvalidInstanceStatus", "Slurm controller nodes cannot be replaced."
            return _find_refusal_of_busy_node(node) or _find_refusal_by_node_status(
                node, _REPLACEABLE, "replacement"
            )

        def start_replacement(node: EmulatedNode) -> None:
            self.walks.launches.claim(node, "Replace")
            self.walks.replace(cluster, node)

        return self._apply_batch_operation(
            cluster, request, "BatchReplaceClusterNodes", find_node_refusal, start_replacement
        )

    def reboot(self, request: Body) -> Body:
        """BatchRebootClusterNodes: at most 25; the service does reboot a controller."""
        cluster = self._get_cluster_in_service(request)

        def find_node_reboot_refusal(node: EmulatedNode) -> Refusal | None:
            return _find_refusal_of_busy_node(node) or _find_refusal_by_node_status(
                node, (InstanceStatus.RUNNING,), "a reboot"
            )

        def start_reboot(node: EmulatedNode) -> None:
            self.walks.launches.claim(node, "Reboot")
            self.walks.reboot(cluster, node)

        return self._apply_batch_operation(
            cluster, request, "BatchRebootClusterNodes", find_node_reboot_refusal, start_reboot
        )

    def delete(self, request: Body) -> Body:
        """BatchDeleteClusterNodes: lowers the groups' counts; refused whole where none may go."""
        cluster = self._get_cluster_in_service(request)
        ids = len(request.get("NodeIds", ()))
        logical = len(request.get("NodeLogicalIds", ()))
        if ids > MAX_DELETED_BY_ID or (logical and ids + logical > MAX_DELETED):
            raise make_validation_error(
                "Too many nodes in one request: at most 99, with logical ids 50."
            )
        going: list[EmulatedNode] = []

        def find_node_deletion_refusal(node: EmulatedNode) -> Refusal | None:
            if node.group.role == "controller":
                return "InvalidNodeStatus", "Slurm controller nodes cannot be deleted."
            waits = node.operation == "Create" and not node.state.instance_id
            return None if waits else _find_refusal_of_busy_node(node)

        def start_deletion(node: EmulatedNode) -> None:
            if not node.operation:
                self.walks.launches.claim(node, "Delete")
            going.append(node)

        body = self._apply_batch_operation(
            cluster, request, "BatchDeleteClusterNodes", find_node_deletion_refusal, start_deletion
        )
        if not going and not any(key.startswith("Successful") for key in body):
            first = next(iter(body.values()))[0]
            raise make_validation_error(f"No node could be deleted: {first['Message']}")
        before = cluster.targets
        for node in going:
            node.group.target -= 1
        if going:
            self.scaling.begun(cluster, before)
            self.walks.delete(cluster, going, lambda: None)
        return body

    def add(self, request: Body) -> Body:
        """BatchAddClusterNodes: Continuous only; the one call with a client token (8 hours)."""
        cluster = self._get_cluster_in_service(request)
        if not cluster.continuous:
            raise make_validation_error(CONTINUOUS_ONLY.format("BatchAddClusterNodes"))
        wanted = request["NodesToAdd"]
        if sum(w["IncrementTargetCountBy"] for w in wanted) > MAX_ADDED:
            raise make_validation_error(f"At most {MAX_ADDED} nodes can be added in one request.")
        token = request.get("ClientToken", "")
        if token in cluster.added:
            at, before, nodes = cluster.added[token]
            if time.monotonic() - at < TOKEN_VALID_S:
                if before != wanted:
                    raise make_validation_error("ClientToken was used with other parameters.")
                return _make_add_nodes_response(cluster, nodes, [])
        for entry in wanted:
            group = cluster.groups.get(entry["InstanceGroupName"])
            if group and group.role == "controller":
                # Continuous needs SlurmConfig, with which there is one controller.
                raise make_validation_error(ONE_CONTROLLER.format(group.name))
        self._check_quota(cluster, wanted)
        before = cluster.targets
        new: list[EmulatedNode] = []
        failed: list[Body] = []
        for entry in wanted:
            refused, made = self._add_nodes_to_instance_group(cluster, entry)
            failed += refused
            new += made
        ids = [n.logical_id for n in new]
        if token:
            cluster.added[token] = (time.monotonic(), wanted, ids)
        body = _make_add_nodes_response(cluster, ids, failed)
        launches = self.walks.launches
        self.scaling.begun(cluster, before)
        launches.threads.spawn(
            lambda: launches.launch_nodes(cluster, new, launches.timings.boot_s),
            f"add-{cluster.name}",
        )
        return body

    def _add_nodes_to_instance_group(
        self, cluster: EmulatedCluster, entry: Body
    ) -> tuple[list[Body], list[EmulatedNode]]:
        """One entry of NodesToAdd: what is refused of it, and the nodes it made."""
        group = cluster.groups.get(entry["InstanceGroupName"])
        if group is None:
            return [_make_failed_group_entry(entry, "InstanceGroupNotFound", "not found")], []
        if group.phase:
            what = f"is {group.phase}"
            return [_make_failed_group_entry(entry, "InvalidInstanceGroupStatus", what)], []
        made = []
        group.target += entry["IncrementTargetCountBy"]
        for _ in range(entry["IncrementTargetCountBy"]):
            node = self.world.add_pending_node(cluster, group, launched=False)
            self.walks.launches.claim(node, "Create")
            made.append(node)
        return [], made

    def _check_quota(self, cluster: EmulatedCluster, wanted: list[Body]) -> None:
        specs: dict[str, Body] = {}
        for entry in wanted:
            group = cluster.groups.get(entry["InstanceGroupName"])
            if group:
                count = group.target + entry["IncrementTargetCountBy"]
                specs[group.name] = {**group.spec, "InstanceCount": count}
        self.walks.launches.capacity.check_quota(cluster, specs)

    def _get_cluster_in_service(self, request: Body) -> EmulatedCluster:
        cluster = self.world.cluster(request["ClusterName"])
        if cluster.status != "InService":
            raise make_validation_error(
                f"Cluster {cluster.name} is {cluster.status}; it must be InService for this."
            )
        return cluster

    def _apply_batch_operation(
        self,
        cluster: EmulatedCluster,
        request: Body,
        operation: str,
        check: Callable[[EmulatedNode], Refusal | None],
        begin: Callable[[EmulatedNode], None],
    ) -> Body:
        """Order what can be ordered, refuse the rest, and answer for every id named."""
        old = self.walks.launches.faults.holds(FaultKind.UNPATCHED, operation=operation)
        if old and not any(node.updated for node in cluster.nodes.values()):
            # Its text is not known: it is not published.
            raise make_validation_error(f"Cluster {cluster.name} does not support {operation} yet.")
        if not any(request.get(key) for key, _ in _BY):
            raise make_validation_error("Either NodeIds or NodeLogicalIds must be provided.")
        if request.get("NodeLogicalIds") and not cluster.continuous:
            raise make_validation_error(CONTINUOUS_ONLY.format("NodeLogicalIds"))
        # BatchDelete says the same things in other codes.
        deletes = operation == "BatchDeleteClusterNodes"
        key_of_code, codes = ("Code", _DELETE_CODES) if deletes else ("ErrorCode", {})
        absent = "InstanceIdNotFound"
        body: Body = {}
        for key, suffix in _BY:
            for name in dict.fromkeys(request.get(key, ())):
                node = _find_node_by_id(cluster, key, name)
                fault = self.walks.launches.faults.take(
                    FaultKind.FAIL_NODES, operation=operation, names=node.names if node else (name,)
                )
                refusal = check(node) if node else (absent, f"Node {name} not found.")
                if node and refusal is None and (fault is None or fault.accepted):
                    begin(node)
                if fault:
                    refusal = (fault.code, "The operation on this node failed.")
                if refusal is None:
                    body.setdefault(f"Successful{suffix}", []).append(name)
                elif refusal[0]:
                    code = codes.get(refusal[0], refusal[0])
                    entry = {key[:-1]: name, key_of_code: code, "Message": refusal[1]}
                    body.setdefault(f"Failed{suffix}", []).append(entry)
        return body


def _find_node_by_id(cluster: EmulatedCluster, key: str, name: str) -> EmulatedNode | None:
    return (
        cluster.find_node_of_instance(name)
        if key == "NodeIds"
        else cluster.nodes.get(LogicalId(name))
    )


def _find_refusal_of_busy_node(node: EmulatedNode) -> Refusal | None:
    text = f"Another operation ({node.operation}) is in progress for this node. Wait or retry."
    return ("InstanceIdInUse", text) if node.operation else None


def _find_refusal_by_node_status(
    node: EmulatedNode, allowed: tuple[InstanceStatus, ...], what: str
) -> Refusal | None:
    status = node.state.status
    if status in allowed:
        return None
    return "InvalidInstanceStatus", f"Instance status {status} does not allow {what}."


def _make_failed_group_entry(entry: Body, code: str, what: str) -> Body:
    return {
        "InstanceGroupName": entry["InstanceGroupName"],
        "ErrorCode": code,
        "FailedCount": entry["IncrementTargetCountBy"],
        "Message": f"Instance group {entry['InstanceGroupName']} {what}.",
    }


def _make_add_nodes_response(
    cluster: EmulatedCluster, nodes: list[LogicalId], failed: list[Body]
) -> Body:
    made = [cluster.nodes[n] for n in nodes if n in cluster.nodes]
    return {
        "Successful": [
            {
                "NodeLogicalId": n.logical_id,
                "InstanceGroupName": n.group.name,
                "Status": n.state.status,
            }
            for n in made
        ],
        "Failed": failed,
    }


def check_no_health_check_running(cluster: EmulatedCluster) -> None:
    """Raise ApiError ConflictException while deep health checks are in progress."""
    if any(one["Status"] == "InProgress" for one in cluster.checks):
        raise make_conflict_error(f"Deep health checks are in progress on cluster {cluster.name}.")


class DeepHealthCheckOperations(Struct):
    """StartClusterHealthCheck. A node that fails is rebooted or replaced, as the service does."""

    world: EmulatedAwsRegion
    walks: NodeTransitions

    def start(self, request: Body) -> Body:
        """StartClusterHealthCheck: workers only; nodes that are busy are skipped."""
        cluster = self.world.cluster(request["ClusterName"])
        if cluster.status != "InService":
            raise make_validation_error(
                f"Cluster {cluster.name} is {cluster.status}; it must be InService."
            )
        check_no_health_check_running(cluster)
        wanted = request["DeepHealthCheckConfigurations"]
        nodes = list(chain.from_iterable(self._select_nodes(cluster, config) for config in wanted))
        check = {
            "OperationId": make_operation_id(),
            "ClusterArn": cluster.arn,
            "Type": "DeepHealthCheck",
            "Status": "InProgress",
            "CreationTime": self.world.now(),
        }
        cluster.checks.append(check)
        free = [n for n in nodes if not n.operation and n.state.status is InstanceStatus.RUNNING]
        for node in free:
            self.walks.launches.claim(node, "DeepHealthCheck")
            self.walks.launches.change(
                cluster, node, InstanceStatus.DEEP_HEALTH_CHECK, "Deep health checks began."
            )

        def run_checks() -> None:
            self.walks.launches.threads.stopping.wait(self.walks.launches.timings.health_check_s)
            for node in free:
                self._apply_health_check_result(cluster, node)
            with self.world.changed:
                check["Status"] = "Done"
                self.world.changed.notify_all()

        self.walks.launches.threads.spawn(run_checks, f"health-check-{cluster.name}")
        return {"ClusterArn": cluster.arn}

    def list_operations(self, request: Body) -> Body:
        """ListClusterOperations of deep health checks, newest first; of its filters Status."""
        checks = reversed(self.world.cluster(request["ClusterName"]).checks)
        found = [one for one in checks if request.get("Status") in (None, one["Status"])]
        return build_paginated_response("ClusterOperationSummaries", found, request)

    def _select_nodes(self, cluster: EmulatedCluster, config: Body) -> list[EmulatedNode]:
        name = config["InstanceGroupName"]
        group = cluster.groups.get(name)
        if group is None:
            raise make_not_found_error(
                f"Instance group {name} not found in cluster {cluster.name}."
            )
        if group.role != "compute":
            raise make_validation_error(
                f"Instance group {name}: deep health checks are for workers only."
            )
        members = [n for n in cluster.nodes.values() if n.group is group]
        if "InstanceIds" not in config:
            return members
        by_id = {n.state.instance_id: n for n in members}
        for instance in config["InstanceIds"]:
            if instance not in by_id:
                raise make_not_found_error(
                    f"Instance {instance} not found in instance group {name}."
                )
        return [by_id[instance] for instance in config["InstanceIds"]]

    def _apply_health_check_result(self, cluster: EmulatedCluster, node: EmulatedNode) -> None:
        launches = self.walks.launches
        if node.doomed:
            launches.release(cluster, node)
            return
        fault = launches.faults.take(FaultKind.FAIL_HEALTH_CHECK, names=node.names)
        remedy = (fault.code if fault.code in ("reboot", "replace") else "replace") if fault else ""
        launches.change(cluster, node, InstanceStatus.RUNNING, "Deep health checks ended.")
        if not remedy:
            launches.release(cluster, node)
            return
        failure = (
            f"Deep health checks failed: replacementRequired: {str(remedy == 'replace').lower()} "
            f"rebootRequired: {str(remedy == 'reboot').lower()}"
        )
        launches.events.record(cluster, "Deep health check failed.", node=node, failure=failure)
        launches.claim(node, remedy.capitalize())
        if remedy == "reboot":
            self.walks.reboot(cluster, node)
        else:
            self.walks.replace(cluster, node, by="deep health check")
