"""What Slurm's power saving does to a node, in words.

slurmctld stops idle nodes (SuspendProgram) and starts them for a job (ResumeProgram). A stopped
node has no agent and no slurmd, and that is no fault. A drain of a node that is being started
requeues the job that waits for it.
"""

from typing import Final

from hpctl.vocabulary.slurm_facts import SlurmNode

_RESUME_FAILED: Final = "ResumeTimeout reached"
"""slurmctld's Reason of a node that it started and that did not register in time. It starts such
a node for no other job."""


def has_node_failed_to_resume(node: SlurmNode) -> bool:
    """Return whether slurmctld has started a node that did not register within ResumeTimeout."""
    return node.down and node.reason == _RESUME_FAILED


def describe_node_power_saving(node: SlurmNode) -> str:
    """Return what Slurm's power saving does to a node, as a clause; "" where it does nothing."""
    if has_node_failed_to_resume(node):
        return "Slurm powered the node up, and it did not register within ResumeTimeout"
    if node.is_powered_down:
        return "Slurm has powered the node down"
    return "Slurm powers the node up" if node.is_powering_up else ""
