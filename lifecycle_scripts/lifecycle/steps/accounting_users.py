"""Every listed user may submit: one account for all, as HyperPod's own scripts have it."""

from __future__ import annotations

from typing import Any

from lifecycle.accounts import listed
from lifecycle.failure import No
from lifecycle.node import Node
from lifecycle.slurm_files import program

ACCOUNT = "users"


def applies(node: Node) -> Any:
    """On the first controller, where slurmdbd runs and users are listed."""
    if node.role != "controller" or node.address != node.controllers[0]:
        return No("for the first controller only")
    if not listed(node):
        return No("no users are listed")
    if not node.machine.running:
        return node.machine.needs("systemd") and No("systemd does not run here")
    return node.machine.up("slurmdbd.service") or No("slurmdbd does not run here")


def _known(node: Node) -> set[str]:
    output = node.machine.run(
        program("sacctmgr"), "-nP", "show", "assoc", "format=user", timeout=60
    )
    return {line.strip() for line in output.splitlines() if line.strip()}


def done(node: Node) -> bool:
    """Everybody has an association."""
    return {user.name for user in listed(node)} <= _known(node)


def run(node: Node) -> None:
    """Add the account and the missing users; 1 is sacctmgr's code for what is there already."""
    machine = node.machine
    machine.run(
        program("sacctmgr"), "-i", "add", "account", ACCOUNT, "Description=users", ok=(0, 1)
    )
    known = _known(node)
    for user in listed(node):
        if user.name not in known:
            machine.run(
                program("sacctmgr"), "-i", "add", "user", user.name, "Account=" + ACCOUNT, ok=(0, 1)
            )
