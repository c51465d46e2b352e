"""What the oracle asks of nodes that HyperPod's health agent has marked."""

from hpctl.core.journal import State
from hpctl.core.marks import mark_of
from hpctl.core.model import NodeName
from hpctl.core.policy import Mode, Policy
from tests.properties.world import World


def wipes(world: World, policy: Policy, kind: str, name: NodeName) -> bool:
    """Whether an order has taken a mark off that the service still has to read.

    In mode own nobody reads it; giving a node back that has booted since takes off what is spent.
    """
    if policy.mode is Mode.OWN or kind == "return":
        return False
    return not mark_of(world.slurm.node(world.slurm.nodes[name]))


def forgotten(world: World, state: State) -> str:
    """A marked node that is not healed, not held with a reason, and of which no person was told."""
    for name, node in world.slurm.nodes.items():
        if not mark_of(world.slurm.node(node)) or name in state.holds:
            continue
        last = state.last_of_node.get(name)
        phase = state.nodes[last].phase if last is not None else "never treated"
        if phase not in ("escalated", "cancelled"):
            return f"{name}, marked, is {phase}"
    return ""
