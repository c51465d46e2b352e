"""A played node's hardware: plugged in and out as told, and nothing beside it is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctl.errors import HpctlError
from hpctl.sandbox import hardware
from hpctl.sandbox.faults import change_file


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
