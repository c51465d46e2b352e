"""Find FSx that the platform mounts for the group without a name, and use it as if named. Off."""

from __future__ import annotations

import time
from typing import Any

from lifecycle.failure import Failure, No
from lifecycle.mounting import WRITABLE_S, fsx_found, mounts, writable
from lifecycle.node import Node

FIND_S = 60.0
"""How long the platform may take to mount it: as long as base-config's script looks."""


def applies(node: Node) -> Any:
    """Return whether no file system is named, on a machine that has mounts."""
    if node.setting("fsx_lustre", "dns_name", "fsx_dns_name") or node.setting(
        "fsx_openzfs", "dns_name", "fsx_openzfs_dns_name"
    ):
        return No("an FSx file system is named")
    return bool(mounts(node)) or node.machine.needs("mounts")


def done(node: Node) -> bool:
    """There is one, and all that there are take files."""
    found = fsx_found(node)
    return bool(found) and all(writable(node, where) for where in found.values())


def run(node: Node) -> None:
    """Wait for the platform's mount, and until it takes files."""
    deadline = time.monotonic() + FIND_S
    while not fsx_found(node):
        if time.monotonic() > deadline:
            raise Failure(
                "no FSx is mounted and none is named: give the instance group one "
                "(InstanceStorageConfigs), or name it in config.json (fsx_lustre, fsx_openzfs)"
            )
        time.sleep(1)
    for section, where in fsx_found(node).items():
        print(f"{section}: mounted by the platform on {where}")
    deadline = time.monotonic() + WRITABLE_S
    while not done(node):
        if time.monotonic() > deadline:
            raise Failure("{} takes no file".format(", ".join(fsx_found(node).values())))
        time.sleep(1)
