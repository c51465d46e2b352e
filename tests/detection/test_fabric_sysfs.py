"""EFA, InfiniBand, RoCE and Neuron on a fake /sys: counting, the shared sweep, what vanishes."""

import pytest

from hpctl.detection import rdma_counters
from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    ExpectedHardware,
)
from hpctl.detection.check_once import run_node_checks_once
from hpctl.detection.checks import (
    efa_devices,
    efa_reading,
    neuron_errors,
    neuron_reading,
    rdma_errors,
    rdma_link,
)
from hpctl.detection.checks import neuron_devices as checks_neuron_devices
from hpctl.detection.runner import load_check
from hpctl.faults.table import CHECKS
from hpctl.vocabulary.model import DeviceVerdict
from tests.fakes.fabric import Node, codes, limits
from tests.sysfs_tree import EmulatedSysfsTree


@pytest.fixture
def tree(tmp_path) -> EmulatedSysfsTree:
    return EmulatedSysfsTree(tmp_path)


def devices(node: Node) -> list[tuple[str, str]]:
    return codes(
        efa_devices.judge_efa_device_count(
            efa_devices.collect_efa_device_sample(node.machine), None, {}
        )
    )


@pytest.mark.parametrize(
    ("instance_type", "count"),
    [
        ("ml.p4d.24xlarge", 4), ("p4de.24xlarge", 4), ("ml.p5.48xlarge", 32),
        ("ml.p5e.48xlarge", 32), ("ml.p5en.48xlarge", 16), ("ml.p6-b200.48xlarge", 8),
    ],
)  # fmt: skip
def test_an_instance_type_knows_its_efa_devices(tree, instance_type, count):
    tree.add_p5_efa_devices(count)
    node = Node(tree.root, ExpectedHardware(instance_type))
    assert devices(node) == []
    tree.unplug("rdmap79s2")
    (reported,) = efa_devices.judge_efa_device_count(
        efa_devices.collect_efa_device_sample(node.machine), None, {}
    )
    assert (reported.code, reported.verdict) == ("fewer", DeviceVerdict.FAIL)
    assert reported.detail == (
        f"{count - 1} of {count} EFA devices ({instance_type}), {count - 1} on the PCI bus; "
        "gone: rdmap79s2"
    )


def test_an_instance_without_efa_is_its_owners_choice(tree):
    with pytest.raises(DeviceAbsentError):
        efa_devices.collect_efa_device_sample(
            Node(tree.root, ExpectedHardware("p5.48xlarge")).machine
        )


def test_of_an_unknown_type_the_most_that_was_seen_counts(tree):
    tree.add_p5_efa_devices(4)
    node = Node(tree.root, ExpectedHardware("x9.metal"))
    assert devices(node) == []
    for name in ("rdmap79s0", "rdmap79s1", "rdmap79s2", "rdmap79s3"):
        tree.unplug(name)
        assert devices(node) == [("fewer", "")]


def test_more_than_expected_is_only_a_warning(tree):
    tree.add_p5_efa_devices(5)
    (reported,) = efa_devices.judge_efa_device_count(
        efa_devices.collect_efa_device_sample(
            Node(tree.root, ExpectedHardware("p4d.24xlarge")).machine
        ),
        None,
        {},
    )
    assert (reported.code, reported.verdict) == ("more", DeviceVerdict.WARN)


def test_a_young_sweep_is_shared_and_an_old_one_is_not(tree):
    tree.add_efa_device("efa_0")
    node = Node(tree.root)
    first = efa_reading.read_efa_counter_trace(node.machine)
    tree.set("efa_0", "rx_drops", 9)
    node.clock.now += 9.9
    assert efa_reading.read_efa_counter_trace(node.machine) is first
    node.clock.now += 0.1
    second = efa_reading.read_efa_counter_trace(node.machine)
    assert (dict(second.rises(first.now, "rx_drops")), second.past) == ({"efa_0": 9}, (first.now,))


def test_a_slow_device_leaves_the_others_to_the_next_sweep(tree, monkeypatch):
    names = tree.add_p5_efa_devices(4)
    node = Node(tree.root)
    read = rdma_counters.CounterFileReader.read

    def slow(
        files: rdma_counters.CounterFileReader, folder: str
    ) -> rdma_counters.DeviceCounterReading | None:
        if folder.endswith(names[1]):
            node.clock.now += 30
        return read(files, folder)

    monkeypatch.setattr(rdma_counters.CounterFileReader, "read", slow)
    assert list(efa_reading.read_efa_counter_trace(node.machine).now.devices) == names[:2]
    node.clock.now += 12
    assert list(efa_reading.read_efa_counter_trace(node.machine).now.devices) == [
        *names[2:],
        *names[:2],
    ]


def test_a_folder_that_cannot_be_listed_is_not_reported_apart_from_nothing(tree, monkeypatch):
    def broken(folder: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("hpctl.detection.rdma.os.listdir", broken)
    with pytest.raises(CheckResultUnknownError, match="/sys/class/infiniband: Permission denied"):
        efa_reading.read_efa_counter_trace(Node(tree.root).machine)


# The fabric's checks together: silent on a healthy machine, and on one without a fabric.
def test_every_check_loads_and_is_silent_on_a_healthy_p5(tmp_path):
    tree = EmulatedSysfsTree(tmp_path)
    tree.add_p5_efa_devices(32)
    tree.add_mlx5_device("mlx5_0", interface="eth0")
    tree.add_neuron_device(0)
    node = Node(tmp_path, ExpectedHardware("ml.p5.48xlarge", neuron_devices=1))
    checks = [
        load_check(spec) for spec in CHECKS if spec.name.startswith(("efa.", "rdma.", "neuron."))
    ]
    assert {row.state for row in run_node_checks_once(checks, node.machine)} == {"ok"}


def test_every_check_is_silent_on_a_machine_without_a_fabric(tmp_path):
    checks = [
        load_check(spec) for spec in CHECKS if spec.name.startswith(("efa.", "rdma.", "neuron."))
    ]
    assert {row.state for row in run_node_checks_once(checks, Node(tmp_path).machine)} == {"absent"}


def test_devices_without_a_driver(tree):
    tree.add_p5_efa_devices(4)
    tree.unbind_rdma_driver("rdmap79s3")
    assert devices(Node(tree.root, ExpectedHardware("p4d.24xlarge"))) == [("fewer", "")]
    (reported,) = efa_devices.judge_efa_device_count(
        efa_devices.collect_efa_device_sample(Node(tree.root).machine), None, {}
    )
    assert (reported.code, reported.verdict) == ("unbound", DeviceVerdict.WARN)
    assert reported.detail == "1 of 4 EFA devices have no driver"


LIMITS = limits("rdma.errors")


def test_ports_and_interfaces_are_read_and_efa_is_left_alone(tree):
    tree.add_p5_efa_devices(2)
    tree.add_mlx5_device("mlx5_0", ports=2)
    tree.add_mlx5_device("mlx5_1", interface="eth1")
    node = Node(tree.root)
    first = rdma_errors.read_rdma_error_counters(node.machine)
    assert set(first.now.devices) == {"mlx5_0", "mlx5_0/2", "mlx5_1", "eth1"}
    assert list(rdma_errors.judge_rdma_error_counters(first, None, LIMITS)) == []
    tree.set("mlx5_0", "link_downed", 1, port=2)
    tree.set("mlx5_1", "carrier_changes", 5)
    node.clock.now += 30
    second = rdma_errors.read_rdma_error_counters(node.machine)
    assert codes(rdma_errors.judge_rdma_error_counters(second, first, LIMITS)) == [
        ("carrier_changes", "eth1"),
        ("link_downed", "mlx5_0/2"),
    ]


def links(node: Node) -> list[tuple[str, str]]:
    return codes(
        rdma_link.judge_rdma_port_states(rdma_link.collect_rdma_link_sample(node.machine), None, {})
    )


def test_a_port_that_was_active_and_is_down_is_reported(tree):
    tree.add_mlx5_device("mlx5_0", ports=2)
    node = Node(tree.root)
    assert links(node) == []
    tree.state("mlx5_0", "2: INIT", "5: LinkUp", port=2)
    assert (links(node), links(node)) == ([("down", "mlx5_0/2")], [("down", "mlx5_0/2")])
    tree.state("mlx5_0", "4: ACTIVE", "5: LinkUp", port=2)
    assert links(node) == []


def test_a_device_that_vanishes_is_reported_until_it_returns_even_if_it_was_the_only_one(tree):
    tree.add_mlx5_device("mlx5_0")
    node = Node(tree.root)
    assert links(node) == []
    tree.unplug("mlx5_0")
    assert links(node) == [("gone", "mlx5_0")]
    tree.add_mlx5_device("mlx5_0")
    assert links(node) == []


def test_a_port_that_came_back_slower_is_reported(tmp_path):
    folder = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    folder.mkdir(parents=True)
    for name, text in (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp")):
        (folder / name).write_text(f"{text}\n")

    def at(rate: str) -> list[tuple[str, str]]:
        (folder / "rate").write_text(f"{rate}\n")
        seen = rdma_link.collect_rdma_link_sample(CheckedMachine(tmp_path))
        return [(o.code, o.device) for o in rdma_link.judge_rdma_port_states(seen, None, {})]

    assert at("400 Gb/sec (4X NDR)") == []
    assert (at("400 Gb/sec (4X NDR)"), at("100 Gb/sec (1X NDR)")) == ([], [("slow", "mlx5_0")])
    assert (at(""), at("400 Gb/sec (4X NDR)")) == ([], [])


def test_a_port_without_a_cable_is_not(tree):
    tree.add_mlx5_device("mlx5_0", state="1: DOWN")
    node = Node(tree.root)
    assert [links(node) for _ in range(3)] == [[], [], []]


NEURON_LIMITS = limits("neuron.errors")


def neuron_devices(node: Node) -> list[tuple[str, str]]:
    return codes(
        checks_neuron_devices.judge_neuron_device_count(
            checks_neuron_devices.collect_neuron_device_sample(node.machine), None, {}
        )
    )


def errors(node: Node) -> list[tuple[str, str]]:
    return codes(
        neuron_errors.judge_neuron_error_counters(
            neuron_errors.read_neuron_error_counters(node.machine), None, NEURON_LIMITS
        )
    )


@pytest.mark.parametrize(
    ("instance_type", "count"),
    [("ml.trn1.32xlarge", 16), ("trn2.48xlarge", 16), ("inf2.48xlarge", 12), ("trn1.2xlarge", 1)],
)
def test_an_instance_type_knows_its_devices(tree, instance_type, count):
    for number in range(count - 1):
        tree.add_neuron_device(number)
    node = Node(tree.root, ExpectedHardware(instance_type))
    assert neuron_devices(node) == [("fewer", "")]
    tree.add_neuron_device(count - 1)
    assert neuron_devices(node) == []


def test_a_driver_that_is_not_loaded(tree):
    tree.add_neuron_device(0)
    (tree.root / "sys/devices/virtual").rename(tree.root / "aside")
    (reported,) = checks_neuron_devices.judge_neuron_device_count(
        checks_neuron_devices.collect_neuron_device_sample(Node(tree.root).machine), None, {}
    )
    assert (reported.code, reported.verdict) == ("unbound", DeviceVerdict.WARN)
    assert neuron_devices(Node(tree.root, ExpectedHardware("trn1.2xlarge"))) == [("fewer", "")]


PLACES = [("stats/hardware", False), ("stats/hardware", True), ("hardware/ecc", False),
          ("info/health/errors", False), ("ecc", True)]  # fmt: skip


@pytest.mark.parametrize(("folder", "total"), PLACES)
def test_errors_are_found_wherever_the_driver_keeps_them(tree, folder, total):
    tree.add_neuron_device(0, folder, total)
    tree.add_neuron_device(1, folder, total)
    node = Node(tree.root)
    assert errors(node) == []
    tree.find_neuron_counter_file(0, "mem_ecc_uncorrected").write_text("1\n")
    tree.find_neuron_counter_file(1, "sram_ecc_uncorrected").write_text("3\n")
    tree.find_neuron_counter_file(1, "mem_ecc_repairable_uncorrected").write_text("2\n")
    assert errors(node) == [
        ("mem_repairable", "neuron1"),
        ("mem_uncorrected", "neuron0"),
        ("sram_uncorrected", "neuron1"),
    ]


def test_a_driver_of_another_release_is_looked_at_again(tree):
    tree.add_neuron_device(0)
    node = Node(tree.root)
    assert errors(node) == []
    device = tree.root / "sys/devices/virtual/neuron_device/neuron0"
    (device / "stats/hardware").rename(device / "health")
    (device / "health/sram_ecc_uncorrected").write_text("1\n")
    assert (errors(node), errors(node)) == ([], [("sram_uncorrected", "neuron0")])


def test_the_search_is_bounded(tree, monkeypatch):
    device = tree.root / "sys/devices/virtual/neuron_device/neuron0"
    for number in range(300):
        (device / f"core{number:03}").mkdir(parents=True)
    looked: list[str] = []
    listed = neuron_reading.list_subfolders
    look = lambda folder: looked.append(folder) or listed(folder)  # noqa: E731
    monkeypatch.setattr(neuron_reading, "list_subfolders", look)
    assert (neuron_reading.find_neuron_counter_files(str(device)), len(looked)) == (
        {},
        neuron_reading.MOST_FOLDERS,
    )
