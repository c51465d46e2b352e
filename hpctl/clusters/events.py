"""What the service says it did to a cluster: its events, with what a list leaves out.

Only clusters with NodeProvisioningMode Continuous have events, of which the service keeps the 500
newest. Why something failed stands in DescribeClusterEvent alone, in one of several places.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpctl.core.compat import UTC
from hpctl.errors import HpctlError, Refused, Unavailable
from hpctl.ports import Aws, Service

AT_ONCE = 16
LEVELS = ("Info", "Warn", "Error")


class ClusterEvent(Struct, frozen=True):
    """One event. `failure` is its FailureMessage, `lifecycle` how its lifecycle script stood."""

    id: str
    at: datetime
    level: str
    resource: str
    group: str
    instance_id: str
    text: str
    operation_id: str = ""
    logical_id: str = ""
    failure: str = ""
    lifecycle: str = ""
    slurm: str = ""


class NoEvents(HpctlError):
    """The cluster is of the kind that has none."""


def events(
    aws: Aws,
    cluster: str,
    *,
    after: datetime | None = None,
    group: str = "",
    instance: str = "",
    levels: tuple[str, ...] = (),
) -> tuple[ClusterEvent, ...]:
    """The events, oldest first, those that warn or fail with their details.

    Raises NoEvents, Absent, Refused, Unavailable. A detail that cannot be read is empty.
    """
    sagemaker = aws.service("sagemaker")
    request: dict[str, Any] = {"ClusterName": cluster, "MaxResults": 100}
    request |= {"EventTimeAfter": after} if after else {}
    request |= {"InstanceGroupName": group} if group else {}
    request |= {"NodeId": instance} if instance else {}
    found = [
        event
        for event in map(_event, _listed(sagemaker, cluster, request))
        if not levels or event.level in levels
    ]
    wanted = [event for event in found if event.level != "Info"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        more = list(pool.map(lambda event: _detailed(sagemaker, cluster, event), wanted))
    detailed = {event.id: event for event in more}
    return tuple(sorted((detailed.get(e.id, e) for e in found), key=lambda e: (e.at, e.id)))


def _listed(
    sagemaker: Service, cluster: str, request: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    try:
        yield from sagemaker.pages("list_cluster_events", "Events", **request)
    except Refused as error:
        if error.code != "ValidationException":
            raise
        described = sagemaker.read("describe_cluster", ClusterName=cluster)
        if described.get("NodeProvisioningMode") == "Continuous":
            raise
        raise NoEvents(
            f"cluster {cluster} has no events: its NodeProvisioningMode is not Continuous",
            "what there is instead: `hpctl cluster nodes` (why a node failed), `hpctl explain`,"
            " and the log group /aws/sagemaker/Clusters/<name>/<id> in CloudWatch",
        ) from error


def _event(answer: Mapping[str, Any]) -> ClusterEvent:
    return ClusterEvent(
        id=str(answer["EventId"]),
        at=answer["EventTime"].astimezone(UTC),
        level=str(answer.get("EventLevel") or "Info"),
        resource=str(answer["ResourceType"]),
        group=str(answer.get("InstanceGroupName") or ""),
        instance_id=str(answer.get("InstanceId") or ""),
        text=str(answer.get("Description") or ""),
        operation_id=str(answer.get("OperationId") or ""),
    )


def _detailed(sagemaker: Service, cluster: str, event: ClusterEvent) -> ClusterEvent:
    metadata = metadata_of(sagemaker, cluster, event.id)
    instance, health = metadata.get("Instance", {}), metadata.get("SlurmHealth", {})
    return replace(
        event,
        logical_id=str(instance.get("NodeLogicalId") or ""),
        lifecycle=str(instance.get("LcsExecutionState") or ""),
        failure=failure_message(metadata),
        slurm=" ".join(filter(None, map(health.get, ("Component", "Status", "Reason")))),
    )


def metadata_of(sagemaker: Service, cluster: str, event: str) -> Mapping[str, Any]:
    """An event's details; none where they cannot be read."""
    try:
        answer = sagemaker.read("describe_cluster_event", ClusterName=cluster, EventId=event)
    except (Refused, Unavailable):
        return {}
    details = answer.get("EventDetails", {}).get("EventDetails", {})
    metadata: Mapping[str, Any] = details.get("EventMetadata", {})
    return metadata


def failure_message(metadata: Mapping[str, Any]) -> str:
    """The FailureMessage of an event's metadata, in whichever of its parts it stands."""
    parts = [part for part in metadata.values() if isinstance(part, Mapping)]
    return next((str(p["FailureMessage"]) for p in parts if p.get("FailureMessage")), "")
