"""A played node's hardware: plugged in and out as told, and nothing beside it is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctl.agent.check import Machine, NotHere
from hpctl.agent.checks import check_efa, check_neuron
from hpctl.errors import HpctlError
from hpctl.sandbox import hardware
from hpctl.sandbox.faults import change_file, change_script


def test_a_node_that_boots_has_what_it_should(tmp_path: Path) -> None:
    root = tmp_path / "hardware"
    hardware.boot(root, {"efa": 6, "neuron": 2})
    machine = Machine(root)
    assert len(check_efa.gather_devices(machine).names) == 6
    assert check_efa.gather_devices(machine).on_bus == 6
    assert len(check_neuron.gather_devices(machine).names) == 2
    # Nobody sends their keep-alives: a count that stands still would be a fault.
    assert "keep_alive_rcvd" not in check_efa.trace(machine).now.devices["rdmap79s0"].values
    (root / "left").touch()
    hardware.boot(root, {})
    assert not (root / "left").exists()
    assert float(machine.text("/proc/uptime").split()[0]) > 3600


def test_devices_come_and_go(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    hardware.have(tmp_path, "efa", 5)
    kept = (tmp_path / "sys/class/infiniband/rdmap79s0").resolve()
    hardware.have(tmp_path, "efa", 2)
    hardware.have(tmp_path, "efa", 4)
    seen = check_efa.gather_devices(machine)
    assert seen.names == ("rdmap79s0", "rdmap79s1", "rdmap79s2", "rdmap79s3")
    assert seen.on_bus == 4
    assert (tmp_path / "sys/class/infiniband/rdmap79s0").resolve() == kept
    hardware.have(tmp_path, "neuron", 3)
    hardware.have(tmp_path, "neuron", 0)
    with pytest.raises(NotHere):
        check_neuron.gather_devices(machine)
    for kind, count in (("floppy", 1), ("efa", -1), ("efa", 1000)):
        with pytest.raises(HpctlError):
            hardware.have(tmp_path, kind, count)


def test_a_file_is_changed_in_place_and_only_below_the_node(tmp_path: Path) -> None:
    root = tmp_path / "hardware"
    hardware.boot(root, {"efa": 1})
    path = "/sys/class/infiniband/rdmap79s0/ports/1/state"
    held = (root / path[1:]).open()
    change_file(root, path, "1: DOWN")
    assert held.read() == "1: DOWN\n"
    held.close()
    change_file(root, path, remove=True)
    assert not (root / path[1:]).exists()
    change_file(root, "/sys/class/infiniband/rdmap79s0", remove=True)
    assert not (root / "sys/class/infiniband/rdmap79s0").exists()
    change_file(root, "/sys/class/nvme/nvme0/state", "live")
    assert (root / "sys/class/nvme/nvme0/state").read_text() == "live\n"
    for outside in ("/../boot_id", "/sys/../../boot_id", "/", "/proc/.."):
        with pytest.raises(HpctlError, match="does not lie below"):
            change_file(root, outside, "x")
    with pytest.raises(HpctlError, match="No such file"):
        change_file(root, "/sys/nothing", remove=True)


def test_answers_are_laid_over_the_script(tmp_path: Path) -> None:
    script = tmp_path / "nvml.script"
    script.write_text("count=2\ngpu*.field230=0\nevent gpu0 0x8 79\n")
    change_script(script, {"gpu1.field230": "2", "count": "1"})
    change_script(script, {"gpu1.field230": "1"})
    lines = script.read_text().splitlines()
    assert sorted(lines) == ["count=1", "event gpu0 0x8 79", "gpu*.field230=0", "gpu1.field230=1"]
