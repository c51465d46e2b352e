"""The events that the service keeps of a cluster with continuous provisioning."""

import zlib
from collections import deque
from datetime import datetime
from typing import Any

from msgspec import Struct, field

from hpctl.sandbox.emulator.faults import make_not_found_error, make_validation_error
from hpctl.sandbox.emulator.shapes import Body, build_paginated_response
from hpctl.sandbox.emulator.state import (
    EmulatedAwsRegion,
    EmulatedCluster,
    EmulatedInstanceGroup,
    EmulatedNode,
    make_operation_id,
)
from hpctl.vocabulary.cloud_facts import InstanceStatus

KEPT = 500
"""The newest events that ListClusterEvents reaches back to."""


class EmulatedEvent(Struct, frozen=True):
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


class EventHistory(Struct):
    """The events of every cluster, newest last."""

    world: EmulatedAwsRegion
    kept: dict[str, deque[EmulatedEvent]] = field(default_factory=dict)

    def record(  # noqa: PLR0913 -- members of the event, by keyword with defaults
        self,
        cluster: EmulatedCluster,
        description: str,
        *,
        node: EmulatedNode | None = None,
        group: EmulatedInstanceGroup | None = None,
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
        event = EmulatedEvent(
            id=make_operation_id(),
            at=self.world.now(),
            resource="Instance" if node else "InstanceGroup" if group else "Cluster",
            description=description,
            level=level or ("Error" if failure else "Info"),
            group=node.group.name if node else group.name if group else "",
            instance_id=str(state.instance_id or "") if state else "",
            operation_id=node.operation_id if node else "",
            metadata=_make_event_metadata(node, group, failure, more),
        )
        self.kept.setdefault(cluster.arn, deque(maxlen=KEPT)).append(event)

    def list_events(self, request: Body) -> Body:
        """ListClusterEvents: the 500 newest, newest first unless asked otherwise."""
        cluster = self._find_cluster(request)
        found = [
            e
            for e in self.kept.get(cluster.arn, ())
            if _is_event_matching_request_filters(e, request)
        ]
        found.sort(key=lambda e: e.at, reverse=request.get("SortOrder") != "Ascending")
        return build_paginated_response(
            "Events", found, request, lambda event: self._make_event_summary(cluster, event)
        )

    def describe_event(self, request: Body) -> Body:
        """DescribeClusterEvent: the summary and its metadata."""
        cluster = self._find_cluster(request)
        for event in self.kept.get(cluster.arn, ()):
            if event.id == request["EventId"]:
                detail = self._make_event_summary(cluster, event)
                if event.metadata:
                    detail["EventDetails"] = {"EventMetadata": event.metadata}
                return {"EventDetails": detail}
        raise make_not_found_error(f"Event {request['EventId']} not found.")

    def _find_cluster(self, request: Body) -> EmulatedCluster:
        cluster = self.world.cluster(request["ClusterName"])
        if not cluster.continuous:
            raise make_validation_error(
                "Cluster events are only available with NodeProvisioningMode Continuous."
            )
        return cluster

    def _make_event_summary(self, cluster: EmulatedCluster, event: EmulatedEvent) -> dict[str, Any]:
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


def _is_event_matching_request_filters(event: EmulatedEvent, request: Body) -> bool:
    wanted = {
        "InstanceGroupName": event.group,
        "NodeId": event.instance_id,
        "ResourceType": event.resource,
    }
    after, before = request.get("EventTimeAfter"), request.get("EventTimeBefore")
    asked = all(request.get(key) in (None, value) for key, value in wanted.items())
    return asked and not ((after and event.at <= after) or (before and event.at >= before))


def count_running_instances(cluster: EmulatedCluster, group: EmulatedInstanceGroup) -> int:
    """Return how many instances of a group are Running."""
    return sum(
        1
        for node in cluster.nodes.values()
        if node.group is group and node.state.status is InstanceStatus.RUNNING
    )


def _make_event_metadata(
    node: EmulatedNode | None,
    group: EmulatedInstanceGroup | None,
    failure: str,
    more: dict[str, Any],
) -> dict[str, Any]:
    known = {**({"FailureMessage": failure} if failure else {}), **more}
    if node:
        eni = f"eni-{zlib.crc32(node.logical_id.encode()):08x}"
        return {"Instance": {**known, "NodeLogicalId": node.logical_id, "CustomerEni": eni}}
    if group:
        kind = "InstanceGroupScaling" if "TargetCount" in more else "InstanceGroup"
        return {kind: known} if known else {}
    return {"Cluster": known} if known else {}
