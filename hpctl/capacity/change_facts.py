"""What is known of a change of capacity while it is under way."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from hpctl.vocabulary.change import ClusterChange
from hpctl.vocabulary.cloud_facts import Instance, InstanceGroup
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.model import Finding
from hpctl.vocabulary.recovery import RecoveryDecisionContext, StepKind
from hpctl.vocabulary.slurm_facts import SlurmJob


class CapacityChangeFacts(Struct, frozen=True):
    """What is known now of what a change is about.

    `cloud_at`: when the provider was read. `cloud_fresh`: that is young enough to act on.
    `instances`: those of the group. `unregistered`: nodes of running ones that Slurm does not serve
    yet. `busy`: why a node cannot be reserved, empty where it can. `unwanted`: why the change is no
    longer wanted. `reserved`: what the reservation holds. `job`: that of its test, and `results`
    what the node's agent reports of it, once it has reported all. `able_since`: see `PlanningView`.
    """

    cloud_at: datetime
    cloud_fresh: bool = False
    group: InstanceGroup | None = None
    instances: tuple[Instance, ...] = ()
    unregistered: tuple[NodeName, ...] = ()
    busy: str = ""
    unwanted: str = ""
    reserved: frozenset[NodeName] = frozenset()
    job: SlurmJob | None = None
    results: tuple[Finding, ...] = ()
    able_since: datetime | None = None


ChangeCase = RecoveryDecisionContext[ClusterChange, CapacityChangeFacts]


def is_last_change_step_accepted(c: ChangeCase, kind: StepKind) -> bool:
    """Return whether the last step of a kind was accepted."""
    last = c.last(kind)
    return last is not None and last.accepted
