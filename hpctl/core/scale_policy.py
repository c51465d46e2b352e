"""The numbers of autoscaling and of spares. Both are off until a file names a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Between how many instances a group may be scaled.

    `partition` is the Slurm partition whose jobs it serves; empty: those of its living nodes.
    """

    min_count: int
    max_count: int
    partition: str = ""


@dataclass(frozen=True, slots=True)
class AutoscalePolicy:
    """When a group grows or shrinks. A job's partition may be served by several groups: in order.

    `up_after_s`: how long jobs must have waited for nodes. `down_after_s`: how long a node must
    have been idle. `cooldown_s`: after a change has ended, how long the group does not turn
    round, nor is asked again after a refusal. `step`: the most instances in one change.
    `adds_per_day` and `hours_per_day` bound what is added in any 24 hours: instances, and
    instance-hours of what was added (None: no bound).
    """

    enabled: bool = False
    groups: Mapping[str, GroupLimits] = field(default_factory=lambda: MappingProxyType({}))
    up_after_s: float = 120.0
    down_after_s: float = 1800.0
    cooldown_s: float = 600.0
    step: int = 8
    adds_per_day: int = 50
    hours_per_day: float | None = None
    arrive_deadline_s: float = 5400.0
    leave_deadline_s: float = 3600.0
