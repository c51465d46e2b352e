"""PCI functions that there should be: disks of the instance, and network cards."""

from pathlib import Path

import pytest

from hpctl.agent.check import Expected, Machine, NotHere
from hpctl.agent.checks import check_host_ec2
from tests.unit.host import said

DISK, EBS, ENA, MLX = "0x1d0f:0xcd01", "0x1d0f:0x8061", "0x1d0f:0xec20", "0x15b3:0x101e"
CLASSES = {DISK: "0x010802", EBS: "0x010802", ENA: "0x020000", MLX: "0x020700"}


def plug(root: Path, address: str, what: str) -> Path:
    folder = root / check_host_ec2.PCI.lstrip("/") / address
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
    seen = check_host_ec2.gather_devices(Machine(root, Expected(instance_type=kind)))
    return said(check_host_ec2.judge_devices(seen, None, {}))


def test_as_many_disks_as_the_type_has(tmp_path: Path) -> None:
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


def test_a_network_card_that_goes_is_told_until_it_is_back(tmp_path: Path) -> None:
    ena = plug(tmp_path, "0000:00:05.0", ENA)
    plug(tmp_path, "0000:5e:00.0", MLX)
    assert judged(tmp_path, "") == []
    unplug(ena)
    assert [(code, name) for code, name, _ in judged(tmp_path, "")] == [("network", "0000:00:05.0")]
    plug(tmp_path, "0000:00:05.0", ENA)
    assert judged(tmp_path, "") == []


def test_a_machine_with_neither_says_nothing(tmp_path: Path) -> None:
    plug(tmp_path, "0000:80:00.0", EBS)
    with pytest.raises(NotHere):
        judged(tmp_path, "")
