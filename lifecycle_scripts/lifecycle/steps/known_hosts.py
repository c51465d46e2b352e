"""A replaced node keeps its name and has a new host key: users' known_hosts forget the old one."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from lifecycle.accounts import as_user, everybody
from lifecycle.failure import No
from lifecycle.node import Node


def _own_keys(node: Node) -> set[str]:
    found = set()
    for path in node.machine.path("/etc/ssh").glob("ssh_host_*_key.pub"):
        found.add(path.read_text().split()[1])
    return found


def applies(node: Node) -> Any:
    """Return whether the node has a host key to compare with."""
    if not shutil.which("ssh-keygen"):
        return No("no ssh-keygen on this machine")
    needs = node.machine.needs("accounts")
    if not needs:
        return needs
    return bool(_own_keys(node)) or No("this machine has no ssh host key")


def _stale(known: Path, node: Node) -> bool:
    """Return whether a known_hosts has another key for this node, under its name or its address."""
    if not known.is_file():
        return False
    for name in (node.name, node.address):
        output = subprocess.run(
            ["ssh-keygen", "-F", name, "-f", str(known)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=30,
            check=False,
        ).stdout.decode(errors="replace")
        keys = {line.split()[2] for line in output.splitlines() if line and line[0] != "#"}
        if keys - _own_keys(node):
            return True
    return False


def done(node: Node) -> bool:
    """Return whether no user's known_hosts has this node with a key that is not its own."""
    return not any(_stale(Path(one.pw_dir) / ".ssh/known_hosts", node) for one in everybody(node))


def run(node: Node) -> None:
    """Take the old keys out, with each user's own rights."""
    for one in everybody(node):
        known = Path(one.pw_dir) / ".ssh/known_hosts"
        if _stale(known, node):
            as_user(one, lambda known=known: _forget(known, node))  # type: ignore[misc]


def _forget(known: Path, node: Node) -> None:
    """On a copy, which then takes the place of the file: other nodes do the same to it now."""
    part = known.with_name(f".hpctl-{node.name}-known")
    shutil.copy(str(known), str(part))
    for name in (node.name, node.address):
        subprocess.run(
            ["ssh-keygen", "-R", name, "-f", str(part)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=30,
            check=True,
        )
    old = Path(str(part) + ".old")
    if old.exists():
        old.unlink()
    os.replace(str(part), str(known))
