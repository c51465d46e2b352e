"""A busy and healthy H100 as NVML shows it; counters grow as they do in service."""

from hpctl.detection.nvml.snapshot import (
    ClockThrottleTimes,
    GpuEccCounters,
    GpuProcess,
    GpuRowRemapping,
    GpuState,
    NvlinkFabric,
    NvlinkState,
    PcieLinkState,
)

BUSES = ("0f", "10", "53", "64", "75", "86", "97", "ca")
LINKS = 18


def gpu(index: int, seconds: float) -> GpuState:
    """The GPU at that time of the case."""
    return GpuState(
        index=index, uuid=f"GPU-00000000-0000-0000-0000-00000000000{index}",
        pci=f"0000:{BUSES[index % 8]}:00.0", name="NVIDIA H100 80GB HBM3", recovery_action=0,
        utilization=97, sm_clock_mhz=1980, power_mw=640_000, temperature_c=58,
        temperature_slowdown_c=87, temperature_margin_c=29, memory_temperature_c=72,
        memory_temperature_max_c=95, throttle=ClockThrottleTimes(0, 0, 0),
        remap=GpuRowRemapping(0, 0, False, False, 0, 0), ecc=GpuEccCounters(0, 3, False, None, None,
        None),
        pcie=PcieLinkState(5, 5, 16, 16, int(seconds / 300)),
        nvlinks=tuple(NvlinkState(n, True, 0, 0, 0, None, None) for n in range(LINKS)),
        fabric=NvlinkFabric(3, 0, 0, "0" * 31 + "1", 0),
        processes=(GpuProcess(4000 + index, 70_000_000_000),),
    )  # fmt: skip
