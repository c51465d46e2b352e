"""The request to a node's agent for the stacks of a job's ranks."""

from typing import Final

from msgspec import Struct

CHECK: Final = "job.stacks"
"""The check of the findings by which an agent tells stacks: lines in their evidence."""


class RankStackTraceRequest(Struct, frozen=True):
    """What a head node asks an agent for: the stacks of a job's ranks. `uid`: the job's owner."""

    id: str
    job: int
    uid: int
