"""The fault table's rows for nodes that somebody cannot reach: Slurm, the cloud, or this head node.

None rests on what a node says of itself, so a row that is treated settles first: what passes by
itself within a minute or two is shown and left alone. `hpctl.core.reach` states the findings.
"""

from __future__ import annotations

from hpctl.core.catalogue_row import Row

_OURS = "not NVIDIA's"

REACH_ROWS = (
    Row(
        "node-lost",
        "",
        "B",
        "the agent is silent, and Slurm or the cloud agrees that the node is gone",
        _OURS,
        "two independent observers agree",
    ),
    Row(
        "slurm-down",
        "",
        "B",
        "slurmctld set the node DOWN because its slurmd does not answer",
        _OURS,
        "its jobs are gone; systemd, where it runs slurmd, has tried to start it again by then",
        settle_s=60,
    ),
    Row(
        "cloud-failed",
        "",
        "R1",
        "the cloud calls the instance failed",
        _OURS,
        "replaced after its jobs: the agent is heard, so they may still run",
        settle_s=60,
        ladder="REPLACE",
    ),
    Row(
        "agent-silent",
        "",
        "R1",
        "nothing is heard from the node's agent, so its hardware is watched by nobody",
        _OURS,
        "closed to new work after two minutes and given back when the agent is heard again; a"
        " restart after its jobs, then a person: Slurm reaches the node, so no job is stopped",
        settle_s=100,
        ladder="REBOOT ASK_HUMAN",
    ),
    Row(
        "slurm-rebooted",
        "",
        "R1",
        "slurmctld set the node DOWN because it booted unexpectedly",
        _OURS,
        "given back once its checks pass on the new boot",
        settle_s=60,
        ladder="NONE",
    ),
    Row("slurm-silent", "", "I", "slurmd does not answer slurmctld", _OURS, watch=True),
    Row(
        "slurm-closed",
        "",
        "I",
        "slurmctld closed the node by itself",
        _OURS,
        "shown as Suspect: mostly slurm.conf and the node disagree, which no remedy mends",
        watch=True,
    ),
)
