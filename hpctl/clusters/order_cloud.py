"""The service for an order that a command carries out, with the operator's own credentials.

An order names the instance id. It ends with the instance, so a replacement or a deletion that was
accepted after all answers a repeat with InUse or NotFound. What a call comes to is an Outcome for
each node; observing and repeating are the loop's business.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from hpctl.clusters.fleet import Fleet, NodeRow
from hpctl.clusters.fleet_reading import read_fleet
from hpctl.clusters.node_order_plan import NodeOrderPlan, NodeOrderTarget
from hpctl.clusters.order_call import call_batch_node_operation, choose_node_id_for_api_call
from hpctl.clusters.order_terms import NodeAction
from hpctl.clusters.progress import FAILURE
from hpctl.toolkit.errors import ResourceNotFound, ServiceCallRefused, ServiceUnavailable
from hpctl.vocabulary.cloud_facts import (
    GONE,
    IN_USE,
    CloudProviderView,
    Instance,
    InstanceGroup,
    InstanceStatus,
)
from hpctl.vocabulary.identity import InstanceId, LogicalId, NodeName
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.ports import AwsClientFactory


class NodeOrderCloudProvider:
    """`hpctl.vocabulary.ports.CloudProvider` for the nodes of one order."""

    calls: Mapping[tuple[str, str], int] = MappingProxyType({})

    def __init__(
        self,
        plan: NodeOrderPlan,
        targets: Mapping[NodeName, NodeOrderTarget],
        aws: AwsClientFactory,
        now: Callable[[], datetime],
    ) -> None:
        self._plan, self._targets, self._aws, self._now = plan, targets, aws, now
        self._before: frozenset[str] | None = None
        self._names = {target.instance: name for name, target in targets.items()}
        self.rows: Mapping[NodeName, NodeRow] = {}
        """The node of each target now: its successor, else the instance of the order."""
        self.listed: Mapping[str, NodeRow] = {}
        """Every node of the cluster, by instance id or logical id."""
        self.targets_of_groups: Mapping[str, int] = {}
        """How many instances each group was last asked to have."""

    def view(self) -> CloudProviderView:
        """Return cluster and nodes as the API lists them. Raises Unavailable, ResourceNotFound,
        Refused."""
        fleet = read_fleet(self._aws, self._plan.cluster, details=False)
        if self._before is None:
            self._before = frozenset(row.instance_id for row in fleet.rows)
        self.listed = {choose_node_id_for_api_call(row): row for row in fleet.rows}
        self.rows = self._find_target_rows(fleet.rows)
        groups = _map_instance_groups_by_name(fleet)
        self.targets_of_groups = {name: group.target for name, group in groups.items()}
        instances = [self._make_instance_from_node_row(row) for row in fleet.rows]
        return CloudProviderView(
            as_of=self._now(),
            present=True,
            cluster_status=str(fleet.description.get("ClusterStatus", "")),
            instances={one.id: one for one in instances},
            groups=groups,
        )

    def find_instance_id(self, row: NodeRow) -> InstanceId:
        """Return the id by which the order knows a node: of its place, where that had no instance
        when the order was planned."""
        return InstanceId(
            row.logical_id if row.logical_id in self._names else choose_node_id_for_api_call(row)
        )

    def find_replaced_targets(self) -> dict[NodeName, str]:
        """Return the targets whose planned instance another one has replaced, and that one's id."""
        rows = {name: row for name, row in self.rows.items() if not self._targets[name].under_way}
        return {
            name: choose_node_id_for_api_call(row)
            for name, row in rows.items()
            if self.find_instance_id(row) != self._targets[name].instance
        }

    def find_instances(self) -> dict[NodeName, Instance]:
        """Return the instance of each target now."""
        return {name: self._make_instance_from_node_row(row) for name, row in self.rows.items()}

    def reboot(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """Call BatchRebootClusterNodes."""
        return self._send_batch_node_operation(NodeAction.REBOOT, instances)

    def replace(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """Call BatchReplaceClusterNodes."""
        return self._send_batch_node_operation(NodeAction.REPLACE, instances)

    def remove(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """Call BatchDeleteClusterNodes. One that is gone already is Accepted."""
        found = dict(self._send_batch_node_operation(NodeAction.DELETE, instances))
        for instance, outcome in found.items():
            if outcome.code in GONE or (
                # A call that is refused as a whole names one reason for all of its nodes.
                outcome.code == "ValidationException" and self._is_instance_gone(instance)
            ):
                found[instance] = Outcome.accepted("it was gone already")
        return found

    def add(self, group: str, count: int, size: int, token: str) -> Outcome:
        """Refuse: an order for nodes adds none."""
        return Outcome.rejected("not_ordered", "an order for nodes adds none")

    def _send_batch_node_operation(
        self, verb: NodeAction, instances: Sequence[InstanceId]
    ) -> Mapping[InstanceId, Outcome]:
        sagemaker = self._aws.service("sagemaker")
        rows = [self._find_node_row(instance) for instance in instances]
        answers = call_batch_node_operation(sagemaker, self._plan.cluster, verb, rows)
        found: dict[InstanceId, Outcome] = {}
        for instance in instances:
            outcome = answers[instance]
            target = self._targets[self._names[instance]]
            found[instance] = (
                _adjust_outcome_of_repeated_order(outcome) if target.adopted else outcome
            )
        return found

    def _find_node_row(self, instance: InstanceId) -> NodeRow:
        """Return the row that an order names: of the instance, or of a place that has none yet."""
        row = self._targets[self._names[instance]].row
        return (
            row if choose_node_id_for_api_call(row) == instance else NodeRow(instance_id=instance)
        )

    def _is_instance_gone(self, instance: InstanceId) -> bool:
        row = self._find_node_row(instance)
        way = {"NodeId": row.instance_id} if row.instance_id else {"NodeLogicalId": row.logical_id}
        service = self._aws.service("sagemaker")
        try:
            service.read("describe_cluster_node", ClusterName=self._plan.cluster, **way)
        except ResourceNotFound:
            return True
        except (ServiceCallRefused, ServiceUnavailable):
            pass
        return False

    def _find_target_rows(self, rows: Sequence[NodeRow]) -> dict[NodeName, NodeRow]:
        found: dict[NodeName, NodeRow] = {}
        deletes = self._plan.verb is NodeAction.DELETE
        for name, target in self._targets.items():
            old = next((r for r in rows if target.instance in (r.instance_id, r.logical_id)), None)
            if deletes and old is not None:
                found[name] = old
                continue
            row = self._find_replacement_row(target, rows, found) or old
            if row is not None:
                found[name] = row
        return found

    def _find_replacement_row(
        self, target: NodeOrderTarget, rows: Sequence[NodeRow], found: Mapping[NodeName, NodeRow]
    ) -> NodeRow | None:
        """Return the instance in its place: by logical id, else by address or as the only new one.

        The address is usually kept, and not guaranteed.
        """
        place = target.row.logical_id
        fresh = [r for r in rows if r.instance_id and r.instance_id != target.instance]
        if self._plan.verb is NodeAction.DELETE:
            return next((r for r in fresh if place and r.logical_id == place), None)
        for row in fresh:
            by_place = bool(row.logical_id and place)
            if (row.logical_id == place) if by_place else (row.ip == target.row.ip != ""):
                return row
        taken = {row.instance_id for row in found.values()}
        new = [r for r in fresh if r.group == target.row.group]
        known = (self._before or frozenset()) | taken
        new = [r for r in new if r.instance_id not in known]
        return new[0] if len(self._targets) == 1 and len(new) == 1 else None

    def _make_instance_from_node_row(self, row: NodeRow) -> Instance:
        known = {str(status) for status in InstanceStatus}
        status = row.status if row.status in known else str(InstanceStatus.UNKNOWN)
        status = str(InstanceStatus.FAILURE) if row.status in FAILURE else status
        return Instance(
            id=self.find_instance_id(row),
            status=InstanceStatus(status),
            group=row.group,
            logical_id=LogicalId(row.logical_id) if row.logical_id else None,
            message=row.message,
            launched=row.launched,
        )


def _map_instance_groups_by_name(fleet: Fleet) -> dict[str, InstanceGroup]:
    groups = fleet.description.get("InstanceGroups", ())
    return {
        str(group["InstanceGroupName"]): InstanceGroup(
            str(group["InstanceGroupName"]), target=int(group.get("TargetCount", 0))
        )
        for group in groups
    }


def _adjust_outcome_of_repeated_order(outcome: Outcome) -> Outcome:
    """What an answer says where an earlier command may have given the order already.

    A refusal says nothing of the first order, which may be what it is refused for.
    """
    if outcome.code in IN_USE | GONE:
        return Outcome.accepted("an earlier command ordered it")
    if outcome.kind is OutcomeKind.REJECTED:
        return Outcome.ambiguous(outcome.code, outcome.detail)
    return outcome
