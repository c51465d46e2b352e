"""How GPUs are set up: what differs, what is off, what is damaged."""

from __future__ import annotations

from typing import Any

import pytest

from hpctl.agent.nvml.snapshot import Snapshot
from tests.sweeps import but, codes, gpus, pci

SOUND: dict[str, Any] = {
    "vbios": "96.00.74.00.01",
    "inforom_corrupt": False,
    "persistence": True,
    "sm_clock_application_mhz": 1980,
    "sm_clock_default_mhz": 1980,
}


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, {}),
        ({"inforom_corrupt": True}, {pci(2): "inforom"}),
        ({"vbios": "96.00.61.00.01"}, {pci(2): "vbios"}),
        ({"vbios": ""}, {}),
        ({"persistence": False}, {pci(2): "persistence"}),
        ({"sm_clock_application_mhz": 1200}, {pci(2): "clocks"}),
        ({"sm_clock_application_mhz": None}, {}),
        ({"inforom_corrupt": None, "persistence": None}, {}),
    ],
)
def test_one_gpu_that_is_set_up_otherwise(changed: dict[str, Any], found: dict[str, str]) -> None:
    seen = Snapshot(100.0, gpus=but(2, gpus(**SOUND), **changed))
    assert codes("gpu.settings", seen) == found


def test_gpus_of_two_kinds_are_not_compared() -> None:
    mixed = but(2, gpus(**SOUND), name="NVIDIA L40S", vbios="95.02.18.80.01")
    assert codes("gpu.settings", Snapshot(100.0, gpus=mixed)) == {}
