"""Prometheus exporters that the bundle brings in `exporters/`, as services. Off by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lifecycle.failure import No
from lifecycle.node import Node

PLACE = "/opt/hpctl/exporters"
UNIT = """# Written by hpctl at the node's birth.
[Unit]
Description={name} (from hpctl's lifecycle bundle)
After=network-online.target

[Service]
ExecStart={path}
Restart=always
RestartSec=5
Slice=hpctl.slice
DynamicUser={dynamic}

[Install]
WantedBy=multi-user.target
"""


def _exporters(node: Node) -> list[Path]:
    """`NAME`, or `NAME.ROLE` for nodes of that role alone."""
    found = sorted(path for path in (node.bundle / "exporters").glob("*") if path.is_file())
    return [p for p in found if p.suffix in ("", "." + node.role)]


def applies(node: Node) -> Any:
    """Where the bundle brings any."""
    if not _exporters(node):
        return No("no exporters in this bundle")
    return node.machine.needs("systemd")


def _unit(path: Path) -> str:
    return f"hpctl-{path.stem}.service"


def _text(node: Node, path: Path) -> str:
    # DCGM and its like ask devices that only root may open.
    dynamic = "yes" if path.stem == "node_exporter" else "no"
    where = node.machine.path(PLACE) / path.stem
    return UNIT.format(name=path.stem, path=where, dynamic=dynamic)


def done(node: Node) -> bool:
    """Each is there, and up."""
    return all(
        node.machine.unit_text(_unit(path)) == _text(node, path)
        and node.machine.path(PLACE).joinpath(path.stem).is_file()
        and node.machine.up(_unit(path))
        for path in _exporters(node)
    )


def run(node: Node) -> None:
    """Copy, write the unit, start."""
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
