"""Failed nodes explained: what the service says of the failure, and what the node's own log says.

HyperPod writes each instance's log to CloudWatch Logs' group `/aws/sagemaker/Clusters/<name>/<id>`,
in the stream `LifecycleConfig/<instance group>/<instance id>`.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpctl.clusters.fleet import NodeRow
from hpctl.clusters.progress import NodeProgress, find_group_placement
from hpctl.sagemaker.failure_causes import (
    InstancePlacement,
    NodeFailureCause,
    NodeFailureKind,
    classify_failure_message,
    explain_node_failure,
)
from hpctl.toolkit.errors import HpctlError, ResourceNotFound, ServiceUnavailable
from hpctl.vocabulary.ports import AwsClientFactory

TAIL = 300
"""Newest lines that are looked at: the script has ended, so its failure is among them."""

_OURS = re.compile(r"^hpctl lifecycle: FAILED ")
"""The last line of a run of `lifecycle_scripts/` that failed: step, node, tries and why."""

_PLATFORM = re.compile(r"^\[SageMaker\]|Lifecycle scripts? (did not|failed)", re.IGNORECASE)
"""What the platform says when the script has ended: true, and no help."""

_STEP = re.compile(r"\bstep[= :]+[\"']?(?P<step>[\w.-]+)", re.IGNORECASE)
_FAILED = re.compile(r"\b(fail(ed|ure)?|fatal|error)\b|Traceback|[A-Z]\w+(Error|Exception):", re.I)
_CLUES = re.compile(r"no such file|permission denied|not found|timed out|cannot|unable", re.I)


class LifecycleLogLocation(Struct, frozen=True):
    """Where an instance's lifecycle log is."""

    group: str
    stream: str

    def __str__(self) -> str:
        return f"{self.group} {self.stream}"


class LifecycleFailureLogLine(Struct, frozen=True):
    """The line that says what failed, and the step it names. `unread`: why there is none.

    `unreachable`: the service did not answer, and another log would fail in the same way.
    """

    line: str = ""
    step: str = ""
    unread: str = ""
    unreachable: bool = False


def locate_lifecycle_log(
    cluster_arn: str, cluster: str, group: str, instance_id: str
) -> LifecycleLogLocation:
    """Return where the log of an instance of a group is."""
    cluster_id = cluster_arn.rpartition("/")[2]
    return LifecycleLogLocation(
        f"/aws/sagemaker/Clusters/{cluster}/{cluster_id}", f"LifecycleConfig/{group}/{instance_id}"
    )


def read_lifecycle_failure_log_line(
    aws: AwsClientFactory, where: LifecycleLogLocation
) -> LifecycleFailureLogLine:
    """Read the newest lines and pick the one with the cause. Never raises: the failure is reported
    elsewhere, and a log that cannot be read must not hide it.
    """
    try:
        answer = aws.service("logs").read(
            "get_log_events",
            logGroupName=where.group,
            logStreamName=where.stream,
            limit=TAIL,
            startFromHead=False,
        )
    except ResourceNotFound:
        return LifecycleFailureLogLine(unread="the log has not reached CloudWatch Logs (yet)")
    except HpctlError as error:
        return LifecycleFailureLogLine(
            unread=str(error), unreachable=isinstance(error, ServiceUnavailable)
        )
    lines = [str(event.get("message", "")).rstrip() for event in answer.get("events", ())]
    return find_lifecycle_failure_log_line([line for line in lines if line.strip()])


def find_lifecycle_failure_log_line(lines: list[str]) -> LifecycleFailureLogLine:
    """Return the line of a failed script's log that says most, searched from the end."""
    if not lines:
        return LifecycleFailureLogLine(unread="the log is empty")
    steps = [(n, m["step"]) for n, line in enumerate(lines) if (m := _STEP.search(line))]
    for pattern in (_OURS, _FAILED, _CLUES):
        for at in range(len(lines) - 1, -1, -1):
            if pattern.search(lines[at]) and not _PLATFORM.search(lines[at]):
                step = next((name for n, name in reversed(steps) if n <= at), "")
                return LifecycleFailureLogLine(lines[at].strip(), step)
    return LifecycleFailureLogLine(lines[-1].strip(), steps[-1][1] if steps else "")


EXPLAINED = 5
"""Failed nodes whose logs are read: a thousand nodes may fail, and for one reason."""


def list_failed_nodes(
    aws: AwsClientFactory, description: Mapping[str, Any], rows: Iterable[NodeRow], now: datetime
) -> tuple[NodeProgress, ...]:
    """Return the failed of these nodes, the first EXPLAINED of them with their trouble.

    `since` is the launch, or `now` where nothing was launched. Raises nothing: a log or
    a zone that cannot be read is part of the trouble.
    """
    nodes = [
        NodeProgress(
            group=row.group,
            instance_id=row.instance_id,
            logical_id=row.logical_id,
            node=row.node,
            status=row.status,
            message=row.message,
            since=row.launched or now,
        )
        for row in rows
    ]
    failed = [node for node in nodes if node.has_failed]
    places: dict[str, InstancePlacement] = {}
    dark = False
    for at, node in enumerate(failed[:EXPLAINED]):
        trouble = explain_failed_node(aws, description, node, places)
        if trouble.cause is NodeFailureKind.LIFECYCLE and not dark:
            # Logs that cannot be reached cost half a minute each time: once is enough.
            trouble, dark = add_lifecycle_log_to_failure_cause(aws, description, node, trouble)
        failed[at] = replace(node, trouble=trouble)
    return tuple(failed)


def explain_failed_node(
    aws: AwsClientFactory,
    description: Mapping[str, Any],
    node: NodeProgress,
    places: dict[str, InstancePlacement],
) -> NodeFailureCause:
    """Return what a failure means. `places` keeps where each group's instances should have come
    from."""
    if classify_failure_message(node.message) is not NodeFailureKind.CAPACITY:
        return explain_node_failure(node.message)
    if node.group not in places:
        groups: Mapping[str, Mapping[str, Any]] = {
            str(g.get("InstanceGroupName")): g for g in description.get("InstanceGroups", ())
        }
        places[node.group] = find_group_placement(aws, groups.get(node.group, {}), description)
    return explain_node_failure(node.message, places[node.group])


def add_lifecycle_log_to_failure_cause(
    aws: AwsClientFactory,
    description: Mapping[str, Any],
    node: NodeProgress,
    trouble: NodeFailureCause,
) -> tuple[NodeFailureCause, bool]:
    """Return the trouble with its instance's lifecycle log, and whether no log can be reached at
    all."""
    where = locate_lifecycle_log(
        str(description["ClusterArn"]),
        str(description["ClusterName"]),
        node.group,
        node.instance_id,
    )
    read = read_lifecycle_failure_log_line(aws, where)
    text = replace(trouble, step=read.step, line=read.line, unread=read.unread, log=str(where))
    return text, read.unreachable
