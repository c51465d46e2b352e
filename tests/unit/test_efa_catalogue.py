"""The fabric's checks together: silent on a healthy machine, and on one without a fabric."""

from __future__ import annotations

from pathlib import Path

from hpctl.agent.check import Expected
from hpctl.agent.runner import load, look
from hpctl.core.faults.fabric import CHECKS as FABRIC
from tests.fakes.fabric import Node
from tests.sysfs_tree import SysfsTree


def test_every_check_loads_and_is_silent_on_a_healthy_p5(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.add_efas(32)
    tree.add_mlx5("mlx5_0", interface="eth0")
    tree.add_neuron(0)
    node = Node(tmp_path, Expected("ml.p5.48xlarge", neuron_devices=1))
    checks = [load(spec) for spec in FABRIC]
    assert {row.state for row in look(checks, node.machine)} == {"ok"}


def test_every_check_is_silent_on_a_machine_without_a_fabric(tmp_path: Path) -> None:
    checks = [load(spec) for spec in FABRIC]
    assert {row.state for row in look(checks, Node(tmp_path).machine)} == {"absent"}
