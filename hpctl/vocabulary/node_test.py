"""A test of one node, as a batch job alone on it."""

from typing import Final

from msgspec import Struct

from hpctl.vocabulary.identity import NodeName

COMMENT_OF_TEST: Final = "test: "
"""How the Comment begins in which the job of a failed test leaves the end of its output."""


class NodeTestJobSpec(Struct, frozen=True):
    """What to run where, and for how long at most.

    `name` is the job's, and that of the reservation in which it runs. With `idle` it runs in no
    reservation, but behind all other jobs, and of the QOS `qos`.
    """

    name: str
    node: NodeName
    partition: str
    command: str
    limit_s: float
    idle: bool = False
    qos: str = ""
