"""pam_slurm_adopt: who has no job on a node cannot log in to it. Off unless config.json says so."""

from __future__ import annotations

from typing import Any

from lifecycle.failure import Failure, No
from lifecycle.node import Node

MODULE = "pam_slurm_adopt.so"
PLACES = (
    "/lib/security",
    "/lib/x86_64-linux-gnu/security",
    "/lib/aarch64-linux-gnu/security",
    "/usr/lib/x86_64-linux-gnu/security",
    "/usr/lib/aarch64-linux-gnu/security",
)
ADMINS = "/etc/security/hpctl-admins"
SSHD = "/etc/pam.d/sshd"
LINES = (
    "-account    sufficient    pam_listfile.so item=user sense=allow onerr=fail file=" + ADMINS,
    "-account    required      pam_slurm_adopt.so",
)


def applies(node: Node) -> Any:
    """On compute nodes with an sshd."""
    if node.role != "compute":
        return No("for compute nodes only")
    return node.machine.path(SSHD).is_file() or No(f"no {SSHD} on this machine")


def _admins(node: Node) -> str:
    return "".join(name + "\n" for name in node.config["pam"]["admins"])


def done(node: Node) -> bool:
    """Return whether the list and both lines are there."""
    admins, lines = node.machine.path(ADMINS), node.machine.path(SSHD).read_text().splitlines()
    named = admins.exists() and admins.read_text() == _admins(node)
    return named and all(line in lines for line in LINES)


def run(node: Node) -> None:
    """The list first: without it the lines would lock administrators out."""
    machine = node.machine
    if not any(machine.path(place).joinpath(MODULE).is_file() for place in PLACES):
        raise Failure(f"{MODULE} is on this AMI nowhere: build it for this Slurm release")
    machine.write(machine.path(ADMINS), _admins(node), 0o600)
    path = machine.path(SSHD)
    kept = [line for line in path.read_text().splitlines() if line not in LINES]
    machine.write(path, "\n".join(kept + list(LINES)) + "\n")
