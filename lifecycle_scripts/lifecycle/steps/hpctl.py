"""hpctl itself, from the bundle's wheels and never from a network: daemon or agent, by role."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

from lifecycle import munge
from lifecycle.failure import Failure, No
from lifecycle.mounting import mounted
from lifecycle.node import Node

HOME = "/opt/hpctl"
PYTHON = "/opt/hpctl-python"
PACKED = "python.tar.gz"
MARK = "/opt/hpctl/.wheels"
LINK = "/usr/local/bin/hpctl"
"""In every user's PATH; what a site has put there itself stays."""

ETC = "/etc/hpctl"
EVIDENCE = "/fsx/hpctl/evidence"
"""As the units have it."""

UNITS = {"controller": "hpctl-daemon.service", "compute": "hpctl-agent.service"}
SOCKET = "hpctl-daemon.socket"
CANDIDATES = ("python3.13", "python3.12", "python3.11", "python3.10", "python3.14", "python3")


def _wheels(node: Node) -> list[Path]:
    return sorted((node.bundle / "wheels").glob("*.whl"))


def applies(node: Node) -> Any:
    """Return whether the bundle has wheels."""
    if not _wheels(node):
        return No("no wheels in this bundle: hpctl cluster lifecycle bundle --wheels")
    return node.machine.needs("systemd")


def present(node: Node) -> bool:
    """Return whether an hpctl runs here, by this step, a package or the AMI. In a directory that
    simulates a machine, the caller that made the directory decides."""
    if not node.machine.real:
        return True
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/bin:/usr/bin", HOME + "/bin"])
    found = shutil.which("hpctl", path=places)
    return found is not None and node.machine.works(found, "--version", timeout=60)


def _digest(node: Node) -> str:
    """Return which wheels these are, and which Python the bundle brings for them."""
    total = hashlib.sha256()
    packed = node.bundle / PACKED
    for path in [*_wheels(node), *([packed] if packed.is_file() else [])]:
        total.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def _files(node: Node) -> dict[str, str]:
    """Return what is to lie where, by role; a site's own hpctl.yaml stays."""
    files = {}
    units = node.bundle / "systemd"
    unit = _unit(node)
    if unit:
        text = (units / unit).read_text()
        evidence = _evidence(node)
        if evidence:
            text = text.replace(f"ReadWritePaths=-{EVIDENCE}", f"ReadWritePaths=-{evidence}")
        files["/etc/systemd/system/" + unit] = text
    if node.role == "compute":
        files["/etc/systemd/system/hpctl.slice"] = (units / "hpctl.slice").read_text()
        files[ETC + "/agent.env"] = _agent_env(node)
        settings = node.bundle / "agent.yaml"
        if settings.is_file():
            files[ETC + "/agent.yaml"] = settings.read_text()
        elif _evidence(node) and not node.machine.path(ETC + "/agent.yaml").exists():
            files[ETC + "/agent.yaml"] = _evidence_yaml(node)
    if node.role == "controller":
        if unit:
            listens = (units / SOCKET).read_text()
            port = ":{}\n".format(node.config["hpctl"]["port"])
            files["/etc/systemd/system/" + SOCKET] = listens.replace(":8470\n", port)
        settings = node.bundle / "hpctl.yaml"
        files[ETC + "/hpctl.yaml"] = settings.read_text() if settings.is_file() else _yaml(node)
    return files


def _unit(node: Node) -> str | None:
    """Return the service of this node; None for a login node.

    A second controller has one only where the site's hpctl.yaml says which database they share:
    two daemons that know nothing of each other would both act.
    """
    alone = node.role == "controller" and node.address != node.controllers[0]
    if alone and not (node.bundle / "hpctl.yaml").is_file():
        return None
    return UNITS.get(node.role)


def _agent_env(node: Node) -> str:
    port = node.config["hpctl"]["port"]
    heads = node.config["hpctl"]["head"] or ",".join(
        f"http://{address}:{port}" for address in node.controllers
    )
    return f"# Written by hpctl at the node's birth.\nHPCTL_AGENT_HEAD={heads}\n"


def _yaml(node: Node) -> str:
    settings = node.config["hpctl"]
    lines = [
        "# Written by hpctl at the node's birth. A file hpctl.yaml in the bundle takes its place.",
        "mode: {}".format(settings["mode"]),
        "intake: {{listen: '0.0.0.0:{}'}}".format(settings["port"]),
    ]
    if node.cluster:
        region = f", region: {node.region}" if node.region else ""
        lines.append(f"cluster: {{provider: sagemaker, name: {node.cluster}{region}}}")
    if _evidence(node):
        lines.append(_evidence_yaml(node).rstrip())
    return "\n".join(lines) + "\n"


def _evidence(node: Node) -> str:
    """The shared directory of evidence; "" where FSx for Lustre is not mounted."""
    where = str(node.config["fsx_lustre"]["mount_path"]).rstrip("/")
    return where + "/hpctl/evidence" if mounted(node, where) else ""


def _evidence_yaml(node: Node) -> str:
    return f"evidence: {{directory: {_evidence(node)}}}\n"


def _make_evidence_directory(node: Node) -> None:
    """Make the directory on the head node: root's, and its group that of the daemon's user."""
    place = _evidence(node)
    if not place or not node.machine.real or node.role != "controller":
        return
    try:
        group = node.machine.run("id", "-gn", "slurm", timeout=30).strip()
        node.machine.run(
            "install", "-d", "-o", "root", "-g", group, "-m", "0770", place, timeout=60
        )
    except Failure as failure:
        print(f"WARNING: no evidence of nodes is kept in {place}: {failure}")


def done(node: Node) -> bool:
    """Return whether these wheels are installed, the files are there, the service is up."""
    machine = node.machine
    mark = machine.path(MARK)
    if not mark.exists() or mark.read_text() != _digest(node):
        return False
    for path, text in _files(node).items():
        if not machine.path(path).is_file() or (
            machine.path(path).read_text() != text and not path.endswith("hpctl.yaml")
        ):
            return False
    if not os.path.lexists(str(machine.path(LINK))):
        return False
    if node.role == "compute" and not munge.vouches(node):
        return False
    unit = _unit(node)
    return unit is None or machine.up(unit)


def run(node: Node) -> None:
    """Install separately: an isolated environment, complete or made again."""
    machine = node.machine
    mark = machine.path(MARK)
    if not mark.exists() or mark.read_text() != _digest(node):
        _install(node)
    changed = False
    for path, text in _files(node).items():
        if path.endswith("hpctl.yaml") and machine.path(path).exists():
            continue
        changed |= machine.write(machine.path(path), text)
    link = machine.path(LINK)
    if not os.path.lexists(str(link)):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(HOME + "/bin/hpctl")
    if node.role == "compute" and not munge.vouches(node):
        munge.restart(node)
    unit = _unit(node)
    _make_evidence_directory(node)
    if unit and node.role == "controller" and machine.real:
        # SlurmUser's daemon: a drop-in for another name, and its right to read its configuration.
        try:
            machine.run(HOME + "/bin/hpctl", "install", "daemon-user", timeout=60)
        except Failure as failure:
            print(f"WARNING: the daemon may lack a right (hpctl doctor): {failure}")
    if unit:
        machine.start(unit, again=changed)
    elif node.role == "controller":
        print("a second controller: hpctl.yaml in the bundle must name a shared database_url")


def _install(node: Node) -> None:
    machine, home = node.machine, node.machine.path(HOME)
    python = _python(node)
    for left in [home / "bin", home / "pyvenv.cfg", home / "lib", home / "lib64", home / "include"]:
        # What a run that was killed left behind: pip would take half a package for a whole one.
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(str(left))
        elif left.is_symlink() or left.exists():
            left.unlink()
    # Without ensurepip, which Ubuntu has in a separate package: pip comes as a wheel.
    machine.run(python, "-m", "venv", "--without-pip", str(home), timeout=120)
    pip = next((path for path in _wheels(node) if path.name.startswith("pip-")), None)
    if pip is None:
        raise Failure("no pip among the bundle's wheels")
    machine.run(
        str(home / "bin/python"),
        str(pip / "pip"),
        "install",
        "--no-index",
        "--no-cache-dir",
        "--quiet",
        "--disable-pip-version-check",
        "--find-links",
        str(node.bundle / "wheels"),
        "hpctl",
        timeout=500,
    )
    version = machine.run(str(home / "bin/hpctl"), "--version", timeout=60).strip()
    machine.write(machine.path(MARK), _digest(node))
    print(version)


def _python(node: Node) -> str:
    """Return an interpreter for hpctl: the bundle's own, or a new enough one of the machine."""
    packed = node.bundle / PACKED
    if packed.is_file():
        return _unpacked(node, packed)
    target = _target(node)
    for name in ("python" + target, *CANDIDATES):
        found: str | None = shutil.which(name)
        fits = f"import sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '{target}')"
        if found and node.machine.works(found, "-I", "-c", fits):
            return found
    raise Failure(
        f"no Python {target} on this node, which the bundle's wheels are for: make it with "
        "`hpctl cluster lifecycle bundle --python-version` for the AMI's, or pack one with --python"
    )


def _target(node: Node) -> str:
    """Return the Python that the wheels are for."""
    path = node.bundle / "target.json"
    return str(json.loads(path.read_text())["python"]) if path.is_file() else "3.10"


def _unpacked(node: Node, packed: Path) -> str:
    """Beside its place and then renamed; asked for only where it, or what it is for, is new."""
    place = node.machine.path(PYTHON)
    part = place.with_name(place.name + ".part")
    for left in (part, place):
        if left.exists():
            shutil.rmtree(str(left))
    with tarfile.open(str(packed)) as archive:
        archive.extractall(str(part))  # noqa: S202 -- MANIFEST vouches for the archive
    inner = part / "python" if (part / "python").is_dir() else part
    inner.rename(place)
    if part.exists():
        shutil.rmtree(str(part))
    return str(place / "bin/python3")
