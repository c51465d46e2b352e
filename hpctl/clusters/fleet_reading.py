"""The nodes of a cluster as the API lists them."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from msgspec.structs import replace

from hpctl.clusters.fleet import AT_ONCE, PAGE, PROTECTED, Fleet, NodeRow
from hpctl.engine.instance_resolver import make_natural_sort_key
from hpctl.toolkit.errors import ResourceNotFound, ServiceCallRefused, ServiceUnavailable
from hpctl.vocabulary.instance_join import guess_hyperpod_node_name, parse_address_from_host_name
from hpctl.vocabulary.ports import AwsClientFactory, AwsServiceClient


def read_node_rows(
    aws: AwsClientFactory, cluster: str, *, details: bool = True
) -> tuple[NodeRow, ...]:
    """Return every node of a cluster. Raises ResourceNotFound where there is no such cluster, and
    as reads do."""
    return read_fleet(aws, cluster, details=details).rows


def read_fleet(aws: AwsClientFactory, cluster: str, *, details: bool = True) -> Fleet:
    """Return a cluster and its nodes, read side by side.

    Without `details` a node is described only where its host name does not tell its address. A
    node that is gone by the time it is described is looked for by its logical id, which its
    replacement keeps, and else left out.
    """
    sagemaker = aws.service("sagemaker")
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        description = pool.submit(_describe_cluster, sagemaker, cluster)
        asked: list[tuple[NodeRow, Future[NodeRow | None] | None]] = []
        for summary in _list_node_summaries(sagemaker, cluster):
            row = _make_node_row(summary)
            wanted = details or (row.instance_id and not row.ip)
            more = pool.submit(_read_node_details, sagemaker, cluster, summary) if wanted else None
            asked.append((row, more))
        whole = description.result()
        rows = [row if more is None else more.result() for row, more in asked]
    finally:
        pool.shutdown(cancel_futures=True)
    role_of = map_group_roles(whole)
    named = [replace(row, role=role_of.get(row.group, "")) for row in rows if row is not None]
    return Fleet(whole, tuple(sorted(named, key=_make_node_row_sort_key)))


def _describe_cluster(sagemaker: AwsServiceClient, cluster: str) -> Mapping[str, Any]:
    return sagemaker.read("describe_cluster", ClusterName=cluster)


def read_group_target_counts(aws: AwsClientFactory, cluster: str) -> dict[str, int]:
    """Return the TargetCount of every group. Raises as reads do."""
    description = aws.service("sagemaker").read("describe_cluster", ClusterName=cluster)
    groups = description.get("InstanceGroups", ())
    return {str(g["InstanceGroupName"]): int(g.get("TargetCount", 0)) for g in groups}


def map_group_roles(description: Mapping[str, Any]) -> Mapping[str, str]:
    """Group to role, by SlurmConfig; nothing of a cluster that has none."""
    return {
        str(group["InstanceGroupName"]): str(group["SlurmConfig"]["NodeType"]).lower()
        for group in description.get("InstanceGroups", ())
        if group.get("SlurmConfig", {}).get("NodeType")
    }


def _list_node_summaries(sagemaker: AwsServiceClient, cluster: str) -> Iterator[Mapping[str, Any]]:
    """Yield every summary; with logical ids, and so with nodes that have no instance yet, if it can
    be.

    Only clusters with NodeProvisioningMode Continuous take IncludeNodeLogicalIds.
    """
    request = {"ClusterName": cluster, "MaxResults": PAGE}
    pages = sagemaker.pages(
        "list_cluster_nodes", "ClusterNodeSummaries", **request, IncludeNodeLogicalIds=True
    )
    try:
        first = next(pages, None)
    except ServiceCallRefused as error:
        if error.code != "ValidationException":
            raise
        yield from sagemaker.pages("list_cluster_nodes", "ClusterNodeSummaries", **request)
        return
    if first is not None:
        yield first
        yield from pages


def _read_node_details(
    sagemaker: AwsServiceClient, cluster: str, summary: Mapping[str, Any]
) -> NodeRow | None:
    """Return the row with all that DescribeClusterNode knows; None where the node is gone."""
    keys = {"NodeId": "InstanceId", "NodeLogicalId": "NodeLogicalId"}
    for ask, key in keys.items():
        if not summary.get(key):
            continue
        try:
            answer = sagemaker.read(
                "describe_cluster_node", ClusterName=cluster, **{ask: summary[key]}
            )
        except ResourceNotFound:
            continue
        except ServiceUnavailable as error:
            return replace(_make_node_row(summary), unread=str(error))
        return _make_node_row({**summary, **answer["NodeDetails"]})
    return None


def _make_node_row(answer: Mapping[str, Any]) -> NodeRow:
    """Return a row of a summary or of a node's details: their words are the same."""
    status = answer.get("InstanceStatus", {})
    dns = str(answer.get("PrivateDnsHostname") or "")
    ip = str(answer.get("PrivatePrimaryIp") or parse_address_from_host_name(dns))
    return NodeRow(
        node=guess_hyperpod_node_name(ip, dns),
        instance_id=str(answer.get("InstanceId") or ""),
        logical_id=str(answer.get("NodeLogicalId") or ""),
        ip=ip,
        dns=dns,
        group=str(answer.get("InstanceGroupName") or ""),
        instance_type=str(answer.get("InstanceType") or ""),
        zone=str(answer.get("Placement", {}).get("AvailabilityZone") or ""),
        status=str(status.get("Status") or ""),
        message=str(status.get("Message") or ""),
        launched=answer.get("LaunchTime"),
        image=str(answer.get("CurrentImageReleaseVersion") or answer.get("CurrentImageId") or ""),
        image_status=str(answer.get("ImageVersionStatus") or ""),
        capacity=str(answer.get("CapacityType") or ""),
    )


def _make_node_row_sort_key(row: NodeRow) -> tuple[Any, ...]:
    rank = PROTECTED.index(row.role) if row.role in PROTECTED else len(PROTECTED)
    return (
        rank,
        make_natural_sort_key(row.group),
        make_natural_sort_key(row.node or row.logical_id or row.instance_id),
    )
