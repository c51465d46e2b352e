"""What a watched cluster looks like at one time: the values that `watch` yields.

Words are SageMaker's own: a status here is a ClusterStatus, a group's Status, an
InstanceStatus.Status.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from hpctl.clusters.trouble import Trouble
from hpctl.core.compat import StrEnum

DELETED = "Deleted"
"""Progress.status of a cluster that the service does not know (any more)."""

RUNNING = "Running"
FAILURE = frozenset({"Failure", "Failed"})
"""The API says Failure; prose and some tools say Failed."""


class Verdict(StrEnum):
    """How a wait stands."""

    WAITING = "waiting"
    REACHED = "reached"
    FAILED = "failed"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class NodeProgress:
    """One node. `since` is when it came into its status, as far as the watch can know.

    `instance_id` is "" while nothing was launched for it, `logical_id` unless the cluster's
    provisioning is Continuous, `node` (the Slurm name) until it has an address. `trouble` says
    what a failure means.
    """

    group: str
    instance_id: str
    logical_id: str
    node: str
    status: str
    message: str
    since: datetime
    trouble: Trouble | None = None

    @property
    def key(self) -> str:
        """What it is known by from one look to the next."""
        return self.logical_id or self.instance_id

    @property
    def name(self) -> str:
        """What to call it: the Slurm name, else an id."""
        return self.node or self.instance_id or self.logical_id

    @property
    def failed(self) -> bool:
        """Whether the service gave up on it for now: it failed, or nothing could be launched.

        With Continuous provisioning what finds no capacity stays Pending without an instance. On
        a node that has one a message means nothing: the last failure's stays there.
        """
        starved = self.status == "Pending" and not self.instance_id and bool(self.message)
        return self.status in FAILURE or starved


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """An instance group: how many instances are in it, of how many that it shall have.

    `instance_types` are in the order of preference.
    """

    name: str
    instance_types: tuple[str, ...]
    status: str
    current: int
    target: int


@dataclass(frozen=True, slots=True)
class EventLine:
    """One of the cluster's events (Continuous provisioning only)."""

    at: datetime
    level: str
    text: str
    group: str = ""
    instance_id: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a cluster.

    `waited_s` is since the watch began, `still_s` since anything changed but failed nodes; `seen`
    holds the statuses that the cluster has had meanwhile. `failures` are the nodes that failed
    during the watch and have not come up since, also those that the service has taken away again.
    `events` are those since the look before.
    `unread` says why this look failed: everything else is then as the look before had it.
    `by_api`: every group has its SlurmConfig.
    """

    cluster: str
    status: str
    at: datetime
    arn: str = ""
    failure: str = ""
    groups: tuple[GroupProgress, ...] = ()
    nodes: tuple[NodeProgress, ...] = ()
    failures: tuple[NodeProgress, ...] = ()
    events: tuple[EventLine, ...] = ()
    waited_s: float = 0.0
    still_s: float = 0.0
    seen: frozenset[str] = frozenset()
    unread: str = ""
    by_api: bool = False
    verdict: Verdict = Verdict.WAITING
    why: str = ""

    @property
    def targets(self) -> Mapping[str, int]:
        """The TargetCount of every group."""
        return {g.name: g.target for g in self.groups}

    @property
    def failed_nodes(self) -> tuple[NodeProgress, ...]:
        """The nodes that are failed now."""
        return tuple(n for n in self.nodes if n.failed)

    @property
    def ended(self) -> bool:
        """Whether this is the last look."""
        return self.verdict is not Verdict.WAITING
