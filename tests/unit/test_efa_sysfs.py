"""EFA on a fake /sys: counting devices, the shared sweep, and devices that vanish."""

from pathlib import Path

import pytest

from hpctl.agent.check import CannotTell, Expected, NotHere
from hpctl.agent.checks import check_efa
from hpctl.agent.runner import load, look
from hpctl.core.faults.table import CHECKS
from hpctl.core.model import Verdict
from tests.fakes.fabric import Node, codes
from tests.sysfs_tree import SysfsTree


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path)


def devices(node: Node) -> list[tuple[str, str]]:
    return codes(check_efa.judge_devices(check_efa.gather_devices(node.machine), None, {}))


# --- counting ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instance_type", "count"),
    [
        ("ml.p4d.24xlarge", 4), ("p4de.24xlarge", 4), ("ml.p5.48xlarge", 32),
        ("ml.p5e.48xlarge", 32), ("ml.p5en.48xlarge", 16), ("ml.p6-b200.48xlarge", 8),
    ],
)  # fmt: skip
def test_an_instance_type_knows_its_efa_devices(
    tree: SysfsTree, instance_type: str, count: int
) -> None:
    tree.add_efas(count)
    node = Node(tree.root, Expected(instance_type))
    assert devices(node) == []
    tree.unplug("rdmap79s2")
    sample = check_efa.gather_devices(node.machine)
    (told,) = check_efa.judge_devices(sample, None, {})
    assert (told.code, told.verdict) == ("fewer", Verdict.FAIL)
    assert told.detail == (
        f"{count - 1} of {count} EFA devices ({instance_type}), {count - 1} on the PCI bus; "
        "gone: rdmap79s2"
    )


def test_an_instance_without_efa_is_its_owners_choice(tree: SysfsTree) -> None:
    with pytest.raises(NotHere):
        check_efa.gather_devices(Node(tree.root, Expected("p5.48xlarge")).machine)


def test_of_an_unknown_type_the_most_that_was_seen_counts(tree: SysfsTree) -> None:
    tree.add_efas(4)
    node = Node(tree.root, Expected("x9.metal"))
    assert devices(node) == []
    for name in ("rdmap79s0", "rdmap79s1", "rdmap79s2", "rdmap79s3"):
        tree.unplug(name)
        assert devices(node) == [("fewer", "")]


def test_more_than_expected_is_only_a_warning(tree: SysfsTree) -> None:
    tree.add_efas(5)
    (told,) = check_efa.judge_devices(
        check_efa.gather_devices(Node(tree.root, Expected("p4d.24xlarge")).machine), None, {}
    )
    assert (told.code, told.verdict) == ("more", Verdict.WARN)


# --- links ------------------------------------------------------------------------------------


# --- the shared sweep -------------------------------------------------------------------------


def test_a_young_sweep_is_shared_and_an_old_one_is_not(tree: SysfsTree) -> None:
    tree.add_efa("efa_0")
    node = Node(tree.root)
    first = check_efa.trace(node.machine)
    tree.set("efa_0", "rx_drops", 9)
    node.clock.now += 9.9
    assert check_efa.trace(node.machine) is first
    node.clock.now += 0.1
    second = check_efa.trace(node.machine)
    assert dict(second.rises(first.now, "rx_drops")) == {"efa_0": 9}
    assert second.past == (first.now,)


def test_a_device_that_vanishes_is_missing_and_starts_anew_when_it_returns(tree: SysfsTree) -> None:
    tree.add_efa("efa_0", {"rx_drops": 5})
    tree.add_efa("efa_1")
    node = Node(tree.root)
    first = check_efa.trace(node.machine)
    tree.unplug("efa_0")
    node.clock.now += 12
    assert set(check_efa.trace(node.machine).now.devices) == {"efa_1"}
    tree.add_efa("efa_0", {"rx_drops": 5000})
    node.clock.now += 12
    back = check_efa.trace(node.machine)
    assert back.now.devices["efa_0"].values["rx_drops"] == 5000
    assert dict(back.rises(first.now, "rx_drops")) == {"efa_1": 0}


def test_a_slow_device_leaves_the_others_to_the_next_sweep(
    tree: SysfsTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tree.add_efas(4)
    node = Node(tree.root)
    read = check_efa.CounterFiles.read

    def slow(files: check_efa.CounterFiles, folder: str) -> check_efa.Reading | None:
        if folder.endswith(names[1]):
            node.clock.now += 30
        return read(files, folder)

    monkeypatch.setattr(check_efa.CounterFiles, "read", slow)
    assert list(check_efa.trace(node.machine).now.devices) == names[:2]
    node.clock.now += 12
    assert list(check_efa.trace(node.machine).now.devices) == [*names[2:], *names[:2]]


def test_a_folder_that_cannot_be_listed_is_not_told_apart_from_nothing(
    tree: SysfsTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(folder: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hpctl.agent.rdma.os.listdir", broken)
    with pytest.raises(CannotTell, match="/sys/class/infiniband: Permission denied"):
        check_efa.trace(Node(tree.root).machine)


# --- The fabric's checks together: silent on a healthy machine, and on one without a fabric.


def test_every_check_loads_and_is_silent_on_a_healthy_p5(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.add_efas(32)
    tree.add_mlx5("mlx5_0", interface="eth0")
    tree.add_neuron(0)
    node = Node(tmp_path, Expected("ml.p5.48xlarge", neuron_devices=1))
    checks = [load(spec) for spec in CHECKS if spec.name.startswith(("efa.", "rdma.", "neuron."))]
    assert {row.state for row in look(checks, node.machine)} == {"ok"}


def test_every_check_is_silent_on_a_machine_without_a_fabric(tmp_path: Path) -> None:
    checks = [load(spec) for spec in CHECKS if spec.name.startswith(("efa.", "rdma.", "neuron."))]
    assert {row.state for row in look(checks, Node(tmp_path).machine)} == {"absent"}


def test_devices_without_a_driver(tree: SysfsTree) -> None:
    tree.add_efas(4)
    tree.unbind("rdmap79s3")
    assert devices(Node(tree.root, Expected("p4d.24xlarge"))) == [("fewer", "")]
    (told,) = check_efa.judge_devices(check_efa.gather_devices(Node(tree.root).machine), None, {})
    assert (told.code, told.verdict) == ("unbound", Verdict.WARN)
    assert told.detail == "1 of 4 EFA devices have no driver"
