"""What is shown at a login: cluster, group, role, controllers, and the bundle's `motd.txt`. Off."""

from __future__ import annotations

from typing import Any

from lifecycle.machine import holds
from lifecycle.node import Node, name_of

PLACE = "/etc/motd.d/hpctl"
"""pam_motd shows each file of /etc/motd.d beside /etc/motd, which stays the AMI's."""


def applies(node: Node) -> Any:
    """Everywhere."""
    return True


def _text(node: Node) -> str:
    own = node.bundle / "motd.txt"
    lines = [
        f"Cluster      {node.cluster}",
        f"Node         {node.name} ({node.role}, group {node.group}, {node.instance_type})",
        "Controllers  " + (" ".join(name_of(one) for one in node.controllers) or "not known"),
    ]
    site = own.read_text().rstrip("\n").split("\n") if own.is_file() else []
    return "\n".join([*lines, *site]) + "\n"


def done(node: Node) -> bool:
    """Return whether the file is as it should be."""
    return holds(node.machine.path(PLACE), _text(node))


def run(node: Node) -> None:
    """Write it."""
    node.machine.write(node.machine.path(PLACE), _text(node))
