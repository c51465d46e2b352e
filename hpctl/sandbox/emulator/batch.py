"""BatchReplace-, BatchReboot-, BatchDelete- and BatchAddClusterNodes.

Answers are per node: a call that is accepted may hold refusals. None but BatchAdd takes a client
token, so a repeated call is a second order; what protects the fresh machine is its fresh id.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hpctl.core.model import InstanceStatus, LogicalId
from hpctl.sandbox.emulator.errors import validation
from hpctl.sandbox.emulator.faults import FaultKind
from hpctl.sandbox.emulator.nodes import CONTINUOUS_ONLY
from hpctl.sandbox.emulator.operations import counts_of
from hpctl.sandbox.emulator.scaling import Scaling
from hpctl.sandbox.emulator.shapes import Body
from hpctl.sandbox.emulator.specs import ONE_CONTROLLER
from hpctl.sandbox.emulator.state import Cluster, Node, World
from hpctl.sandbox.emulator.walks import Walks

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


@dataclass(slots=True)
class BatchOperations:
    """The four batch operations."""

    world: World
    walks: Walks
    scaling: Scaling

    def replace(self, request: Body) -> Body:
        """BatchReplaceClusterNodes: at most 25; never a controller."""
        cluster = self._ready(request)

        def check(node: Node) -> Refusal | None:
            if node.group.role == "controller":
                return "InvalidInstanceStatus", "Slurm controller nodes cannot be replaced."
            return _busy(node) or _status(node, _REPLACEABLE, "replacement")

        def begin(node: Node) -> None:
            self.walks.launches.claim(node, "Replace")
            self.walks.replace(cluster, node)

        return self._each(cluster, request, "BatchReplaceClusterNodes", check, begin)

    def reboot(self, request: Body) -> Body:
        """BatchRebootClusterNodes: at most 25; the service does reboot a controller."""
        cluster = self._ready(request)

        def check(node: Node) -> Refusal | None:
            return _busy(node) or _status(node, (InstanceStatus.RUNNING,), "a reboot")

        def begin(node: Node) -> None:
            self.walks.launches.claim(node, "Reboot")
            self.walks.reboot(cluster, node)

        return self._each(cluster, request, "BatchRebootClusterNodes", check, begin)

    def delete(self, request: Body) -> Body:
        """BatchDeleteClusterNodes: lowers the groups' counts; refused whole where none may go."""
        cluster = self._scalable(request)
        ids = len(request.get("NodeIds", ()))
        logical = len(request.get("NodeLogicalIds", ()))
        if ids > MAX_DELETED_BY_ID or (logical and ids + logical > MAX_DELETED):
            raise validation("Too many nodes in one request: at most 99, with logical ids 50.")
        going: list[Node] = []

        def check(node: Node) -> Refusal | None:
            if node.group.role == "controller":
                return "InvalidNodeStatus", "Slurm controller nodes cannot be deleted."
            waits = node.operation == "Create" and not node.state.instance_id
            return ("NodeIdInUse", _busy_text(node)) if node.operation and not waits else None

        def begin(node: Node) -> None:
            if not node.operation:
                self.walks.launches.claim(node, "Delete")
            going.append(node)

        body = self._each(cluster, request, "BatchDeleteClusterNodes", check, begin)
        if not going and not any(key.startswith("Successful") for key in body):
            first = next(iter(body.values()))[0]
            raise validation(f"No node could be deleted: {first['Message']}")
        before = counts_of(cluster)
        for node in going:
            node.group.target -= 1
        if going:
            self.scaling.begun(cluster, before)
            self.walks.delete(cluster, going, lambda: None)
        return body

    def add(self, request: Body) -> Body:
        """BatchAddClusterNodes: Continuous only; the one call with a client token (8 hours)."""
        cluster = self._scalable(request)
        if not cluster.continuous:
            raise validation(CONTINUOUS_ONLY.format("BatchAddClusterNodes"))
        wanted = request["NodesToAdd"]
        if sum(w["IncrementTargetCountBy"] for w in wanted) > MAX_ADDED:
            raise validation(f"At most {MAX_ADDED} nodes can be added in one request.")
        token = request.get("ClientToken", "")
        if token in cluster.added:
            at, before, nodes = cluster.added[token]
            if time.monotonic() - at < TOKEN_VALID_S:
                if before != wanted:
                    raise validation("ClientToken was used with other parameters.")
                return _added(cluster, nodes, [])
        for entry in wanted:
            group = cluster.groups.get(entry["InstanceGroupName"])
            if group and group.role == "controller":
                # Continuous needs SlurmConfig, with which there is one controller.
                raise validation(ONE_CONTROLLER.format(group.name))
        self._check_quota(cluster, wanted)
        before = counts_of(cluster)
        new: list[Node] = []
        failed: list[Body] = []
        for entry in wanted:
            refused, made = self._grow(cluster, entry)
            failed += refused
            new += made
        ids = [n.logical_id for n in new]
        if token:
            cluster.added[token] = (time.monotonic(), wanted, ids)
        body = _added(cluster, ids, failed)
        launches = self.walks.launches
        self.scaling.begun(cluster, before)
        launches.threads.spawn(
            lambda: launches.launch_all(cluster, new, launches.timings.boot_s),
            f"add-{cluster.name}",
        )
        return body

    # --- inside -------------------------------------------------------------------------------

    def _grow(self, cluster: Cluster, entry: Body) -> tuple[list[Body], list[Node]]:
        """One entry of NodesToAdd: what is refused of it, and the nodes it made."""
        group = cluster.groups.get(entry["InstanceGroupName"])
        if group is None:
            return [_refused(entry, "InstanceGroupNotFound", "not found")], []
        if group.phase:
            what = f"is {group.phase}"
            return [_refused(entry, "InvalidInstanceGroupStatus", what)], []
        if not set(entry.get("InstanceTypes", ())) <= set(group.instance_types):
            what = f"has only {', '.join(group.instance_types)}"
            return [_refused(entry, "IncompatibleInstanceTypes", what)], []
        zone = self.world.zone_of(cluster, group)
        if zone not in entry.get("AvailabilityZones", [zone]):
            return [_refused(entry, "IncompatibleAvailabilityZones", f"is in {zone}")], []
        made = []
        group.target += entry["IncrementTargetCountBy"]
        for _ in range(entry["IncrementTargetCountBy"]):
            node = self.world.new_node(cluster, group, launched=False)
            self.walks.launches.claim(node, "Create")
            made.append(node)
        return [], made

    def _check_quota(self, cluster: Cluster, wanted: list[Body]) -> None:
        specs: dict[str, Body] = {}
        for entry in wanted:
            if group := cluster.groups.get(entry["InstanceGroupName"]):
                count = group.target + entry["IncrementTargetCountBy"]
                specs[group.name] = {**group.spec, "InstanceCount": count}
        self.walks.launches.capacity.check_quota(cluster, specs)

    def _scalable(self, request: Body) -> Cluster:
        """A cluster whose counts may be changed."""
        cluster = self._ready(request)
        if not self.scaling.batches_allowed(cluster):
            raise validation("An instance group has not reached its MinInstanceCount yet.")
        return cluster

    def _ready(self, request: Body) -> Cluster:
        cluster = self.world.cluster(request["ClusterName"])
        if cluster.status != "InService":
            raise validation(
                f"Cluster {cluster.name} is {cluster.status}; it must be InService for this."
            )
        return cluster

    def _absent(self, cluster: Cluster, name: str, words: _Words) -> Refusal:
        """What is said of an id that no node has now; a replaced one may linger a while."""
        code = self.world.unknowns.lingering_code
        if not cluster.lingering(name) or code == "InstanceIdNotFound":
            return words.not_found, f"Node {name} not found."
        text = "Another operation (Replace) is in progress for this node. Wait or retry."
        return words.of_code.get(code, code), text

    def _each(
        self,
        cluster: Cluster,
        request: Body,
        operation: str,
        check: Callable[[Node], Refusal | None],
        begin: Callable[[Node], None],
    ) -> Body:
        """Order what can be ordered, refuse the rest, and answer for every id named."""
        old = self.walks.launches.faults.holds(FaultKind.UNPATCHED, operation=operation)
        if old and not any(node.updated for node in cluster.nodes.values()):
            # Its words are not known: nobody has published them.
            raise validation(f"Cluster {cluster.name} does not support {operation} yet.")
        if not any(request.get(key) for key, _ in _BY):
            raise validation("Either NodeIds or NodeLogicalIds must be provided.")
        if request.get("NodeLogicalIds") and not cluster.continuous:
            raise validation(CONTINUOUS_ONLY.format("NodeLogicalIds"))
        words = _Words.of(operation)
        body: Body = {}
        for key, suffix in _BY:
            for name in dict.fromkeys(request.get(key, ())):
                node = _find(cluster, key, name)
                fault = self.walks.launches.faults.take(
                    FaultKind.FAIL_NODES, operation=operation, names=node.names if node else (name,)
                )
                refusal = check(node) if node else self._absent(cluster, name, words)
                if node and refusal is None and (fault is None or fault.accepted):
                    begin(node)
                if fault:
                    code = words.of_code.get(fault.code, fault.code)
                    refusal = (code, "The operation on this node failed.")
                if refusal is None:
                    body.setdefault(f"Successful{suffix}", []).append(name)
                elif refusal[0]:
                    entry = {words.id[key]: name, words.code: refusal[0], "Message": refusal[1]}
                    body.setdefault(f"Failed{suffix}", []).append(entry)
        return body


@dataclass(frozen=True, slots=True)
class _Words:
    """BatchDelete says the same things in other words."""

    code: str
    not_found: str
    id: dict[str, str]
    of_code: dict[str, str]

    @classmethod
    def of(cls, operation: str) -> _Words:
        ids = {"NodeIds": "NodeId", "NodeLogicalIds": "NodeLogicalId"}
        if operation == "BatchDeleteClusterNodes":
            return cls("Code", "NodeIdNotFound", ids, _DELETE_CODES)
        return cls("ErrorCode", "InstanceIdNotFound", ids, {})


def _find(cluster: Cluster, key: str, name: str) -> Node | None:
    return cluster.of_instance(name) if key == "NodeIds" else cluster.nodes.get(LogicalId(name))


def _busy_text(node: Node) -> str:
    return f"Another operation ({node.operation}) is in progress for this node. Wait or retry."


def _busy(node: Node) -> Refusal | None:
    return ("InstanceIdInUse", _busy_text(node)) if node.operation else None


def _status(node: Node, allowed: tuple[InstanceStatus, ...], what: str) -> Refusal | None:
    status = node.state.status
    if status in allowed:
        return None
    return "InvalidInstanceStatus", f"Instance status {status} does not allow {what}."


def _refused(entry: Body, code: str, what: str) -> Body:
    return {
        "InstanceGroupName": entry["InstanceGroupName"],
        "ErrorCode": code,
        "FailedCount": entry["IncrementTargetCountBy"],
        "Message": f"Instance group {entry['InstanceGroupName']} {what}.",
    }


def _added(cluster: Cluster, nodes: list[LogicalId], failed: list[Body]) -> Body:
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
