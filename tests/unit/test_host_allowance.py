"""Allowances of EC2: what the drivers' counters say, and when it is worth a word."""

import struct
from pathlib import Path

import pytest

from hpctl.agent import probe
from hpctl.agent.check import Machine
from hpctl.agent.checks import check_host_ec2
from hpctl.agent.checks.check_host_ec2 import AllowanceSample, allowances, ebs_stats
from tests.unit.host import limits, said

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


def test_what_ethtool_says() -> None:
    assert allowances(ETHTOOL.format(bw=12, conntrack=7)) == [
        ("bw_in", 12), ("bw_out", 3), ("pps", 0), ("conntrack", 7), ("linklocal", 0),
    ]  # fmt: skip


def test_what_an_ebs_volume_says() -> None:
    stats = ebs_stats(page(10, 20, 30, 40))
    assert [count for _, count in stats] == [10, 20, 30, 40]
    assert stats[0][0] == "the volume's IOPS"


@pytest.mark.parametrize("text", ["", "0000: 01 02", page(1, 2, 3, 4, magic=1), "NVMe status: ..."])
def test_a_page_of_another_kind_says_nothing(text: str) -> None:
    assert ebs_stats(text) == []


def judged(before: AllowanceSample | None, now: AllowanceSample) -> list[tuple[str, str]]:
    found = said(check_host_ec2.judge_allowance(now, before, limits("host.allowance")))
    return [(code, device) for code, device, _ in found]


def of_network(**counts: int) -> AllowanceSample:
    return AllowanceSample(tuple(("eth0", what, count) for what, count in counts.items()), ())


@pytest.mark.parametrize(
    ("before", "now", "codes"),
    [
        ({"bw_in": 5}, {"bw_in": 1004}, []),
        ({"bw_in": 5}, {"bw_in": 1005}, [("network", "eth0")]),
        ({"conntrack": 0}, {"conntrack": 5000}, [("conntrack", "eth0")]),
        ({"bw_in": 5000}, {"bw_in": 0}, []),
        ({}, {"bw_in": 5000}, []),
    ],
)
def test_what_grew_is_told(
    before: dict[str, int], now: dict[str, int], codes: list[tuple[str, str]]
) -> None:
    assert judged(of_network(**before), of_network(**now)) == codes
    assert judged(None, of_network(**now)) == []


def test_each_device_is_asked_by_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The programs are ours, the children real."""
    for name, driver in (("eth0", "ena"), ("lo0", "veth")):
        folder = tmp_path / "sys/class/net" / name / "device"
        folder.mkdir(parents=True)
        (tmp_path / driver).mkdir()
        (folder / "driver").symlink_to(tmp_path / driver)
    for name, model in (
        ("nvme0", "Amazon EC2 NVMe Instance Storage"),
        ("nvme1", check_host_ec2._EBS),
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
    monkeypatch.setattr(probe, "_ENVIRONMENT", {"PATH": f"{programs}:/usr/bin:/bin"})
    seen = check_host_ec2.gather_allowance(Machine(tmp_path))
    assert {name for name, _, _ in seen.network} == {"eth0"}
    assert ("nvme1", "the instance's IOPS to EBS", 3) in seen.ebs
