"""Which nodes are close to a job: on the leaf switches, or in the NVLink blocks, that it has."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from hpctl.core.model import NodeName


def nearest(
    nodes: Iterable[NodeName], job: Collection[NodeName], leaves: Mapping[NodeName, str]
) -> list[NodeName]:
    """`nodes`, first those whose leaf has most of the job's; else in the order that they had.

    `leaves`: the leaf switch or block of each node, as Slurm's topology has it; empty where none is
    known, which leaves the order as it was.
    """
    shared = Counter(leaves[node] for node in job if node in leaves)
    return sorted(nodes, key=lambda node: -shared[leaves.get(node, "")])
