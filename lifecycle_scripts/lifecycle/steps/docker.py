"""Docker: from the AMI or from packages, its data on a large disk, GPUs for its containers. Off."""

from __future__ import annotations

import grp
import json
import shutil
from typing import Any

from lifecycle.accounts import account
from lifecycle.failure import Failure
from lifecycle.mounting import local_disk, wait_for_disks
from lifecycle.node import Node
from lifecycle.packages import install, whole

UNIT = "docker.service"
CONF = "/etc/docker/daemon.json"
NVIDIA = "nvidia-container-runtime"
"""Of the NVIDIA Container Toolkit, which AMIs for GPUs have."""


def applies(node: Node) -> Any:
    """Return whether there are systemd and packages."""
    return node.machine.needs("systemd")


def _conf(node: Node) -> dict[str, Any]:
    """daemon.json as it is, with what we want of it. Raises Failure where it is no JSON object."""
    path = node.machine.path(CONF)
    try:
        conf = json.loads(path.read_text()) if path.exists() else {}
        # Never on Lustre, which has none of what its storage drivers ask for.
        disk = node.config["docker"]["data_path"] or local_disk(node, "")
        if disk:
            conf["data-root"] = disk.rstrip("/") + "/docker/data-root"
        if shutil.which(NVIDIA):
            conf.setdefault("runtimes", {})["nvidia"] = {"path": NVIDIA, "args": []}
    except (ValueError, TypeError, AttributeError) as error:
        raise Failure(f"{path}: {error}") from error
    return dict(conf)


def _text(conf: dict[str, Any]) -> str:
    return json.dumps(conf, indent=2) + "\n"


def _strangers(node: Node) -> list[str]:
    """Users who are to be in the group `docker`, and are not."""
    try:
        members = grp.getgrnam("docker").gr_mem
    except KeyError:
        members = []
    return [
        name for name in node.config["docker"]["users"] if account(name) and name not in members
    ]


def _installed(node: Node) -> bool:
    return node.machine.has_unit(UNIT) and whole(node, node.config["docker"]["packages"])


def done(node: Node) -> bool:
    """Return whether the daemon answers, with the settings and users that it should have."""
    wanted, path, machine = _conf(node), node.machine.path(CONF), node.machine
    conf = json.loads(path.read_text()) if path.exists() else {}
    if conf != wanted or _strangers(node) or not (_installed(node) and machine.up(UNIT)):
        return False
    return not machine.running or machine.works("docker", "info", timeout=60)


def run(node: Node) -> None:
    """Packages where there is no Docker, then its file, its users and the daemon."""
    machine = node.machine
    wait_for_disks(node)
    # Before the daemon starts for the first time: what it has stored would stay where it was.
    changed = machine.write(machine.path(CONF), _text(_conf(node)))
    if not _installed(node):
        install(node, "docker", node.config["docker"]["packages"])
    for name in _strangers(node):
        machine.run("usermod", "--append", "--groups", "docker", name)
    machine.start(UNIT, again=changed)
