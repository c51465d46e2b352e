"""Neuron: device count and memory errors, wherever the driver's release keeps them."""

from pathlib import Path

import pytest

from hpctl.agent.check import Expected
from hpctl.agent.checks import check_neuron
from hpctl.core.model import Verdict
from tests.fakes.fabric import Node, codes, limits
from tests.sysfs_tree import SysfsTree

LIMITS = limits("neuron.errors")


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path)


def devices(node: Node) -> list[tuple[str, str]]:
    return codes(check_neuron.judge_devices(check_neuron.gather_devices(node.machine), None, {}))


def errors(node: Node) -> list[tuple[str, str]]:
    return codes(check_neuron.judge_errors(check_neuron.gather_errors(node.machine), None, LIMITS))


@pytest.mark.parametrize(
    ("instance_type", "count"),
    [("ml.trn1.32xlarge", 16), ("trn2.48xlarge", 16), ("inf2.48xlarge", 12), ("trn1.2xlarge", 1)],
)
def test_an_instance_type_knows_its_devices(
    tree: SysfsTree, instance_type: str, count: int
) -> None:
    for number in range(count - 1):
        tree.add_neuron(number)
    node = Node(tree.root, Expected(instance_type))
    assert devices(node) == [("fewer", "")]
    tree.add_neuron(count - 1)
    assert devices(node) == []


def test_a_driver_that_is_not_loaded(tree: SysfsTree) -> None:
    tree.add_neuron(0)
    (tree.root / "sys/devices/virtual").rename(tree.root / "aside")
    (told,) = check_neuron.judge_devices(
        check_neuron.gather_devices(Node(tree.root).machine), None, {}
    )
    assert (told.code, told.verdict) == ("unbound", Verdict.WARN)
    assert devices(Node(tree.root, Expected("trn1.2xlarge"))) == [("fewer", "")]


PLACES = [("stats/hardware", False), ("stats/hardware", True), ("hardware/ecc", False),
          ("info/health/errors", False), ("ecc", True)]  # fmt: skip


@pytest.mark.parametrize(("folder", "total"), PLACES)
def test_errors_are_found_wherever_the_driver_keeps_them(
    tree: SysfsTree, folder: str, total: bool
) -> None:
    tree.add_neuron(0, folder, total)
    tree.add_neuron(1, folder, total)
    node = Node(tree.root)
    assert errors(node) == []
    tree.neuron_file(0, "mem_ecc_uncorrected").write_text("1\n")
    tree.neuron_file(1, "sram_ecc_uncorrected").write_text("3\n")
    tree.neuron_file(1, "mem_ecc_repairable_uncorrected").write_text("2\n")
    assert errors(node) == [
        ("mem_repairable", "neuron1"),
        ("mem_uncorrected", "neuron0"),
        ("sram_uncorrected", "neuron1"),
    ]


def test_a_driver_of_another_release_is_looked_at_anew(tree: SysfsTree) -> None:
    tree.add_neuron(0)
    node = Node(tree.root)
    assert errors(node) == []
    device = tree.root / "sys/devices/virtual/neuron_device/neuron0"
    (device / "stats/hardware").rename(device / "health")
    (device / "health/sram_ecc_uncorrected").write_text("1\n")
    assert errors(node) == []
    assert errors(node) == [("sram_uncorrected", "neuron0")]


def test_the_search_is_bounded(tree: SysfsTree, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tree.root / "sys/devices/virtual/neuron_device/neuron0"
    for number in range(300):
        (device / f"core{number:03}").mkdir(parents=True)
    looked: list[str] = []
    listed = check_neuron._folders
    look = lambda folder: looked.append(folder) or listed(folder)  # noqa: E731
    monkeypatch.setattr(check_neuron, "_folders", look)
    assert check_neuron.find(str(device)) == {}
    assert len(looked) == check_neuron.MOST_FOLDERS
