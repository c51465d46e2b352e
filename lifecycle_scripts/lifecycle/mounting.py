"""Mounting a shared file system, and waiting until it takes files and not only looks mounted."""

from __future__ import annotations

import time
from pathlib import Path

from lifecycle.failure import Failure
from lifecycle.node import Node

WRITABLE_S = 60.0
"""A mount that is there takes files a little later, at most this."""

NVME_S = 120.0

SYSTEMD = "_netdev,x-systemd.automount,x-systemd.requires=network-online.target"


def mounts(node: Node) -> list[tuple[str, str, str]]:
    """Source, place and type of each mount; none below a directory that plays a machine."""
    table = node.machine.path("/proc/self/mounts")
    lines = table.read_text().splitlines() if table.exists() else []
    return [(fields[0], fields[1], fields[2]) for fields in (line.split(" ") for line in lines)]


def mounted(node: Node, where: str) -> str | None:
    """Return what is mounted at a path, and not merely promised by automount; None for nothing."""
    found = None
    for source, target, kind in mounts(node):
        if target == where.rstrip("/") and kind != "autofs":
            found = source
    return found


def fsx_found(node: Node) -> dict[str, str]:
    """Return where the platform has mounted FSx without a name in config.json, by its section.

    Nothing unless the step `find_fsx` is named, and no file system is. A group's
    InstanceStorageConfigs is in no file on the node: what is mounted is all that tells of it, as
    in base-config's utils/fsx_auto_detect.sh.
    """
    named = (
        node.setting("fsx_lustre", "dns_name", "fsx_dns_name"),
        node.setting("fsx_openzfs", "dns_name", "fsx_openzfs_dns_name"),
    )
    if any(named) or node.config.weight("find_fsx", "off") == "off":
        return {}
    found = {}
    for section in ("fsx_lustre", "fsx_openzfs"):
        usual = str(node.config[section]["mount_path"])
        places = [where for what, where, kind in mounts(node) if _is(section, what, kind)]
        if places:
            found[section] = usual if usual in places else places[0]
    return found


def _is(section: str, source: str, kind: str) -> bool:
    if section == "fsx_lustre":
        return kind == "lustre"
    return kind in ("nfs", "nfs4") and ".fsx." in source.partition(":")[0]


def take_fsx_found(node: Node) -> None:
    """Have every step use what was found, as if config.json had its path."""
    for section, where in fsx_found(node).items():
        node.config[section]["mount_path"] = where


def local_disk(node: Node, fallback: str) -> str:
    """Return the largest local disk that there is: NVMe, HyperPod's second volume, else
    `fallback`."""
    for path in ("/opt/dlami/nvme", "/opt/sagemaker"):
        if mounted(node, path):
            return path
    return fallback


def wait_for_disks(node: Node) -> None:
    """The AMI mounts NVMe disks while we run; what comes too late is not used."""
    if not (node.machine.running and node.machine.has_unit("dlami-nvme.service")):
        return
    deadline = time.monotonic() + NVME_S
    while not node.machine.works("systemctl", "is-active", "--quiet", "dlami-nvme.service"):
        if time.monotonic() > deadline:
            print("dlami-nvme.service is not active: containers lie on another disk")
            return
        time.sleep(2)


def writable(node: Node, where: str) -> bool:
    """Return whether a file can be made there. Hangs where the file system does: a step has a
    limit."""
    probe = node.machine.path(where) / f".hpctl-{node.name}"
    try:
        probe.write_text("hpctl\n")
        probe.unlink()
    except OSError:
        return False
    return True


def mount(node: Node, source: str, where: str, kind: str, options: str) -> None:
    """Mount it now and at every boot. Raises Failure with mount's own message."""
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
    """Fail early, and with a message, where the name of a file system means nothing here."""
    if not node.machine.works("getent", "hosts", name, timeout=30):
        raise Failure(f"{name} has no address: DNS is not up yet, or it is no such file system")


def owner_of(path: Path) -> int | None:
    """Return the uid that a path belongs to; None where there is none."""
    try:
        return path.stat().st_uid
    except OSError:
        return None
