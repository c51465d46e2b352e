"""Prometheus exporters, as services: the bundle's own, and known ones from packages. Off."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifecycle.failure import Failure, No
from lifecycle.node import Node
from lifecycle.packages import install, whole

PLACE = "/opt/hpctl/exporters"
UNIT = """# Written by hpctl at the node's birth.
[Unit]
Description={name} (from hpctl's lifecycle bundle)
After=network-online.target

[Service]
Environment=PATH=/opt/slurm/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart={path}{args}
Restart=always
RestartSec=5
Slice=hpctl.slice
DynamicUser={dynamic}

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class Known:
    """An exporter that we know: the package that has it, the package's unit, and where it fits."""

    package: str = ""
    unit: str = ""
    role: str = ""
    device: str = ""


KNOWN = {
    "node_exporter": Known("prometheus-node-exporter", "prometheus-node-exporter.service"),
    # Of NVIDIA's repository for CUDA, which AMIs for GPUs have among their sources.
    "dcgm-exporter": Known(
        "datacenter-gpu-manager-exporter", "nvidia-dcgm-exporter.service", device="/dev/nvidiactl"
    ),
    # No distribution packages it: base-config builds it from source. It asks slurmctld for all.
    "slurm_exporter": Known(role="controller"),
}


def _fits(node: Node, name: str) -> bool:
    known = KNOWN.get(name, Known())
    if known.device and not node.machine.path(known.device).exists():
        return False
    return known.role in ("", node.role)


def _exporters(node: Node) -> list[Path]:
    """`NAME`, or `NAME.ROLE` for nodes of that role alone."""
    found = sorted(path for path in (node.bundle / "exporters").glob("*") if path.is_file())
    return [p for p in found if p.suffix in ("", "." + node.role) and _fits(node, p.stem)]


def _packaged(node: Node) -> list[str]:
    """Return those that config.json names and the bundle does not bring."""
    brought = [path.stem for path in _exporters(node)]
    named = node.config["observability"]["exporters"]
    return [name for name in named if name not in brought and _fits(node, name)]


def applies(node: Node) -> Any:
    """Return whether the bundle brings any, or config.json names one."""
    if not _exporters(node) and not _packaged(node):
        return No("no exporters for this node in this bundle or in config.json")
    return node.machine.needs("systemd")


def _unit(path: Path) -> str:
    return f"hpctl-{path.stem}.service"


def _text(node: Node, path: Path) -> str:
    # DCGM and its like ask devices that only root may open.
    dynamic = "yes" if path.stem in ("node_exporter", "slurm_exporter") else "no"
    where = node.machine.path(PLACE) / path.stem
    args = "".join(" " + word for word in node.config["observability"]["args"].get(path.stem, []))
    return UNIT.format(name=path.stem, path=where, args=args, dynamic=dynamic)


def _up(node: Node, known: Known) -> bool:
    return node.machine.up(known.unit) and whole(node, [known.package])


def done(node: Node) -> bool:
    """Return whether each is there, and up."""
    if not all(_up(node, KNOWN[name]) for name in _packaged(node)):
        return False
    return all(
        node.machine.unit_text(_unit(path)) == _text(node, path)
        and node.machine.path(PLACE).joinpath(path.stem).is_file()
        and node.machine.up(_unit(path))
        for path in _exporters(node)
    )


def run(node: Node) -> None:
    """Copy, write the unit, start; a package brings its own unit."""
    machine = node.machine
    for path in _exporters(node):
        target = machine.path(PLACE) / path.stem
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        part.write_bytes(path.read_bytes())
        part.chmod(0o755)
        part.replace(target)
        machine.write(machine.path("/etc/systemd/system") / _unit(path), _text(node, path))
        machine.start(_unit(path), again=True)
    for name in _packaged(node):
        known = KNOWN[name]
        if not known.package:
            raise Failure(f"{name} is in no package: the bundle must bring exporters/{name}")
        if not (machine.has_unit(known.unit) and whole(node, [known.package])):
            install(node, "observability", [known.package])
        machine.start(known.unit)
