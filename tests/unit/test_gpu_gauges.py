"""What a node with GPUs tells the head node for the comparison with its peers."""

import pytest

from hpctl.agent.checks import check_gpu_speed
from hpctl.agent.nvml.snapshot import Pcie, Snapshot, Throttle
from tests.sweeps import but, gpus

FRESH = {
    "utilization": 90,
    "power_mw": 600_000,
    "sm_clock_mhz": 1900,
    "vbios": "96.00.74.00.01",
    "persistence": True,
    "sm_clock_application_mhz": 1980,
}
START = Snapshot(0.0, gpus=gpus(**FRESH, throttle=Throttle(hw_thermal_ns=0), pcie=Pcie(replays=0)))


def later(at: float = 10.0) -> Snapshot:
    among = gpus(**FRESH, throttle=Throttle(hw_thermal_ns=0), pcie=Pcie(replays=0))
    return Snapshot(
        at,
        gpus=but(
            2,
            among,
            throttle=Throttle(hw_thermal_ns=4_000_000_000, sw_power_cap_ns=9_000_000_000),
            pcie=Pcie(replays=50),
            sm_clock_mhz=1200,
            utilization=98,
        ),
    )


def test_the_worst_gpu_tells_and_load_and_power_are_means() -> None:
    assert check_gpu_speed.gauges_gauges(later(), START) == {
        "gpu.throttle_share": pytest.approx(0.4),
        "gpu.sm_clock_mhz": 1200.0,
        "gpu.pcie_replays_per_minute": pytest.approx(300.0),
        "gpu.busy": pytest.approx(0.91),
        "gpu.power_w": pytest.approx(600.0),
        "gpu.vbios": float(0x9600740001),
        "gpu.persistence": 1.0,
        "gpu.application_clock_mhz": 1980.0,
    }


def test_an_idle_gpu_sets_no_pace() -> None:
    idle = Snapshot(10.0, gpus=but(2, gpus(**FRESH), utilization=0, sm_clock_mhz=210))
    assert check_gpu_speed.gauges_gauges(idle, START)["gpu.sm_clock_mhz"] == 1900.0
