"""What EC2 gives an instance: allowances, and the PCI functions that there should be."""

import struct
from pathlib import Path

import pytest

from hpctl.detection import probe
from hpctl.detection.check import CheckedMachine, DeviceAbsentError, ExpectedHardware
from hpctl.detection.checks import host_allowance, host_devices
from hpctl.detection.checks.host_allowance import parse_ebs_statistics, parse_ethtool_allowances
from tests.detection.host import summary

# As ethtool prints it on an instance with ENA.
ETHTOOL = """NIC statistics:
     total_resets: 0
     reset_fail: 0
     tx_timeout: 0
     bw_in_allowance_exceeded: {bw}
     bw_out_allowance_exceeded: 3
     pps_allowance_exceeded: 0
     conntrack_allowance_exceeded: {conntrack}
     linklocal_allowance_exceeded: 0
     conntrack_allowance_available: 1048576
     queue_0_tx_cnt: 12345
"""


def page(*exceeded: int, magic: int = 0x3C23B510) -> str:
    """Log page 0xd0 as `nvme get-log` prints it."""
    data = struct.pack("<II10Q", magic, 0, 1, 2, 3, 4, 5, 6, *exceeded) + b"\0" * 8
    rows = [
        f'{at:04x}: {data[at : at + 16].hex(" ")} "................"'
        for at in range(0, len(data), 16)
    ]
    head = "Device:nvme1 log-id:208 namespace-id:0x1\n       0  1  2  3  4  5  6  7\n"
    return head + "\n".join(rows) + "\n"


def test_what_ethtool_says():
    assert parse_ethtool_allowances(ETHTOOL.format(bw=12, conntrack=7)) == [
        ("bw_in", 12), ("bw_out", 3), ("pps", 0), ("conntrack", 7), ("linklocal", 0),
    ]  # fmt: skip


def test_what_an_ebs_volume_says():
    stats = parse_ebs_statistics(page(10, 20, 30, 40))
    assert ([count for _, count in stats], stats[0][0]) == ([10, 20, 30, 40], "the volume's IOPS")


@pytest.mark.parametrize("text", ["", "0000: 01 02", page(1, 2, 3, 4, magic=1), "NVMe status: ..."])
def test_a_page_of_another_kind_says_nothing(text):
    assert parse_ebs_statistics(text) == []


def test_each_device_is_asked_by_its_program(tmp_path, monkeypatch):
    """The programs are ours, the children real."""
    for name, driver in (("eth0", "ena"), ("lo0", "veth")):
        folder = tmp_path / "sys/class/net" / name / "device"
        folder.mkdir(parents=True)
        (tmp_path / driver).mkdir()
        (folder / "driver").symlink_to(tmp_path / driver)
    for name, model in (
        ("nvme0", "Amazon EC2 NVMe Instance Storage"),
        ("nvme1", host_allowance.EBS_MODEL),
    ):
        (tmp_path / "sys/class/nvme" / name).mkdir(parents=True)
        (tmp_path / "sys/class/nvme" / name / "model").write_text(model + "   \n")
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "ena.txt").write_text(ETHTOOL.format(bw=1, conntrack=2))
    (tmp_path / "ebs.txt").write_text(page(1, 2, 3, 4))
    (programs / "ethtool").write_text(f"#!/bin/sh\n[ $2 = eth0 ] && cat {tmp_path}/ena.txt\n")
    (programs / "nvme").write_text(
        f"#!/bin/sh\nfor last; do :; done\n[ $last = /dev/nvme1 ] && cat {tmp_path}/ebs.txt\n"
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setattr(probe, "ENVIRONMENT", {"PATH": f"{programs}:/usr/bin:/bin"})
    seen = host_allowance.read_ec2_allowance_counters(CheckedMachine(tmp_path))
    assert {name for name, _, _ in seen.network} == {"eth0"}
    assert ("nvme1", "the instance's IOPS to EBS", 3) in seen.ebs


DISK, EBS, ENA, MLX = "0x1d0f:0xcd01", "0x1d0f:0x8061", "0x1d0f:0xec20", "0x15b3:0x101e"

CLASSES = {DISK: "0x010802", EBS: "0x010802", ENA: "0x020000", MLX: "0x020700"}


def plug(root: Path, address: str, what: str) -> Path:
    folder = root / host_devices.PCI.lstrip("/") / address
    folder.mkdir(parents=True)
    vendor, device = what.split(":")
    for name, text in (("vendor", vendor), ("device", device), ("class", CLASSES[what])):
        (folder / name).write_text(f"{text}\n")
    return folder


def unplug(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def judged(root: Path, kind: str = "ml.p5.48xlarge") -> list[tuple[str, str, object]]:
    seen = host_devices.collect_pci_device_sample(
        CheckedMachine(root, ExpectedHardware(instance_type=kind))
    )
    return summary(host_devices.judge_missing_pci_devices(seen, None, {}))


def test_as_many_disks_as_the_type_has(tmp_path):
    disks = [plug(tmp_path, f"0000:{n:02x}:00.0", DISK) for n in range(8)]
    plug(tmp_path, "0000:80:00.0", EBS)
    assert judged(tmp_path) == []
    unplug(disks[3])
    assert [code for code, _, _ in judged(tmp_path)] == ["nvme"]
    assert judged(tmp_path, "ml.c5.large") == []
    for disk in (*disks[:3], *disks[4:7]):
        unplug(disk)
    assert [code for code, _, _ in judged(tmp_path)] == ["nvme"]
    plug(tmp_path, "0000:00:05.0", ENA)
    unplug(disks[7])
    assert judged(tmp_path) == []


def test_a_network_card_that_goes_is_reported_until_it_is_back(tmp_path):
    ena = plug(tmp_path, "0000:00:05.0", ENA)
    plug(tmp_path, "0000:5e:00.0", MLX)
    assert judged(tmp_path, "") == []
    unplug(ena)
    assert [(code, name) for code, name, _ in judged(tmp_path, "")] == [("network", "0000:00:05.0")]
    plug(tmp_path, "0000:00:05.0", ENA)
    assert judged(tmp_path, "") == []


def test_a_machine_with_neither_says_nothing(tmp_path):
    plug(tmp_path, "0000:80:00.0", EBS)
    with pytest.raises(DeviceAbsentError):
        judged(tmp_path, "")
