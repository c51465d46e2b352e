"""What was found out, part by part. A part that nobody asked about is empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpctl.clusters.validate import (
    bucket_facts,
    capacity_facts,
    living_facts,
    model_facts,
    network_facts,
    quota_facts,
    role_facts,
    storage_facts,
)
from hpctl.clusters.validate.script_facts import ScriptFacts
from hpctl.clusters.validate.wanted import Group, Wanted
from hpctl.ports import Aws


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that a judge may look at."""

    region: str = ""
    model: model_facts.ModelFacts = field(default_factory=model_facts.ModelFacts)
    scripts: ScriptFacts = field(default_factory=ScriptFacts)
    network: network_facts.NetworkFacts = field(default_factory=network_facts.NetworkFacts)
    storage: storage_facts.StorageFacts = field(default_factory=storage_facts.StorageFacts)
    bucket: bucket_facts.BucketFacts = field(default_factory=bucket_facts.BucketFacts)
    role: role_facts.RoleFacts = field(default_factory=role_facts.RoleFacts)
    quota: quota_facts.QuotaFacts = field(default_factory=quota_facts.QuotaFacts)
    capacity: capacity_facts.CapacityFacts = field(default_factory=capacity_facts.CapacityFacts)
    living: living_facts.LivingFacts = field(default_factory=living_facts.LivingFacts)

    def new_nodes(self, group: Group) -> int:
        """How many instances of a group are not there yet."""
        return max(0, group.count - self.living.count(group.name))

    def has_efa(self, group: Group) -> bool:
        """Whether the nodes of a group train over EFA."""
        return any(self.network.efa(kind) for kind in group.types)


GATHERS: Mapping[str, Callable[[Aws, Wanted], Any]] = {
    "network": network_facts.gather,
    "storage": storage_facts.gather,
    "bucket": bucket_facts.gather,
    "role": role_facts.gather,
    "quota": quota_facts.gather,
    "capacity": capacity_facts.gather,
    "living": living_facts.gather,
}
"""Who fills which part. `scripts` is read from disk."""
