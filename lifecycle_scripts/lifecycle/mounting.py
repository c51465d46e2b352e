"""Mounting a shared file system, and waiting until it takes files and not only looks mounted."""

from __future__ import annotations

import time
from pathlib import Path

from lifecycle.failure import Failure
from lifecycle.node import Node

WRITABLE_S = 60.0
"""A mount that is there takes files a little later, at most this."""

SYSTEMD = "_netdev,x-systemd.automount,x-systemd.requires=network-online.target"


def mounted(node: Node, where: str) -> str | None:
    """What is mounted at a path, and not merely promised by automount; None for nothing."""
    found = None
    if not node.machine.real:
        return None
    for line in node.machine.path("/proc/self/mounts").read_text().splitlines():
        source, target, kind = line.split(" ")[:3]
        if target == where.rstrip("/") and kind != "autofs":
            found = source
    return found


def writable(node: Node, where: str) -> bool:
    """Whether a file can be made there. Hangs where the file system does: a step has a limit."""
    probe = node.machine.path(where) / f".hpctl-{node.name}"
    try:
        probe.write_text("hpctl\n")
        probe.unlink()
    except OSError:
        return False
    return True


def mount(node: Node, source: str, where: str, kind: str, options: str) -> None:
    """Mount it now and at every boot. Raises Failure with mount's own words."""
    machine = node.machine
    machine.path(where).mkdir(parents=True, exist_ok=True)
    _fstab(node, source, where, kind, options + "," + SYSTEMD)
    if machine.running:
        machine.run("systemctl", "daemon-reload")
    if mounted(node, where) is None:
        machine.run("mount", where, timeout=120)
    deadline = time.monotonic() + WRITABLE_S
    while not writable(node, where):
        if time.monotonic() > deadline:
            raise Failure(f"{source} is mounted on {where} and takes no file")
        time.sleep(1)


def _fstab(node: Node, source: str, where: str, kind: str, options: str) -> None:
    path = node.machine.path("/etc/fstab")
    lines = path.read_text().splitlines() if path.exists() else []
    kept = [line for line in lines if line.startswith("#") or line.split()[1:2] != [where]]
    kept.append(f"{source} {where} {kind} {options} 0 0")
    node.machine.write(path, "\n".join(kept) + "\n")


def resolvable(node: Node, name: str) -> None:
    """Fail early, and in words, where the name of a file system means nothing here."""
    if not node.machine.works("getent", "hosts", name, timeout=30):
        raise Failure(f"{name} has no address: DNS is not up yet, or it is no such file system")


def owner_of(path: Path) -> int | None:
    """The uid that a path belongs to; None where there is none."""
    try:
        return path.stat().st_uid
    except OSError:
        return None
