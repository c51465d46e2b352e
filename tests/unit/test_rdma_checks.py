"""InfiniBand and RoCE on a fake /sys: dead ports, slower ports, devices that go."""

from pathlib import Path

import pytest

from hpctl.agent.check import Machine
from hpctl.agent.checks import check_rdma
from tests.fakes.fabric import Node, codes, limits
from tests.sysfs_tree import SysfsTree

LIMITS = limits("rdma.errors")


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path)


def test_ports_and_interfaces_are_read_and_efa_is_left_alone(tree: SysfsTree) -> None:
    tree.add_efas(2)
    tree.add_mlx5("mlx5_0", ports=2)
    tree.add_mlx5("mlx5_1", interface="eth1")
    node = Node(tree.root)
    first = check_rdma.gather_errors(node.machine)
    assert set(first.now.devices) == {"mlx5_0", "mlx5_0/2", "mlx5_1", "eth1"}
    assert list(check_rdma.judge_errors(first, None, LIMITS)) == []
    tree.set("mlx5_0", "link_downed", 1, port=2)
    tree.set("mlx5_1", "carrier_changes", 5)
    node.clock.now += 30
    second = check_rdma.gather_errors(node.machine)
    assert codes(check_rdma.judge_errors(second, first, LIMITS)) == [
        ("carrier_changes", "eth1"),
        ("link_downed", "mlx5_0/2"),
    ]


def test_a_device_that_returns_is_not_compared_with_its_former_life(tree: SysfsTree) -> None:
    tree.add_mlx5("mlx5_0")
    tree.add_mlx5("mlx5_1")
    node = Node(tree.root)
    first = check_rdma.gather_errors(node.machine)
    tree.unplug("mlx5_0")
    node.clock.now += 30
    second = check_rdma.gather_errors(node.machine)
    assert set(second.now.devices) == {"mlx5_1"}
    tree.add_mlx5("mlx5_0")
    tree.set("mlx5_0", "link_downed", 50)
    node.clock.now += 30
    third = check_rdma.gather_errors(node.machine)
    assert list(check_rdma.judge_errors(third, second, LIMITS)) == []
    assert first.now.devices.keys() == third.now.devices.keys()


def links(node: Node) -> list[tuple[str, str]]:
    return codes(check_rdma.judge_link(check_rdma.gather_link(node.machine), None, {}))


def test_a_port_that_was_active_and_is_down_is_told(tree: SysfsTree) -> None:
    tree.add_mlx5("mlx5_0", ports=2)
    node = Node(tree.root)
    assert links(node) == []
    tree.state("mlx5_0", "2: INIT", "5: LinkUp", port=2)
    assert links(node) == [("down", "mlx5_0/2")]
    assert links(node) == [("down", "mlx5_0/2")]
    tree.state("mlx5_0", "4: ACTIVE", "5: LinkUp", port=2)
    assert links(node) == []


def test_a_device_that_vanishes_is_told_until_it_returns_even_if_it_was_the_only_one(
    tree: SysfsTree,
) -> None:
    tree.add_mlx5("mlx5_0")
    node = Node(tree.root)
    assert links(node) == []
    tree.unplug("mlx5_0")
    assert links(node) == [("gone", "mlx5_0")]
    tree.add_mlx5("mlx5_0")
    assert links(node) == []


def test_a_port_that_came_back_slower_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    folder.mkdir(parents=True)
    for name, text in (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp")):
        (folder / name).write_text(f"{text}\n")

    def at(rate: str) -> list[tuple[str, str]]:
        (folder / "rate").write_text(f"{rate}\n")
        seen = check_rdma.gather_link(Machine(tmp_path))
        return [(o.code, o.device) for o in check_rdma.judge_link(seen, None, {})]

    assert at("400 Gb/sec (4X NDR)") == []
    assert at("400 Gb/sec (4X NDR)") == []
    assert at("100 Gb/sec (1X NDR)") == [("slow", "mlx5_0")]
    assert at("") == []
    assert at("400 Gb/sec (4X NDR)") == []


def test_a_port_that_nobody_cabled_is_not(tree: SysfsTree) -> None:
    tree.add_mlx5("mlx5_0", state="1: DOWN")
    node = Node(tree.root)
    assert [links(node) for _ in range(3)] == [[], [], []]
