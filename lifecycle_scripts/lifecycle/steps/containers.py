"""enroot and pyxis, from the AMI or from packages in the bundle; their data on a large disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lifecycle.failure import No
from lifecycle.mounting import local_disk, mounted, wait_for_disks
from lifecycle.node import Node
from lifecycle.slurm_files import add_line, set_line

CONF = "/etc/enroot/enroot.conf"
PYXIS = ("/opt/slurm/lib/slurm/spank_pyxis.so", "/usr/local/lib/slurm/spank_pyxis.so")
CGROUP = "ConstrainDevices=yes"
"""Without it a container sees other GPUs than the job was given (pyxis issue 47)."""


def _packages(node: Node) -> list[Path]:
    return sorted((node.bundle / "debs").glob("*.deb"))


def applies(node: Node) -> Any:
    """Return whether everything is ours, and enroot is on the machine or in the bundle."""
    if node.mode != "OnCreate":
        return No("the AMI has set up containers (OnInitComplete)")
    if node.machine.path(CONF).is_file():
        return True
    if not _packages(node):
        return No("no enroot on this machine and no debs in this bundle")
    return node.machine.needs("accounts")


def _data(node: Node) -> str:
    given = str(node.config["containers"]["data_path"])
    return given or local_disk(node, "/tmp")  # noqa: S108 -- where enroot itself would put it


def _settings(node: Node) -> dict[str, str]:
    data = _data(node).rstrip("/")
    fsx = node.config["fsx_lustre"]["mount_path"]
    cache = fsx if mounted(node, fsx) else data
    return {
        "ENROOT_RUNTIME_PATH": data + "/enroot/run/user-$(id -u)",
        "ENROOT_CACHE_PATH": cache + "/enroot/cache",
        "ENROOT_DATA_PATH": data + "/enroot/data/user-$(id -u)",
        "ENROOT_TEMP_PATH": data + "/enroot/tmp",
    }


def _pyxis(node: Node) -> str | None:
    return next((at for at in PYXIS if node.machine.path(at).is_file()), None)


def _conf(text: str, settings: dict[str, str]) -> str:
    for key, word in settings.items():
        text = set_line(text, rf"#?{key}\b", f"{key:<26} {word}")
    return text


def done(node: Node) -> bool:
    """enroot keeps its data in the right place, and Slurm knows pyxis where it is installed."""
    conf = node.machine.path(CONF)
    if not conf.is_file() or _conf(conf.read_text(), _settings(node)) != conf.read_text():
        return False
    if not all(path.is_dir() for path in _directories(node)):
        return False
    cgroup, plugstack = node.slurm_etc / "cgroup.conf", node.slurm_etc / "plugstack.conf"
    if cgroup.is_file() and "ConstrainDevices" not in cgroup.read_text():
        return False
    return not (_pyxis(node) and plugstack.is_file()) or "pyxis" in plugstack.read_text()


def _directories(node: Node) -> list[Path]:
    return [node.machine.path(word.split("/user-")[0]) for word in _settings(node).values()]


def run(node: Node) -> None:
    """Install what is in the bundle, wait for the disks, and write."""
    machine = node.machine
    if not machine.path(CONF).is_file():
        machine.run("dpkg", "--install", *map(str, _packages(node)), timeout=300)
    wait_for_disks(node)
    conf = machine.path(CONF)
    machine.write(conf, _conf(conf.read_text(), _settings(node)))
    for path in _directories(node):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o1777)
    cgroup, plugstack = node.slurm_etc / "cgroup.conf", node.slurm_etc / "plugstack.conf"
    if cgroup.is_file() and "ConstrainDevices" not in cgroup.read_text():
        add_line(node, cgroup, CGROUP)
    plugin = _pyxis(node)
    if plugin and plugstack.is_file() and "pyxis" not in plugstack.read_text():
        # Named itself and not by an include: a configless slurmd expands no wildcard in one.
        add_line(node, plugstack, f"required {plugin}")
