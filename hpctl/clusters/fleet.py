"""A node's many names in one row: Slurm's, SageMaker's, its address, and what each says of it.

ListClusterNodes names instances and mostly their DNS host names; the address, the zone and the
image stand in DescribeClusterNode alone, one call a node. Those calls go side by side, and begin
while the list is still being read. Slurm's name is Slurm's to say: `with_slurm`.

`InstanceToNodeMatcher` runs `instance_join` over what was read last, with the names among Slurm's
NodeAddrs resolved. Joining is done again only when the provider's list, a NodeAddr or an answer of
the resolver changed. Names are resolved apart from it, where waiting for a resolver delays nothing.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from hpctl.toolkit.errors import HpctlError

AT_ONCE = 32
"""Calls of DescribeClusterNode under way at once: as many connections as `ports.AwsClientFactory`
keeps."""


PAGE = 100
"""The most that ListClusterNodes gives in one page."""


UNKNOWN = "UNKNOWN"


NOT_FOUND = "NOT_FOUND"


PROTECTED = ("controller", "login")
"""Roles whose nodes no command here replaces, reboots or deletes."""


class NodeRow(Struct, frozen=True):
    """One node. What is unknown is empty; Slurm's state is UNKNOWN where Slurm was not asked,
    NOT_FOUND where it should know the node and does not, empty for head nodes outside of it.

    `status` is the API's; `message` is its last failure, which stays after the failure has gone.
    `role` is controller, login or compute, empty where neither the API nor Slurm tells.
    `unread` says why DescribeClusterNode did not answer for this node only, or why it cannot be
    matched to a node of Slurm's.
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
        """Return everything that a person may call it by, the shown one first."""
        every = (
            self.node, self.instance_id, self.logical_id, self.ip, self.instance_name, self.dns,
        )  # fmt: skip
        return tuple(dict.fromkeys(name for name in every if name))

    @property
    def display_name(self) -> str:
        """Return the one name by which to speak of it."""
        return self.names[0] if self.names else f"(a new node of {self.group})"


class Fleet(Struct, frozen=True):
    """A cluster as DescribeCluster tells of it, and its nodes in natural order."""

    description: Mapping[str, Any]
    rows: tuple[NodeRow, ...]


class NodeLookupError(HpctlError):
    """A name that no node has, or that several have."""
