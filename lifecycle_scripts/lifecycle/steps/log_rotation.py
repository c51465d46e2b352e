"""Slurm's logs and hpctl's own are kept small: a root volume has 100 GB, and never grows."""

from __future__ import annotations

from typing import Any

from lifecycle.failure import No
from lifecycle.node import Node

CONF = "/etc/logrotate.d/hpctl-slurm"
TEXT = """# Written by hpctl at the node's birth.
/var/log/slurm/*.log /var/log/hpctl/*.log {
    rotate 2
    size 50M
    copytruncate
    nocompress
    missingok
    notifempty
    sharedscripts
    postrotate
        for daemon in slurmctld slurmd slurmdbd; do
            pkill -x --signal SIGUSR2 "$daemon" || :
        done
    endscript
}
"""


def applies(node: Node) -> Any:
    """Return whether no other program rotates them yet."""
    theirs = node.machine.path("/etc/logrotate.d/sagemaker-hyperpod-slurm")
    return not theirs.exists() or No(f"the AMI rotates them ({theirs})")


def done(node: Node) -> bool:
    """Return whether the file is as it should be."""
    path = node.machine.path(CONF)
    return path.exists() and path.read_text() == TEXT


def run(node: Node) -> None:
    """Write it."""
    node.machine.write(node.machine.path(CONF), TEXT)
