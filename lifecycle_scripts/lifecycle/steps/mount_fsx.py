"""FSx for Lustre, where provisioning_parameters.json or config.json names a file system."""

from __future__ import annotations

from typing import Any

from lifecycle.failure import No
from lifecycle.mounting import mount, mounted, resolvable, writable
from lifecycle.node import Node

OPTIONS = "noatime,flock"


def _source(node: Node) -> tuple[str, str]:
    return (
        node.setting("fsx_lustre", "dns_name", "fsx_dns_name"),
        node.setting("fsx_lustre", "mount_name", "fsx_mountname"),
    )


def _where(node: Node) -> str:
    return str(node.config["fsx_lustre"]["mount_path"])


def applies(node: Node) -> Any:
    """Return whether one is named and the machine can mount."""
    if not all(_source(node)):
        return No("no FSx for Lustre is named")
    return node.machine.needs("mounts")


def done(node: Node) -> bool:
    """Mounted, and takes files."""
    return mounted(node, _where(node)) is not None and writable(node, _where(node))


def run(node: Node) -> None:
    """Load Lustre where it is a module that is not loaded, and mount."""
    dns_name, mount_name = _source(node)
    resolvable(node, dns_name)
    machine = node.machine
    # Built into some kernels, and loaded by mount itself on others: mount is the judge.
    if machine.works("modprobe", "lustre") and machine.works("which", "lctl"):
        machine.works("lctl", "network", "up")
    mount(node, f"{dns_name}@tcp:/{mount_name}", _where(node), "lustre", OPTIONS)
