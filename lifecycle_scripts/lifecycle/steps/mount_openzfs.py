"""FSx for OpenZFS, usually for /home, where one is named."""

from __future__ import annotations

from typing import Any

from lifecycle.failure import No
from lifecycle.mounting import mount, mounted, resolvable, writable
from lifecycle.node import Node

OPTIONS = "nfsvers=4.2,nconnect=16"


def _dns_name(node: Node) -> str:
    return node.setting("fsx_openzfs", "dns_name", "fsx_openzfs_dns_name")


def _where(node: Node) -> str:
    return str(node.config["fsx_openzfs"]["mount_path"])


def applies(node: Node) -> Any:
    """Return whether one is named and the machine can mount."""
    if not _dns_name(node):
        return No("no FSx for OpenZFS is named")
    return node.machine.needs("mounts")


def done(node: Node) -> bool:
    """Mounted, and takes files."""
    return mounted(node, _where(node)) is not None and writable(node, _where(node))


def run(node: Node) -> None:
    """Mount it by NFS 4.2, with as many connections as AWS advises."""
    resolvable(node, _dns_name(node))
    source = "{}:{}".format(_dns_name(node), node.config["fsx_openzfs"]["volume"])
    mount(node, source, _where(node), "nfs", OPTIONS)
