"""Every code that a check of the fabric can say has its row, and acts only where the facts do."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from hpctl.agent.check import Expected, NotHere
from hpctl.agent.checks import efa_errors, neuron_errors, rdma_errors
from hpctl.agent.checks.table_fabric import FABRIC
from hpctl.agent.runner import load, once
from hpctl.core.catalogue_fabric import FABRIC_ROWS
from tests.fakes.fabric import Node
from tests.sysfs_tree import SysfsTree

ACTS = {
    "efa-devices-fewer": "B",
    "efa-keepalive-stalled": "B",
    "efa-commands-no_completion": "B",
    "efa-commands-failed": "B",
    "neuron-devices-fewer": "B",
    "neuron-errors-mem_uncorrected": "X",
    "neuron-errors-sram_uncorrected": "X",
    "neuron-errors-mem_repairable": "R1",
}


def said(module: str) -> set[str]:
    """The codes that a check's source names, and those of its table."""
    tables = {
        "efa_errors": {code for code, _ in efa_errors.CODES.values()},
        "rdma_errors": {rule.code or rule.counter for rule in rdma_errors.RULES},
        "neuron_errors": set(neuron_errors.CODES.values()),
    }
    path = importlib.import_module(f"hpctl.agent.checks.{module}").__file__
    assert path is not None
    named = set(re.findall(r'Observation\(\s*"(\w+)"', Path(path).read_text()))
    return tables.get(module, set()) | named


def test_each_code_has_its_row_and_each_row_its_code() -> None:
    rules = {
        f"{spec.name.replace('.', '-')}-{code}" for spec in FABRIC for code in said(spec.module)
    }
    assert rules == {row.rule for row in FABRIC_ROWS}


def test_only_what_the_facts_call_a_fault_acts() -> None:
    assert {row.rule: row.treatment for row in FABRIC_ROWS if row.treatment != "I"} == ACTS


def test_every_check_loads_and_is_silent_on_a_healthy_p5(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.add_efas(32)
    tree.add_mlx5("mlx5_0", interface="eth0")
    tree.add_neuron(0)
    node = Node(tmp_path, Expected("ml.p5.48xlarge", neuron_devices=1))
    checks = [load(spec) for spec in FABRIC]
    assert [results for _, results in once(checks, node.machine)] == [[] for _ in FABRIC]


def test_every_check_is_silent_on_a_machine_without_a_fabric(tmp_path: Path) -> None:
    checks = [load(spec) for spec in FABRIC]
    results = [found for _, found in once(checks, Node(tmp_path).machine)]
    assert all(isinstance(found, NotHere) for found in results)


@pytest.mark.parametrize("spec", FABRIC, ids=lambda spec: spec.name)
def test_no_check_of_the_nic_is_more_often_than_the_nic_likes(spec) -> None:
    if spec.name.startswith("efa."):
        assert spec.every_s >= 10
    assert spec.source
    assert spec.seen[0] <= spec.seen[1]
