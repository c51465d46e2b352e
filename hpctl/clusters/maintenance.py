"""Two long orders for whole groups: another image, and deep health checks on demand.

Neither takes a client token. Both show in what DescribeCluster and ListClusterOperations say, so
an order in doubt is looked for there; sent again, it would be answered with a conflict.
"""

from collections.abc import Mapping

from msgspec import Struct

EVERY_S = 10.0


LAG_S = 120.0
"""How long the API may still show the time before an order that it has taken."""


DOUBT_LOOKS, DOUBT_S = 6, 5.0


CHECKS = ("InstanceStress", "InstanceConnectivity", "MultiNodeTrainingValidation")
"""DeepHealthCheckType, in the model's words."""


IDS = 500
"""Instance ids in one group's configuration of StartClusterHealthCheck."""


UPDATING = frozenset({"Pending", "InProgress", "RollbackInProgress"})


CHECKING = "DeepHealthCheckInProgress"


class GroupMaintenanceProgress(Struct, frozen=True):
    """How far one group is: its own status, and how many of its nodes are in which."""

    name: str
    status: str
    desired: str
    nodes: Mapping[str, int]
    updated: int
    total: int


class ClusterMaintenanceProgress(Struct, frozen=True):
    """One look. `done` is the last; `failed` says what went wrong, empty where nothing did."""

    status: str
    groups: tuple[GroupMaintenanceProgress, ...]
    done: bool = False
    failed: str = ""
    unread: str = ""
