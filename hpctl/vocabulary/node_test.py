"""A test of one node, as a batch job alone on it."""

from msgspec import Struct

from hpctl.vocabulary.identity import NodeName


class NodeTest(Struct, frozen=True):
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
