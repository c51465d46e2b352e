"""Nodes with a network each, which Slurm needs for nodes that it does not know from slurm.conf.

From 23.11 on slurmctld reaches a node of `State=CLOUD` and a dynamic node at the address that its
slurmd connected from, whatever NodeAddr is. On one loopback that is 127.0.0.1 for all nodes.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpctl.sandbox.api import Sandbox

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")


@contextmanager
def network_of_head(sandbox: Sandbox) -> Iterator[None]:
    """Have this thread, and what it starts, use the network of the head node for a while."""
    own = Path("/proc/thread-self/ns/net")
    head = Path(f"/proc/{sandbox.status()['supervisor_pid']}/ns/net")
    with own.open() as before, head.open() as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(before.fileno())


def _enter(namespace: int) -> None:
    """Raise OSError where the kernel refuses. Python has setns() from 3.12 on."""
    clone_newnet = 0x40000000
    if ctypes.CDLL(None, use_errno=True).setns(namespace, clone_newnet) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "setns")
