"""What identifies machines, runs and recoveries: names, ids, generation and attempt."""

from __future__ import annotations

from datetime import datetime
from typing import NewType

from msgspec import Struct

NodeName = NewType("NodeName", str)


InstanceId = NewType("InstanceId", str)


LogicalId = NewType("LogicalId", str)


BootId = NewType("BootId", str)


JobId = NewType("JobId", int)


RecoveryId = NewType("RecoveryId", str)


RuleId = NewType("RuleId", str)


class NodeGeneration(Struct, frozen=True):
    """The thing that can be sick: one boot of one instance under one node name."""

    node: NodeName
    instance: InstanceId
    boot: BootId


class JobAttempt(Struct, frozen=True):
    """One run of one job. Job ids are reused; with the submit time they are not."""

    job: JobId
    submit: datetime
    restarts: int
