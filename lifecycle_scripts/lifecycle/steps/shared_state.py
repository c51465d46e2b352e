"""Several controllers: Slurm's configuration and state in one directory that all of them share.

The primary copies its own there and renames it into place whole; the others wait for that. A
replaced controller finds it there and only links.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

from lifecycle.failure import Failure, No
from lifecycle.mounting import fsx_found
from lifecycle.node import Node
from lifecycle.slurm_files import wait_for_conf

OWN = ("slurmdbd.conf", "slurmdbd.conf.template")
"""What stays on each controller."""
SPOOL = "/var/spool/slurmctld"
PRIMARY_S = 300.0


def _directory(node: Node) -> str:
    """Return the directory that is named; of several controllers without, the FSx that was
    found."""
    given = node.parameters.get("slurm_configurations") or {}
    found = fsx_found(node).values() if len(node.controllers) > 1 else ()
    return str(given.get("slurm_shared_directory") or next(iter(found), ""))


def _target(node: Node) -> Path:
    return node.machine.path(_directory(node)) / "aws/hyperpod" / node.cluster


def applies(node: Node) -> Any:
    """On controllers of a cluster that has several, or may get them."""
    if node.role != "controller":
        return No("for controllers only")
    if not _directory(node):
        return No("one controller: no slurm_shared_directory is named")
    if node.mode != "OnCreate":
        return No("the AMI does it (OnInitComplete)")
    return True


def _links(node: Node) -> list[tuple[Path, Path]]:
    """Return each of the node's paths that is to lead into the shared directory, and where to."""
    target, etc = _target(node), node.slurm_etc
    shared = target / "opt/slurm/etc"
    names = {path.name for path in shared.iterdir()} if shared.is_dir() else set()
    pairs = [(etc / name, shared / name) for name in sorted(names) if name not in OWN]
    return [*pairs, (node.machine.path(SPOOL), target / "var/spool/slurmctld")]


def done(node: Node) -> bool:
    """Return whether every one of them leads there."""
    return _target(node).is_dir() and all(
        path.is_symlink() and os.readlink(str(path)) == str(shared) for path, shared in _links(node)
    )


def run(node: Node) -> None:
    """Fill the directory where it is empty, and link."""
    wait_for_conf(node)
    target = _target(node)
    if not target.is_dir():
        if node.address == node.controllers[0]:
            _fill(node, target)
        else:
            _wait(target)
    machine = node.machine
    if machine.running:
        for unit in ("slurmctld.service", "slurmdbd.service"):
            if machine.has_unit(unit):
                machine.run("systemctl", "stop", unit, ok=(0, 5))
    for path, shared in _links(node):
        _link(path, shared)


def _fill(node: Node, target: Path) -> None:
    part = target.with_name(f".{target.name}.{node.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    if part.exists():
        shutil.rmtree(str(part))
    shutil.copytree(
        str(node.slurm_etc),
        str(part / "opt/slurm/etc"),
        ignore=lambda _, names: [n for n in names if n in OWN or n.endswith(".bak")],
    )
    spool = node.machine.path(SPOOL)
    if spool.is_dir():
        shutil.copytree(str(spool), str(part / "var/spool/slurmctld"))
    for name in ("opt/slurm/etc/scripts", "var/log/slurm", "var/spool/slurmctld"):
        (part / name).mkdir(parents=True, exist_ok=True)
        if node.machine.real:
            _give_to_slurm(part / name)
    try:
        os.rename(str(part), str(target))
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(str(part))


def _give_to_slurm(path: Path) -> None:
    try:
        shutil.chown(str(path), "slurm", "slurm")
    except LookupError as error:
        raise Failure(f"no user slurm on this machine: {error}") from error


def _wait(target: Path) -> None:
    deadline = time.monotonic() + PRIMARY_S
    while not target.is_dir():
        if time.monotonic() > deadline:
            raise Failure(f"{target} is not there yet: the primary controller makes it")
        time.sleep(1)


def _link(path: Path, shared: Path) -> None:
    """What was there is kept beside as .bak. A run that was killed in between is taken up."""
    if path.is_symlink() and os.readlink(str(path)) == str(shared):
        return
    backup = path.with_name(path.name + ".bak")
    if path.is_dir() and not path.is_symlink():
        if not backup.exists():
            copy = path.with_name(f".{path.name}.bak-part")
            shutil.rmtree(str(copy), ignore_errors=True)
            shutil.copytree(str(path), str(copy), symlinks=True)
            os.rename(str(copy), str(backup))
        shutil.rmtree(str(path))
    elif path.exists() and not path.is_symlink() and not backup.exists():
        os.rename(str(path), str(backup))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.hpctl-part")
    if part.is_symlink():
        part.unlink()
    os.symlink(str(shared), str(part))
    os.replace(str(part), str(path))
