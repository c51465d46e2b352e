"""An instance group as the provider counts it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """One group of DescribeCluster's answer, in its words. `target` is what was last asked for."""

    name: str
    instance_type: str = ""
    current: int = 0
    target: int = 0
    status: str = ""
