"""A node's many names in one row: Slurm's, SageMaker's, its address, and what each says of it.

ListClusterNodes names instances and mostly their DNS host names; the address, the zone and the
image stand in DescribeClusterNode alone, one call a node. Those calls go side by side, and begin
while the list is still being read. Slurm's name is Slurm's to say: `with_slurm`.

`Joiner` runs `core.join` over what was read last, with the names among Slurm's NodeAddrs resolved.
Joining is done again only when the provider's list, a NodeAddr or an answer of the resolver
changed. Names are resolved apart from it, where waiting for a resolver holds nobody up.
"""

import difflib
import functools
import re
import socket
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from ipaddress import IPv4Address
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpctl.core.compat import UTC
from hpctl.core.hostlist import HostlistError, expand
from hpctl.core.join import Joined, guessed, join, spelled
from hpctl.core.model import (
    Assessment,
    Instance,
    InstanceId,
    InstanceStatus,
    NodeName,
    ProviderView,
    SchedulerView,
)
from hpctl.core.view import jobs_on
from hpctl.errors import Absent, HpctlError, Refused, Unavailable
from hpctl.ports import Aws, Service

NEVER = datetime(1970, 1, 1, tzinfo=UTC)
KEPT_S = 60.0
"""Slurm itself asks again only when it reads its configuration."""
ASKED_S = 5.0
"""How long one round may ask: a resolver that is away takes seconds for each name."""


def ipv4(host: str) -> frozenset[IPv4Address]:
    """The IPv4 addresses of a host name, or the address itself. Blocks. Raises OSError."""
    try:
        return frozenset({IPv4Address(host)})
    except ValueError:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    return frozenset(IPv4Address(entry[4][0]) for entry in found)


class Joiner:
    """Joins views of the provider and of Slurm. One thread joins, another may `resolve`."""

    def __init__(self) -> None:
        self._of: tuple[ProviderView | None, Mapping[NodeName, str], Mapping[str, str]]
        self._of = (None, {}, {})
        self._last: tuple[ProviderView, Joined] = (ProviderView(NEVER), Joined())
        self._known: Mapping[str, str] = {}
        self._asked: dict[str, float] = {}

    @property
    def addresses(self) -> Mapping[NodeName, str]:
        """The NodeAddr of each node of the last join."""
        return self._of[1]

    def join(self, provider: ProviderView, slurm: SchedulerView) -> tuple[ProviderView, Joined]:
        """The provider's view with every instance's node as Slurm calls it, and the join itself."""
        before, addresses, resolved = self._of
        known = self._known
        now: Mapping[NodeName, str] = {name: node.address for name, node in slurm.nodes.items()}
        now = addresses if now == addresses else now
        if provider is not before or resolved is not known or now is not addresses:
            self._of = (provider, now, known)
            joined = join(provider, now, known)
            self._last = (joined.of(provider), joined)
        return self._last

    def resolve(self) -> bool:
        """Ask what the NodeAddrs that are names resolve to; whether an answer changed. Blocks.

        A name with several addresses tells nothing. What cannot be resolved any more is forgotten.
        """
        began, known = time.monotonic(), dict(self._known)
        hosts = {*self._last[1].unknown, *known}
        due = [h for h in hosts if began - self._asked.get(h, -KEPT_S) >= KEPT_S]
        for host in sorted(due, key=lambda h: self._asked.get(h, -KEPT_S)):
            if time.monotonic() - began > ASKED_S:
                break
            self._asked[host] = time.monotonic()
            known.pop(host, None)
            try:
                (address,) = ipv4(host)
            except (OSError, ValueError):
                continue
            known[host] = str(address)
        if changed := known != self._known:
            self._known = known
        return changed


def joined_now(provider: ProviderView, slurm: SchedulerView | None) -> tuple[ProviderView, Joined]:
    """For who looks once: joined, the resolver asked where that is needed."""
    joiner, nodes = Joiner(), slurm or SchedulerView(provider.as_of)
    found = joiner.join(provider, nodes)
    return joiner.join(provider, nodes) if joiner.resolve() else found


AT_ONCE = 32
"""Calls of DescribeClusterNode under way at once: as many connections as `ports.Aws` keeps."""

PAGE = 100
"""The most that ListClusterNodes gives in one page."""

UNKNOWN = "UNKNOWN"
NOT_FOUND = "NOT_FOUND"

PROTECTED = ("controller", "login")
"""Roles whose nodes no command here replaces, reboots or deletes."""


class NodeRow(Struct, frozen=True):
    """One node. What nobody said is empty; Slurm's state is UNKNOWN where Slurm was not asked,
    NOT_FOUND where it should know the node and does not, empty for head nodes outside of it.

    `status` is the API's; `message` is its last failure, which stays after the failure has gone.
    `role` is controller, login or compute, empty where neither the API nor Slurm tells.
    `unread` says why DescribeClusterNode did not answer for this node alone, or why it cannot be
    told which node of Slurm's it is.
    """

    node: str = ""
    instance_id: str = ""
    logical_id: str = ""
    ip: str = ""
    dns: str = ""
    group: str = ""
    role: str = ""
    instance_name: str = ""
    instance_type: str = ""
    zone: str = ""
    status: str = ""
    message: str = ""
    launched: datetime | None = None
    image: str = ""
    image_status: str = ""
    capacity: str = ""
    slurm_state: str = UNKNOWN
    slurm_flags: tuple[str, ...] = ()
    slurm_reason: str = ""
    jobs: tuple[int, ...] = ()
    health: str = "unknown"
    health_why: str = ""
    unread: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that a person may call it by, the shown one first."""
        every = (
            self.node, self.instance_id, self.logical_id, self.ip, self.instance_name, self.dns,
        )  # fmt: skip
        return tuple(dict.fromkeys(name for name in every if name))

    @property
    def shown(self) -> str:
        """The one name by which to speak of it."""
        return self.names[0] if self.names else f"(a new node of {self.group})"


class Fleet(Struct, frozen=True):
    """A cluster as DescribeCluster tells of it, and its nodes in natural order."""

    description: Mapping[str, Any]
    rows: tuple[NodeRow, ...]


class NoSuchNode(HpctlError):
    """A name that no node has, or that several have."""


# --- reading ----------------------------------------------------------------------------------


def node_rows(aws: Aws, cluster: str, *, details: bool = True) -> tuple[NodeRow, ...]:
    """Every node of a cluster. Raises Absent where there is no such cluster, and as reads do."""
    return read_fleet(aws, cluster, details=details).rows


def read_fleet(aws: Aws, cluster: str, *, details: bool = True) -> Fleet:
    """A cluster and its nodes, read side by side.

    Without `details` a node is described only where its host name does not tell its address. A
    node that is gone by the time it is described is looked for by its logical id, which its
    replacement keeps, and else left out.
    """
    sagemaker = aws.service("sagemaker")
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        description = pool.submit(_description, sagemaker, cluster)
        asked: list[tuple[NodeRow, Future[NodeRow | None] | None]] = []
        for summary in _summaries(sagemaker, cluster):
            row = _row(summary)
            wanted = details or (row.instance_id and not row.ip)
            more = pool.submit(_detailed, sagemaker, cluster, summary) if wanted else None
            asked.append((row, more))
        whole = description.result()
        rows = [row if more is None else more.result() for row, more in asked]
    finally:
        pool.shutdown(cancel_futures=True)
    role_of = roles(whole)
    named = [replace(row, role=role_of.get(row.group, "")) for row in rows if row is not None]
    return Fleet(whole, tuple(sorted(named, key=_order)))


def _description(sagemaker: Service, cluster: str) -> Mapping[str, Any]:
    return sagemaker.read("describe_cluster", ClusterName=cluster)


def targets_of(aws: Aws, cluster: str) -> dict[str, int]:
    """The TargetCount of every group. Raises as reads do."""
    description = aws.service("sagemaker").read("describe_cluster", ClusterName=cluster)
    groups = description.get("InstanceGroups", ())
    return {str(g["InstanceGroupName"]): int(g.get("TargetCount", 0)) for g in groups}


def roles(description: Mapping[str, Any]) -> Mapping[str, str]:
    """Group to role, by SlurmConfig; nothing of a cluster that has none."""
    return {
        str(group["InstanceGroupName"]): str(group["SlurmConfig"]["NodeType"]).lower()
        for group in description.get("InstanceGroups", ())
        if group.get("SlurmConfig", {}).get("NodeType")
    }


def _summaries(sagemaker: Service, cluster: str) -> Iterator[Mapping[str, Any]]:
    """Every summary; with logical ids, and so with nodes that have no instance yet, if it can be.

    Only clusters with NodeProvisioningMode Continuous take IncludeNodeLogicalIds.
    """
    request = {"ClusterName": cluster, "MaxResults": PAGE}
    pages = sagemaker.pages(
        "list_cluster_nodes", "ClusterNodeSummaries", **request, IncludeNodeLogicalIds=True
    )
    try:
        first = next(pages, None)
    except Refused as error:
        if error.code != "ValidationException":
            raise
        yield from sagemaker.pages("list_cluster_nodes", "ClusterNodeSummaries", **request)
        return
    if first is not None:
        yield first
        yield from pages


def _detailed(sagemaker: Service, cluster: str, summary: Mapping[str, Any]) -> NodeRow | None:
    """The row with all that DescribeClusterNode knows; None where the node is gone."""
    keys = {"NodeId": "InstanceId", "NodeLogicalId": "NodeLogicalId"}
    for ask, key in keys.items():
        if not summary.get(key):
            continue
        try:
            answer = sagemaker.read(
                "describe_cluster_node", ClusterName=cluster, **{ask: summary[key]}
            )
        except Absent:
            continue
        except Unavailable as error:
            return replace(_row(summary), unread=str(error))
        return _row({**summary, **answer["NodeDetails"]})
    return None


def _row(answer: Mapping[str, Any]) -> NodeRow:
    """A row of a summary or of a node's details: their words are the same."""
    status = answer.get("InstanceStatus", {})
    dns = str(answer.get("PrivateDnsHostname") or "")
    ip = str(answer.get("PrivatePrimaryIp") or spelled(dns))
    return NodeRow(
        node=guessed(ip, dns),
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


@functools.lru_cache(32_768)
def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """A sort key that puts `n9` before `n10`."""
    return tuple(
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in re.split(r"(\d+)", name)
    )


def _order(row: NodeRow) -> tuple[Any, ...]:
    rank = PROTECTED.index(row.role) if row.role in PROTECTED else len(PROTECTED)
    return rank, natural(row.group), natural(row.node or row.logical_id or row.instance_id)


# --- joining what others know -----------------------------------------------------------------


def with_slurm(rows: Iterable[NodeRow], slurm: SchedulerView) -> tuple[NodeRow, ...]:
    """The rows with Slurm's name, state, reason and running jobs, joined as the daemon joins them.

    A node in a partition is a compute node, where the API gives no roles.
    """
    listed = list(rows)
    alive, going = InstanceStatus.RUNNING, InstanceStatus.SHUTTING_DOWN
    at = [InstanceId(row.instance_id or row.logical_id or f"{n}") for n, row in enumerate(listed)]
    answer = {
        key: Instance(
            key, going if row.status == going else alive, node=NodeName(row.node) or None,
            launched=row.launched, address=row.ip, dns=row.dns,
        )
        for key, row in zip(at, listed, strict=True)
    }  # fmt: skip
    provider, join = joined_now(ProviderView(slurm.as_of, instances=answer), slurm)
    names = [provider.instances[key].node or NodeName("") for key in at]
    holding = jobs_on([name for name in names if name in slurm.nodes], slurm.jobs)
    joined = []
    for key, name, row in zip(at, names, listed, strict=True):
        node = slurm.nodes.get(name)
        if node is None:
            # Head nodes are in slurm.conf only where somebody also runs jobs there.
            state = "" if row.role in PROTECTED else NOT_FOUND
            why = "; ".join(filter(None, (row.unread, join.unjoined.get(key, ""))))
            joined.append(replace(row, node=name, slurm_state=state, unread=why))
            continue
        jobs = (j.id for j in holding[node.name] if j.running or j.completing)
        joined.append(
            replace(
                row,
                node=str(node.name),
                role=row.role or ("compute" if node.partitions else ""),
                slurm_state=node.state,
                slurm_flags=tuple(sorted(node.flags)),
                slurm_reason=node.reason,
                jobs=tuple(sorted(int(job) for job in jobs)),
            )
        )
    return tuple(joined)


def with_health(
    rows: Iterable[NodeRow], assessments: Mapping[NodeName, Assessment]
) -> tuple[NodeRow, ...]:
    """The rows with what hpctl's daemon makes of each node's own instance."""
    joined = []
    for row in rows:
        judged = assessments.get(NodeName(row.node))
        if judged is None:
            joined.append(replace(row, health_why="no agent has reported"))
        elif judged.generation.instance not in ("", row.instance_id):
            why = f"the last report is of {judged.generation.instance}, which was here before"
            joined.append(replace(row, health_why=why))
        else:
            joined.append(replace(row, health=judged.condition.value, health_why=judged.why))
    return tuple(joined)


def with_instance_names(
    rows: Iterable[NodeRow], resource_config: Mapping[str, Any]
) -> tuple[NodeRow, ...]:
    """The rows with `<group>-<n>` from a node's resource_config.json: by instance id, else address.

    A replaced node keeps its address, and the file may be older than the replacement.
    """
    by_id: dict[str, str] = {}
    by_ip: dict[tuple[str, str], str] = {}
    for group in resource_config.get("InstanceGroups") or ():
        for instance in group.get("Instances") or ():
            name = str(instance.get("InstanceName") or "")
            by_id[str(instance.get("InstanceId"))] = name
            by_ip[str(group.get("Name")), str(instance.get("CustomerIpAddress"))] = name
    return tuple(
        replace(row, instance_name=by_id.get(row.instance_id) or by_ip.get((row.group, row.ip), ""))
        for row in rows
    )


_NODE_SHAPE = re.compile(r"i-[0-9a-f]{8,17}|ip-\d+-\d+-\d+-[\d\[\],-]+(\..+)?|\d+\.\d+\.\d+\.\d+")


def shaped_as_node(name: str) -> bool:
    """Whether it can hardly be anything but a node's name: an instance id, an ip-... name or a
    hostlist of them, an address."""
    return _NODE_SHAPE.fullmatch(name) is not None


# --- finding ----------------------------------------------------------------------------------


def find_group(description: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A group of a described cluster. Raises Absent with the nearest that there are."""
    groups: dict[str, Mapping[str, Any]] = {
        str(group["InstanceGroupName"]): group for group in description.get("InstanceGroups", ())
    }
    if name not in groups:
        near = difflib.get_close_matches(name, groups, n=2)
        fix = f"did you mean {' or '.join(near)}? " if near else ""
        raise Absent(
            f"cluster {description['ClusterName']} has no instance group {name!r}",
            f"{fix}its groups are: {', '.join(groups)}",
        )
    return groups[name]


def resolve(
    rows: Sequence[NodeRow], name: str, known: Mapping[str, Sequence[NodeRow]] | None = None
) -> NodeRow:
    """The one node of this name, of whatever kind the name is. Raises NoSuchNode.

    Upper and lower case are one. The error names near misses, or those that share the name.
    `known` is `by_name` of the rows, for who resolves many.
    """
    wanted = name.strip().casefold()
    found = (by_name(rows) if known is None else known).get(wanted, ())
    if len(found) == 1:
        return found[0]
    if found:
        every = ", ".join(row.instance_id or row.logical_id for row in found)
        raise NoSuchNode(
            f"{name!r} is the name of {len(found)} nodes: {every}", "call it by its instance id"
        )
    in_group = [row.shown for row in rows if row.group.casefold() == wanted]
    if in_group:
        some = ", ".join(in_group[:3]) + (", ..." if len(in_group) > 3 else "")
        raise NoSuchNode(f"{name!r} is an instance group, not a node", f"its nodes: {some}")
    every_name = [other for row in rows for other in row.names]
    near = difflib.get_close_matches(name, every_name, n=3, cutoff=0.75)
    fix = f"did you mean {' or '.join(near)}?" if near else "`hpctl cluster nodes` lists them"
    raise NoSuchNode(f"no node is called {name!r}", fix)


def by_name(rows: Iterable[NodeRow]) -> dict[str, list[NodeRow]]:
    """The nodes of each name, in lower case."""
    found: dict[str, list[NodeRow]] = {}
    for row in rows:
        for name in {name.casefold() for name in row.names}:
            found.setdefault(name, []).append(row)
    return found


def resolve_all(rows: Sequence[NodeRow], names: Collection[str]) -> tuple[NodeRow, ...]:
    """Each node once, in the order named; a name may be a Slurm hostlist. Raises NoSuchNode.

    The error tells of every name that is wrong.
    """
    found: dict[NodeRow, None] = {}
    wrong: list[str] = []
    known = by_name(rows)
    for name in names:
        try:
            for one in expand(name):
                found[resolve(rows, one, known)] = None
        except HostlistError as error:
            wrong.append(f"{name}: {error}")
        except NoSuchNode as error:
            wrong.append(f"{error}: {error.hint}")
    if wrong:
        raise NoSuchNode("\n  ".join(wrong))
    return tuple(found)
