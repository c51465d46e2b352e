"""Failed nodes understood: what the service's words mean, and what the node's own log says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from hpctl.clusters import lifecycle_log, zones
from hpctl.clusters.names import NodeRow
from hpctl.clusters.progress import NodeProgress
from hpctl.clusters.trouble import Cause, Trouble, Where, cause_of, understand
from hpctl.ports import Aws

EXPLAINED = 5
"""Failed nodes whose logs are read: a thousand nodes may fail, and for one reason."""


def of_rows(
    aws: Aws, described: Mapping[str, Any], rows: Iterable[NodeRow], now: datetime
) -> tuple[NodeProgress, ...]:
    """The failed of these nodes, the first EXPLAINED of them with their trouble.

    `since` is the launch, or `now` where nothing was launched. Raises nothing of its own: a log or
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
    failed = [node for node in nodes if node.failed]
    places: dict[str, Where] = {}
    dark = False
    for at, node in enumerate(failed[:EXPLAINED]):
        trouble = meaning(aws, described, node, places)
        if trouble.cause is Cause.LIFECYCLE and not dark:
            # Logs that cannot be reached cost half a minute each time: once is enough.
            trouble, dark = with_log(aws, described, node, trouble)
        failed[at] = replace(node, trouble=trouble)
    return tuple(failed)


def meaning(
    aws: Aws, described: Mapping[str, Any], node: NodeProgress, places: dict[str, Where]
) -> Trouble:
    """What a failure means. `places` keeps where each group's instances should have come from."""
    if cause_of(node.message) is not Cause.CAPACITY:
        return understand(node.message)
    if node.group not in places:
        groups: Mapping[str, Mapping[str, Any]] = {
            str(g.get("InstanceGroupName")): g for g in described.get("InstanceGroups", ())
        }
        places[node.group] = zones.of_group(aws, groups.get(node.group, {}), described)
    return understand(node.message, places[node.group])


def with_log(
    aws: Aws, described: Mapping[str, Any], node: NodeProgress, trouble: Trouble
) -> tuple[Trouble, bool]:
    """The trouble with its instance's lifecycle log, and whether no log can be reached at all."""
    where = lifecycle_log.place(
        str(described["ClusterArn"]), str(described["ClusterName"]), node.group, node.instance_id
    )
    read = lifecycle_log.failed_line(aws, where)
    told = replace(trouble, step=read.step, line=read.line, unread=read.unread, log=str(where))
    return told, read.unreachable
