"""Follow a cluster until something about it holds, and read the events that it has.

What every command that waits is built on. One look is DescribeCluster, ListClusterNodes and, where
provisioning is Continuous, the events since the look before. A failed look is shown and tried
again: a network that is away for a minute does not end a wait of an hour.

Only clusters with NodeProvisioningMode Continuous have events, of which the service keeps the 500
newest. Why something failed stands in DescribeClusterEvent alone, in one of several places.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.clusters import failures
from hpctl.clusters.progress import (
    DELETED,
    RUNNING,
    ClusterProgress,
    ClusterProgressEvent,
    ClusterWaitState,
    InstanceGroupProgress,
    NodeProgress,
    Until,
    list_group_instance_types,
)
from hpctl.sagemaker.failure_causes import InstancePlacement, NodeFailureCause, NodeFailureKind
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import (
    HpctlError,
    ResourceNotFound,
    ServiceCallRefused,
    ServiceUnavailable,
)
from hpctl.vocabulary.ports import AwsClientFactory, AwsServiceClient

AT_ONCE = 16
LEVELS = ("Info", "Warn", "Error")


class ClusterEvent(Struct, frozen=True):
    """One event. `failure` is its FailureMessage, `lifecycle` how its lifecycle script
    stood."""

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


class ClusterEventsUnsupportedError(HpctlError):
    """The cluster is of the kind that has none."""


def read_cluster_events(  # noqa: PLR0913 -- the filters of the API, by keyword
    aws: AwsClientFactory,
    cluster: str,
    *,
    after: datetime | None = None,
    group: str = "",
    instance: str = "",
    levels: tuple[str, ...] = (),
) -> tuple[ClusterEvent, ...]:
    """Return the events, oldest first, those that warn or fail with their details.

    Raises ClusterEventsUnsupportedError, ResourceNotFound, Refused, Unavailable. A detail that
    cannot be read is empty.
    """
    sagemaker = aws.service("sagemaker")
    request: dict[str, Any] = {"ClusterName": cluster, "MaxResults": 100}
    request |= {"EventTimeAfter": after} if after else {}
    request |= {"InstanceGroupName": group} if group else {}
    request |= {"NodeId": instance} if instance else {}
    found = [
        event
        for event in map(
            _make_cluster_event, _list_sagemaker_cluster_events(sagemaker, cluster, request)
        )
        if not levels or event.level in levels
    ]
    wanted = [event for event in found if event.level != "Info"]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        more = list(
            pool.map(lambda event: _add_cluster_event_details(sagemaker, cluster, event), wanted)
        )
    detailed = {event.id: event for event in more}
    return tuple(sorted((detailed.get(e.id, e) for e in found), key=lambda e: (e.at, e.id)))


def _list_sagemaker_cluster_events(
    sagemaker: AwsServiceClient, cluster: str, request: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    try:
        yield from sagemaker.pages("list_cluster_events", "Events", **request)
    except ServiceCallRefused as error:
        if error.code != "ValidationException":
            raise
        description = sagemaker.read("describe_cluster", ClusterName=cluster)
        if description.get("NodeProvisioningMode") == "Continuous":
            raise
        raise ClusterEventsUnsupportedError(
            f"SageMaker has no events of cluster {cluster}: its NodeProvisioningMode is not "
            "Continuous",
            "use `hpctl cluster instances` (why a node failed), `hpctl explain`,"
            " and the log group /aws/sagemaker/Clusters/<name>/<id> in CloudWatch",
        ) from error


def _make_cluster_event(answer: Mapping[str, Any]) -> ClusterEvent:
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


def _add_cluster_event_details(
    sagemaker: AwsServiceClient, cluster: str, event: ClusterEvent
) -> ClusterEvent:
    metadata = read_cluster_event_metadata(sagemaker, cluster, event.id)
    instance, health = metadata.get("Instance", {}), metadata.get("SlurmHealth", {})
    return replace(
        event,
        logical_id=str(instance.get("NodeLogicalId") or ""),
        lifecycle=str(instance.get("LcsExecutionState") or ""),
        failure=find_event_failure_message(metadata),
        slurm=" ".join(filter(None, map(health.get, ("Component", "Status", "Reason")))),
    )


def read_cluster_event_metadata(
    sagemaker: AwsServiceClient, cluster: str, event: str
) -> Mapping[str, Any]:
    """Return an event's details; none where they cannot be read."""
    try:
        answer = sagemaker.read("describe_cluster_event", ClusterName=cluster, EventId=event)
    except (ServiceCallRefused, ServiceUnavailable):
        return {}
    details = answer.get("EventDetails", {}).get("EventDetails", {})
    metadata: Mapping[str, Any] = details.get("EventMetadata", {})
    return metadata


def find_event_failure_message(metadata: Mapping[str, Any]) -> str:
    """Return the FailureMessage of an event's metadata, in whichever of its parts it is."""
    parts = [part for part in metadata.values() if isinstance(part, Mapping)]
    return next((str(p["FailureMessage"]) for p in parts if p.get("FailureMessage")), "")


EVERY_S = 10.0
TIMEOUT_S = 3 * 3600.0
"""The service itself gives a minimum count three hours (MinInstanceCount)."""

READ_A_LOOK = 4
"""Lifecycle logs, and events' details, that one look reads at most: a thousand nodes may fail."""


def watch_cluster(  # noqa: PLR0913 -- clock and intervals are keywords with defaults
    aws: AwsClientFactory,
    cluster: str,
    until: Until,
    *,
    now: Callable[[], datetime],
    sleep: Callable[[float], None],
    every_s: float = EVERY_S,
    timeout_s: float | None = TIMEOUT_S,
) -> Iterator[ClusterProgress]:
    """Looks at a cluster, `every_s` apart; the last one has a verdict other than WAITING.

    Ends when `until` says REACHED or FAILED, or with DEADLINE after `timeout_s`. Raises
    Unavailable where the very first look fails, Refused (but Absent is a look: DELETED).
    """
    view = _ClusterProgressTracker(aws, cluster, now())
    last: ClusterProgress | None = None
    while True:
        at = now()
        try:
            seen = view.look(at)
        except ServiceUnavailable as error:
            if last is None:
                raise
            waited_s = (at - view.began).total_seconds()
            seen = replace(last, at=at, waited_s=waited_s, events=(), unread=str(error))
        verdict, why = (ClusterWaitState.WAITING, "") if seen.unread else until(seen)
        if (
            verdict is ClusterWaitState.WAITING
            and timeout_s is not None
            and seen.waited_s >= timeout_s
        ):
            verdict, why = ClusterWaitState.DEADLINE, f"not there after {timeout_s:.0f} s"
        last = replace(seen, verdict=verdict, why=why)
        yield last
        if last.is_last:
            return
        sleep(every_s if timeout_s is None else min(every_s, timeout_s - seen.waited_s))


def read_cluster_progress(aws: AwsClientFactory, cluster: str, now: datetime) -> ClusterProgress:
    """Look once. Raises Unavailable, Refused; ResourceNotFound is a look with status DELETED."""
    return _ClusterProgressTracker(aws, cluster, now).look(now)


class _ClusterProgressTracker(Struct):
    """What is remembered from one look to the next."""

    aws: AwsClientFactory
    cluster: str
    began: datetime
    changed: datetime | None = None
    shape: tuple[Any, ...] = ()
    statuses: set[str] = field(default_factory=set)
    since: dict[str, tuple[str, str, datetime]] = field(default_factory=dict)
    troubles: dict[tuple[str, str], NodeFailureCause] = field(default_factory=dict)
    failures: dict[str, NodeProgress] = field(default_factory=dict)
    places: dict[str, InstancePlacement] = field(default_factory=dict)
    events_shown: set[str] = field(default_factory=set)
    logs_left: int = READ_A_LOOK
    logs_dark: bool = False
    events_left: int = READ_A_LOOK

    def look(self, at: datetime) -> ClusterProgress:
        sagemaker = self.aws.service("sagemaker")
        self.logs_left = self.events_left = READ_A_LOOK
        try:
            answer = sagemaker.read("describe_cluster", ClusterName=self.cluster)
            continuous = answer.get("NodeProvisioningMode") == "Continuous"
            more = {"IncludeNodeLogicalIds": True} if continuous else {}
            listed = list(
                sagemaker.pages(
                    "list_cluster_nodes", "ClusterNodeSummaries", ClusterName=self.cluster, **more
                )
            )
        except ResourceNotFound:
            answer, listed, continuous = {"ClusterStatus": DELETED}, [], False
        nodes = tuple(self._make_node_progress(answer, summary, at) for summary in listed)
        progress = ClusterProgress(
            cluster=str(answer.get("ClusterName", self.cluster)),
            status=str(answer["ClusterStatus"]),
            at=at,
            arn=str(answer.get("ClusterArn", "")),
            failure=str(answer.get("FailureMessage", "")),
            groups=tuple(
                _make_instance_group_progress(g) for g in answer.get("InstanceGroups", ())
            ),
            nodes=tuple(sorted(nodes, key=lambda n: (n.group, n.node, n.key))),
            events=self._read_new_cluster_events() if continuous else (),
            waited_s=(at - self.began).total_seconds(),
            by_api=all("SlurmConfig" in g for g in answer.get("InstanceGroups", ())),
        )
        return self._add_progress_history(progress)

    def _add_progress_history(self, progress: ClusterProgress) -> ClusterProgress:
        self.statuses.add(progress.status)
        for node in progress.nodes:
            if node.has_failed:
                self.failures[node.key] = node
            elif node.status == RUNNING:
                self.failures.pop(node.key, None)
        # A node that failed and is tried again goes round in circles: that is no movement.
        shape = (
            progress.status,
            progress.groups,
            {
                (n.key, n.instance_id, n.status)
                for n in progress.nodes
                if n.key not in self.failures
            },
        )
        if self.changed is None or shape != self.shape:
            self.changed, self.shape = progress.at, shape
        still_s = (progress.at - self.changed).total_seconds()
        return replace(
            progress,
            still_s=still_s,
            seen=frozenset(self.statuses),
            failures=tuple(self.failures.values()),
        )

    def _make_node_progress(
        self, answer: Mapping[str, Any], summary: Mapping[str, Any], at: datetime
    ) -> NodeProgress:
        state = summary["InstanceStatus"]
        node = NodeProgress(
            group=str(summary["InstanceGroupName"]),
            instance_id=str(summary.get("InstanceId") or ""),
            logical_id=str(summary.get("NodeLogicalId") or ""),
            node=str(summary.get("PrivateDnsHostname") or "").partition(".")[0],
            status=str(state["Status"]),
            message=str(state.get("Message") or ""),
            since=_convert_to_utc_or_default(summary.get("LaunchTime"), at),
        )
        before = self.since.get(node.key)
        if before is None:
            # Since when is unknown: what is still coming up does so since its launch.
            self.since[node.key] = (node.status, node.instance_id, node.since)
        elif before[:2] != (node.status, node.instance_id):
            self.since[node.key] = (node.status, node.instance_id, at)
        node = replace(node, since=self.since[node.key][2])
        return (
            replace(node, trouble=self._find_node_failure_cause(answer, node))
            if node.has_failed
            else node
        )

    def _find_node_failure_cause(
        self, answer: Mapping[str, Any], node: NodeProgress
    ) -> NodeFailureCause:
        """Return what a failure means. An instance's lifecycle log is read until it has a line."""
        key = (node.key, node.instance_id)
        known = self.troubles.get(key) or failures.explain_failed_node(
            self.aws, answer, node, self.places
        )
        if (
            known.cause is NodeFailureKind.LIFECYCLE
            and not known.line
            and self._consume_lifecycle_log_budget()
        ):
            # Logs that cannot be reached cost half a minute each time: once is enough.
            known, self.logs_dark = failures.add_lifecycle_log_to_failure_cause(
                self.aws, answer, node, known
            )
        self.troubles[key] = known
        return known

    def _consume_lifecycle_log_budget(self) -> bool:
        self.logs_left -= 1
        return self.logs_left >= 0 and not self.logs_dark

    def _read_new_cluster_events(self) -> tuple[ClusterProgressEvent, ...]:
        """Events since the last look, oldest first. They are an extra: a refusal is none."""
        sagemaker = self.aws.service("sagemaker")
        try:
            listed = list(
                sagemaker.pages(
                    "list_cluster_events",
                    "Events",
                    ClusterName=self.cluster,
                    EventTimeAfter=self.began,
                )
            )
        except ServiceCallRefused:
            return ()
        fresh = [e for e in listed if e["EventId"] not in self.events_shown]
        self.events_shown |= {e["EventId"] for e in fresh}
        fresh.sort(key=lambda e: e["EventTime"])
        return tuple(self._make_cluster_progress_event(sagemaker, e) for e in fresh)

    def _consume_event_describe_budget(self) -> bool:
        self.events_left -= 1
        return self.events_left >= 0

    def _make_cluster_progress_event(
        self, sagemaker: AwsServiceClient, event: Mapping[str, Any]
    ) -> ClusterProgressEvent:
        level, text = str(event.get("EventLevel", "Info")), str(event.get("Description", ""))
        if level == "Error" and self._consume_event_describe_budget():
            details = read_cluster_event_metadata(sagemaker, self.cluster, event["EventId"])
            text = f"{text} {find_event_failure_message(details)}"
        return ClusterProgressEvent(
            _convert_to_utc_or_default(event["EventTime"], self.began),
            level,
            text.strip(),
            str(event.get("InstanceGroupName", "")),
            str(event.get("InstanceId", "")),
        )


def _make_instance_group_progress(group: Mapping[str, Any]) -> InstanceGroupProgress:
    return InstanceGroupProgress(
        str(group.get("InstanceGroupName", "")),
        list_group_instance_types(group),
        str(group.get("Status", "")),
        int(group.get("CurrentCount", 0)),
        int(group.get("TargetCount", 0)),
    )


def _convert_to_utc_or_default(moment: datetime | None, otherwise: datetime) -> datetime:
    return moment.astimezone(UTC) if moment else otherwise
