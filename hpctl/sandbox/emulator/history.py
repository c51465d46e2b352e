"""The history that the service keeps: ClusterOperations and ClusterEvents.

A scaling is Done once every group that it changed has as many running instances as it asked
for, and Superseded when a later one asks for another count of the same group first.
Replacements are no operations here: the service has no type for them.
"""

import zlib
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from hpctl.core.model import InstanceStatus
from hpctl.sandbox.emulator.faults import not_found, validation
from hpctl.sandbox.emulator.shapes import Body, paged, within
from hpctl.sandbox.emulator.state import Cluster, Group, Node, World, new_operation_id

IN_PROGRESS, SUPERSEDED, DONE = "InProgress", "Superseded", "Done"


class Operation(Struct):
    """One operation. `details` are its ScalingDetails or DeepHealthCheckDetails."""

    kind: str
    created: datetime
    details: list[dict[str, Any]]
    status: str = IN_PROGRESS
    id: str = field(default_factory=new_operation_id)

    def summary(self, cluster: Cluster) -> Body:
        """As ListClusterOperations shows it."""
        return {
            "OperationId": self.id,
            "ClusterArn": cluster.arn,
            "Type": self.kind,
            "Status": self.status,
            "CreationTime": self.created,
        }

    @property
    def groups(self) -> set[str]:
        """The instance groups it concerns."""
        return {str(d["InstanceGroupName"]) for d in self.details}


class Operations(Struct):
    """The operations of every cluster, oldest first. Hold the world's lock to call anything."""

    world: World
    kept: dict[str, list[Operation]] = field(default_factory=dict)

    def scaling(
        self, cluster: Cluster, before: Mapping[str, Body], after: Mapping[str, Body]
    ) -> str:
        """Note that counts were changed; the operation's id, "" where none was.

        Both are counts by group, as `counts_of` gives them.
        """
        details = [
            {
                "InstanceGroupName": name,
                "Status": IN_PROGRESS,
                "Original": before.get(name, {"CurrentCount": 0, "TargetCount": 0}),
                "Desired": desired,
            }
            for name, desired in after.items()
            if before.get(name, {}).get("TargetCount", 0) != desired["TargetCount"]
        ]
        if not details:
            return ""
        for earlier in self.active(cluster, "Scaling"):
            for detail in earlier.details:
                if detail["InstanceGroupName"] in {d["InstanceGroupName"] for d in details}:
                    detail["Status"] = SUPERSEDED
            _conclude(earlier)
        return self._add(cluster, Operation("Scaling", self.world.now(), details)).id

    def health_check(self, cluster: Cluster, details: list[Body]) -> Operation:
        """Note that deep health checks began."""
        return self._add(cluster, Operation("DeepHealthCheck", self.world.now(), details))

    def active(self, cluster: Cluster, kind: str = "") -> list[Operation]:
        """The operations in progress, of one kind where it is named."""
        return [
            operation
            for operation in self.kept.get(cluster.arn, ())
            if operation.status == IN_PROGRESS and kind in ("", operation.kind)
        ]

    def settle(self, cluster: Cluster) -> None:
        """Look which scalings have come to their end."""
        for operation in self.active(cluster, "Scaling"):
            for detail in operation.details:
                if detail["Status"] == IN_PROGRESS and _reached(cluster, detail):
                    detail["Status"] = DONE
            _conclude(operation)

    def active_in(self, cluster: Cluster, group: Group) -> Body:
        """ActiveOperations of a group: how many are in progress. The model knows Scaling alone."""
        found: dict[str, int] = {}
        for operation in self.active(cluster, "Scaling"):
            if any(
                d["InstanceGroupName"] == group.name and d.get("Status", IN_PROGRESS) == IN_PROGRESS
                for d in operation.details
            ):
                found[operation.kind] = found.get(operation.kind, 0) + 1
        return found

    # --- the API ------------------------------------------------------------------------------

    def list_operations(self, request: Body) -> Body:
        """ListClusterOperations: newest first unless asked otherwise."""
        cluster = self.world.cluster(request["ClusterName"])
        found = [
            operation
            for operation in self.kept.get(cluster.arn, ())
            if request.get("Status") in (None, operation.status)
            and request.get("Type") in (None, operation.kind)
            and within(operation.created, request)
        ]
        if request.get("SortOrder") != "Ascending":
            found.reverse()
        return paged("ClusterOperationSummaries", found, request, lambda one: one.summary(cluster))

    def describe_operation(self, request: Body) -> Body:
        """DescribeClusterOperation."""
        cluster = self.world.cluster(request["ClusterName"])
        for operation in self.kept.get(cluster.arn, ()):
            if operation.id == request["OperationId"]:
                key = "ScalingDetails" if operation.kind == "Scaling" else "DeepHealthCheckDetails"
                return {**operation.summary(cluster), key: operation.details}
        raise not_found(f"Operation {request['OperationId']} not found.")

    def _add(self, cluster: Cluster, operation: Operation) -> Operation:
        self.kept.setdefault(cluster.arn, []).append(operation)
        return operation


def counts_of(cluster: Cluster) -> dict[str, Body]:
    """CurrentCount, TargetCount and MinCount of every group now."""
    return {
        name: {
            "CurrentCount": running(cluster, group),
            "TargetCount": group.target,
            **({"MinCount": group.minimum} if group.minimum else {}),
        }
        for name, group in cluster.groups.items()
    }


def running(cluster: Cluster, group: Group) -> int:
    """How many instances of a group are Running."""
    return sum(
        1
        for node in cluster.nodes.values()
        if node.group is group and node.state.status is InstanceStatus.RUNNING
    )


def _reached(cluster: Cluster, detail: Body) -> bool:
    name, desired = detail["InstanceGroupName"], detail["Desired"]
    group = cluster.groups.get(name)
    if group is None:
        return True
    there = [n for n in cluster.nodes.values() if n.group is group]
    wanted = int(desired["TargetCount"])
    return len(there) <= wanted <= running(cluster, group)


def _conclude(operation: Operation) -> None:
    states = {d["Status"] for d in operation.details}
    if IN_PROGRESS not in states:
        operation.status = SUPERSEDED if SUPERSEDED in states else DONE


KEPT = 500
"""The newest events that ListClusterEvents reaches back to."""


class Event(Struct, frozen=True):
    """One event. `metadata` is the EventMetadata of DescribeClusterEvent."""

    id: str
    at: datetime
    resource: str
    description: str
    level: str = "Info"
    group: str = ""
    instance_id: str = ""
    operation_id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


class Events(Struct):
    """The events of every cluster, newest last."""

    world: World
    kept: dict[str, deque[Event]] = field(default_factory=dict)

    def record(
        self,
        cluster: Cluster,
        description: str,
        *,
        node: Node | None = None,
        group: Group | None = None,
        failure: str = "",
        level: str = "",
        **more: Any,
    ) -> None:
        """Note what happened, of a node or a group where one is given; else of the cluster.

        `failure` is its FailureMessage; `more` are other members of the resource's metadata, as
        LcsExecutionState. Nothing is kept without Continuous.
        """
        if not cluster.continuous:
            return
        state = node.states[-1][1] if node else None
        event = Event(
            id=new_operation_id(),
            at=self.world.now(),
            resource="Instance" if node else "InstanceGroup" if group else "Cluster",
            description=description,
            level=level or ("Error" if failure else "Info"),
            group=node.group.name if node else group.name if group else "",
            instance_id=str(state.instance_id or "") if state else "",
            operation_id=node.operation_id if node else "",
            metadata=_metadata(node, group, failure, more),
        )
        self.kept.setdefault(cluster.arn, deque(maxlen=KEPT)).append(event)

    def list_events(self, request: Body) -> Body:
        """ListClusterEvents: the 500 newest, newest first unless asked otherwise."""
        cluster = self._cluster(request)
        found = [e for e in self.kept.get(cluster.arn, ()) if _matches(e, request)]
        found.sort(key=lambda e: e.at, reverse=request.get("SortOrder") != "Ascending")
        return paged("Events", found, request, lambda event: self._summary(cluster, event))

    def describe_event(self, request: Body) -> Body:
        """DescribeClusterEvent: the summary and its metadata."""
        cluster = self._cluster(request)
        for event in self.kept.get(cluster.arn, ()):
            if event.id == request["EventId"]:
                detail = self._summary(cluster, event)
                if event.metadata:
                    detail["EventDetails"] = {"EventMetadata": event.metadata}
                return {"EventDetails": detail}
        raise not_found(f"Event {request['EventId']} not found.")

    def _cluster(self, request: Body) -> Cluster:
        cluster = self.world.cluster(request["ClusterName"])
        if not cluster.continuous:
            raise validation(
                "Cluster events are only available with NodeProvisioningMode Continuous."
            )
        return cluster

    def _summary(self, cluster: Cluster, event: Event) -> dict[str, Any]:
        optional = {
            "InstanceGroupName": event.group,
            "InstanceId": event.instance_id,
            "OperationId": event.operation_id,
        }
        return {
            "EventId": event.id,
            "ClusterArn": cluster.arn,
            "ClusterName": cluster.name,
            "ResourceType": event.resource,
            "EventTime": event.at,
            "Description": event.description,
            "EventLevel": event.level,
            **{key: value for key, value in optional.items() if value},
        }


def _matches(event: Event, request: Body) -> bool:
    wanted = {
        "InstanceGroupName": event.group,
        "NodeId": event.instance_id,
        "ResourceType": event.resource,
        "OperationId": event.operation_id,
    }
    asked = all(request.get(key) in (None, value) for key, value in wanted.items())
    return asked and within(event.at, request, "EventTime")


def _metadata(
    node: Node | None, group: Group | None, failure: str, more: dict[str, Any]
) -> dict[str, Any]:
    told = {**({"FailureMessage": failure} if failure else {}), **more}
    if node:
        eni = f"eni-{zlib.crc32(node.logical_id.encode()):08x}"
        return {"Instance": {**told, "NodeLogicalId": node.logical_id, "CustomerEni": eni}}
    if group:
        kind = "InstanceGroupScaling" if "TargetCount" in more else "InstanceGroup"
        return {kind: told} if told else {}
    return {"Cluster": told} if told else {}
