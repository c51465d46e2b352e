"""What the cloud provider says of instances."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, field

from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.identity import InstanceId, LogicalId, NodeName
from hpctl.vocabulary.isolation import ItemProcessingFailure


class InstanceGroup(Struct, frozen=True):
    """One group of DescribeCluster's answer, in its words. `target` is what was last asked for."""

    name: str
    instance_type: str = ""
    current: int = 0
    target: int = 0
    status: str = ""


class InstanceStatus(StrEnum):
    """DescribeClusterNode's InstanceStatus.Status, in SageMaker's own words."""

    RUNNING = "Running"
    FAILURE = "Failure"
    PENDING = "Pending"
    SHUTTING_DOWN = "ShuttingDown"
    SYSTEM_UPDATING = "SystemUpdating"
    DEEP_HEALTH_CHECK = "DeepHealthCheckInProgress"
    NOT_FOUND = "NotFound"
    DETACHING = "DetachInProgress"
    """It leaves this cluster for another one (MoveClusterNodes, for Continuous provisioning)."""
    ATTACHING = "AttachInProgress"
    """It comes from another cluster."""
    UNKNOWN = "unknown"
    """hpctl's own: a word that SageMaker has and hpctl has not. `Instance.message` holds it."""


LEAVING = frozenset({InstanceStatus.SHUTTING_DOWN, InstanceStatus.DETACHING})
"""The states of an instance that is about to be none of this cluster's."""


MOVED_BY_OTHERS = frozenset(
    {InstanceStatus.DETACHING, InstanceStatus.ATTACHING, InstanceStatus.UNKNOWN}
)
"""The states that no reboot, replacement or deletion of hpctl's leads to."""


IN_USE = frozenset({"InstanceIdInUse", "NodeIdInUse"})
"""The codes of a refusal because another operation works on the instance."""

GONE = frozenset({"InstanceIdNotFound", "NodeIdNotFound"})
"""The codes of a refusal because the instance no longer exists."""

BAD_STATUS = frozenset({"InvalidInstanceStatus", "InvalidNodeStatus"})
"""The codes of a refusal because the instance is between two states."""


class Instance(Struct, frozen=True):
    """One cluster node as the provider lists it; `node`, until `join`, is a guess from its host.

    `launched` is by this host's clock: it is compared with times that slurmctld has written.
    """

    id: InstanceId
    status: InstanceStatus
    group: str = ""
    node: NodeName | None = None
    logical_id: LogicalId | None = None
    protected: bool = False
    message: str = ""
    launched: datetime | None = None
    address: str = ""
    dns: str = ""


class CloudProviderView(Struct, frozen=True):
    """The provider's list of instances, read at `as_of`.

    `present` is false for a cluster without a provider (drain and requeue only).
    `automatic` is HyperPod's NodeRecovery=Automatic: the service replaces nodes automatically.
    `continuous` is NodeProvisioningMode=Continuous: groups grow and shrink beside each other.
    `unpatched` names the orders that the cluster takes only after one software update.
    `flaws`: instances that could not be read, by their node.
    """

    as_of: datetime
    present: bool = False
    automatic: bool = False
    cluster_status: str = ""
    instances: Mapping[InstanceId, Instance] = field(default_factory=dict)
    continuous: bool = False
    groups: Mapping[str, InstanceGroup] = field(default_factory=dict)
    unpatched: tuple[str, ...] = ()
    flaws: tuple[ItemProcessingFailure, ...] = ()
