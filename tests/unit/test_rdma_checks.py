"""InfiniBand and RoCE: each rule at its limit and just below, dead ports, devices that go."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from hpctl.agent.check import Machine, NotHere, Observation
from hpctl.agent.checks import check_rdma
from hpctl.agent.counters import Trace
from hpctl.core.model import Verdict
from tests.fakes.fabric import Node, codes, limits, traces
from tests.sysfs_tree import SysfsTree

LIMITS = limits("rdma.errors")
BUSY = {
    # An H100 port with 400 Gb/s over two hours, a look every 30 minutes.
    "symbol_error": [14, 15, 15, 17, 18],
    "link_downed": [1, 1, 1, 1, 1],
    "link_error_recovery": [0, 0, 0, 0, 0],
    "local_link_integrity_errors": [0, 0, 0, 0, 0],
    "excessive_buffer_overrun_errors": [0, 0, 0, 0, 0],
    "port_rcv_errors": [21, 21, 23, 23, 24],
    "port_xmit_discards": [4_021, 4_377, 4_801, 5_204, 5_630],
    "rnr_nak_retry_err": [0, 0, 0, 0, 0],
    "local_ack_timeout_err": [3, 3, 9, 9, 9],
    "out_of_sequence": [120, 160, 180, 220, 240],
}


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path)


def judged(history: list[Trace]) -> list[Observation]:
    return list(check_rdma.judge_errors(history[-1], history[-2], LIMITS))


def grew(counter: str, by: int, every_s: float = 30.0, steps: int = 1) -> list[tuple[str, str]]:
    """What is said when a counter grew by so much over so many sweeps."""
    values = [100 + by * i // steps for i in range(steps + 1)]
    return codes(judged(traces({"mlx5_0": {counter: values}}, every_s)))


# --- counters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "allowed", "every_s", "code"),
    [
        ("link_downed", 0, 30, "link_downed"),
        ("excessive_buffer_overrun_errors", 0, 30, "excessive_buffer_overrun_errors"),
        ("local_link_integrity_errors", 0, 30, "local_link_integrity_errors"),
        ("rnr_nak_retry_err", 0, 30, "rnr_nak_retry_err"),
        ("symbol_error", 120, 30, "symbol_error"),
        ("symbol_error", 120, 3600, "symbol_error"),
        ("link_error_recovery", 5, 30, "link_error_recovery"),
        ("link_error_recovery", 5, 60, "link_error_recovery"),
        ("port_rcv_errors", 300, 30, "port_rcv_errors"),
        ("local_ack_timeout_err", 30, 30, "local_ack_timeout_err"),
        ("port_xmit_discards", 3000, 30, "port_xmit_discards"),
        ("carrier_changes", 2, 30, "carrier_changes"),
    ],
)
def test_each_rule_above_and_at_its_limit(
    counter: str, allowed: int, every_s: float, code: str
) -> None:
    assert grew(counter, allowed, every_s) == []
    assert grew(counter, allowed + 1, every_s) == [(code, "mlx5_0")]


def test_a_burst_of_symbol_errors_is_told_as_a_rate_too() -> None:
    assert grew("symbol_error", 301) == [
        ("symbol_error", "mlx5_0"),
        ("symbol_error_rate", "mlx5_0"),
    ]


def test_a_creep_is_summed_over_the_hour() -> None:
    assert grew("symbol_error", 121, 600, steps=6) == [("symbol_error", "mlx5_0")]
    assert grew("symbol_error", 121, 700, steps=6) == []


def test_what_remote_nodes_or_congestion_cause_is_a_warning() -> None:
    for counter in ("local_ack_timeout_err", "port_xmit_discards"):
        (told,) = judged(traces({"mlx5_0": {counter: [0, 10**6]}}, 30.0))
        assert told.verdict is Verdict.WARN


def test_the_detail_names_the_window() -> None:
    (told,) = judged(traces({"mlx5_3/2": {"link_downed": [4, 6]}}, 30.0))
    assert (told.device, told.detail) == ("mlx5_3/2", "link_downed +2 in 30 s")


@pytest.mark.parametrize(
    "trace",
    [
        BUSY,
        {name: [values[0]] * 5 for name, values in BUSY.items()},
        {name: [10**6, 10**6, 10**6, 0, 0] for name in BUSY},
        {"symbol_error": [0, 0, 0, 0, 0]},
    ],
    ids=["busy", "idle", "reset", "few counters"],
)
def test_a_healthy_port_is_silent(trace: dict[str, list[int]]) -> None:
    history = traces({"mlx5_0": trace}, 1800.0)
    for before, now in pairwise(history):
        assert list(check_rdma.judge_errors(now, before, LIMITS)) == []
    assert list(check_rdma.judge_errors(history[0], None, LIMITS)) == []


def test_gauges() -> None:
    seen = traces(
        {
            "a": {"symbol_error": [0, 30], "out_of_sequence": [0, 60]},
            "b": {"port_rcv_errors": [0, 30], "local_ack_timeout_err": [7, 7]},
        },
        30.0,
    )
    told = check_rdma.gauges_errors(seen[1], seen[0])
    assert told == {"rdma.errors_per_s": 2.0, "rdma.retrans_per_s": 2.0}
    assert set(told) == {"rdma.errors_per_s", "rdma.retrans_per_s"}
    assert check_rdma.gauges_errors(seen[0], None) == {}


# --- on a fake /sys ---------------------------------------------------------------------------


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


def test_a_machine_without_such_devices(tree: SysfsTree) -> None:
    tree.add_efas(2)
    for gather in (check_rdma.gather_errors, check_rdma.gather_link):
        with pytest.raises(NotHere):
            gather(Node(tree.root).machine)


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


def test_a_port_that_nobody_cabled_is_not(tree: SysfsTree) -> None:
    tree.add_mlx5("mlx5_0", state="1: DOWN")
    node = Node(tree.root)
    assert [links(node) for _ in range(3)] == [[], [], []]


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
