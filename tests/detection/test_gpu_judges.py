"""What each GPU check says of the sweeps of gpu_cases.yaml, at each limit and just below."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from hpctl.detection.checks import gpu_gauges
from hpctl.detection.conditions import CheckFindingTracker
from hpctl.detection.nvml.snapshot import (
    ClockThrottleTimes,
    GpuEccCounters,
    GpuState,
    NvmlEvent,
    NvmlSnapshot,
    PcieLinkState,
)
from tests.fakes.values import at
from tests.sweeps import HOPPER, MINUTE, but, check, codes, gpus, judged, pci, row

TABLE = yaml.safe_load(Path(__file__).with_name("gpu_cases.yaml").read_text())

CASES = [
    pytest.param(name, cases.get("usual", {}), who, values, id=f"{name} {who} {number}")
    for name, cases in TABLE.items()
    for who in ("one", "all")
    for number, values in enumerate(cases.get(who, ()))
]

ONE = 2


def gpu(index: int, values: dict[str, Any]) -> GpuState:
    if "links" in values:
        up = values.pop("links")
        states = (None if up is None else link < up for link in range(18))
        values["nvlinks"] = [{"link": link, "active": on} for link, on in enumerate(states)]
    made = {"index": index, "uuid": f"GPU-{index}", "pci": pci(index), "name": HOPPER, **values}
    return msgspec.convert(made, GpuState)


def changed(usual: dict[str, Any], how: dict[str, Any]) -> dict[str, Any]:
    inside = {k: {**usual.get(k, {}), **v} for k, v in how.items() if isinstance(v, dict)}
    return {**usual, **how, **inside}


def sweep(at: float, usual: dict[str, Any], who: str, how: dict[str, Any]) -> NvmlSnapshot:
    theirs = how if who == "all" else {}
    return NvmlSnapshot(
        at, gpus=tuple(gpu(i, changed(usual, how if i == ONE else theirs)) for i in range(8))
    )


@pytest.mark.parametrize(("name", "usual", "who", "values"), CASES)
def test_what_is_reported(name, usual, who, values):
    *sweeps, expected = values if isinstance(values[-1], str) else [*values, ""]
    before, seen = [None, *sweeps][-2:]
    was = None if before is None else sweep(0.0, usual, who, before)
    output = judged(name, sweep(MINUTE, usual, who, seen), was)
    on = [pci(i) for i in (range(8) if who == "all" else [ONE]) for _ in expected.split()]
    assert sorted(o.device for o in output) == sorted(on)
    assert [o.code for o in output if o.device == pci(ONE)] == expected.split()


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (NvmlEvent(103, pci(1), 0x8, 94), "contained"),
        (NvmlEvent(91, pci(1), 0x8, 94), "contained"),
        (NvmlEvent(103, pci(1), 0x1000), "contained"),
        (NvmlEvent(89, pci(1), 0x8, 94), "uncorrectable"),
        (NvmlEvent(103, pci(2), 0x8, 94), "uncorrectable"),
        (NvmlEvent(103, pci(1), 0x8, 95), "uncorrectable"),
        (NvmlEvent(103, pci(1), 0x2000), "uncorrectable"),
    ],
)
def test_an_older_driver_says_by_an_event_whether_an_error_was_contained(event, code):
    before, now = (but(1, gpus(), ecc=GpuEccCounters(volatile_uncorrected=n)) for n in (0, 1))
    seen = NvmlSnapshot(105, gpus=now, events=(event,))
    assert codes("gpu.ecc", seen, NvmlSnapshot(100, gpus=before)) == {pci(1): code}


def test_a_gpu_is_known_again_by_its_uuid_when_indexes_move():
    first = GpuState(
        0, "GPU-a", pci(0), HOPPER, utilization=90, throttle=ClockThrottleTimes(power_brake_ns=0)
    )
    other = GpuState(
        1, "GPU-b", pci(1), HOPPER, utilization=90, throttle=ClockThrottleTimes(power_brake_ns=900)
    )
    seen, before = (
        NvmlSnapshot(MINUTE, gpus=(replace(other, index=0),)),
        NvmlSnapshot(0, gpus=(first, other)),
    )
    assert codes("gpu.throttle", seen, before) == {}


@pytest.mark.parametrize(("count", "found"), [(3, {}), (4, {pci(1): "slow"})])
def test_two_peers_are_too_few(count, found):
    among = gpus(count, sm_clock_mhz=1800, utilization=98)
    assert codes("gpu.clocks", NvmlSnapshot(1.0, gpus=but(1, among, sm_clock_mhz=900))) == found


@pytest.mark.parametrize(("worst", "found"), [(20, {}), (21, {pci(0): "replays-peers"})])
def test_replays_are_compared_with_ten_times_the_peers(worst, found):
    among = but(0, gpus(pcie=PcieLinkState(replays=2)), pcie=PcieLinkState(replays=worst))
    before = NvmlSnapshot(0.0, gpus=gpus(pcie=PcieLinkState(replays=0)))
    assert codes("gpu.pcie", NvmlSnapshot(MINUTE, gpus=among), before) == found


@pytest.mark.parametrize(
    ("name", "held", "least", "most"),
    [
        ("gpu.throttle", {"power_brake_ns": 10_000_000}, 0, 10),
        ("gpu.throttle", {"hw_thermal_ns": 20_000_000_000}, 5, 5),
        ("gpu.slowdown", {"hw_thermal_ns": 20_000_000_000}, 9, 10),
    ],
)
def test_what_continues_is_reported_in_minutes(name, held, least, most):
    """A light power brake within ten, heavy heat twice: after five and after ten."""
    one, conditions = check(name), CheckFindingTracker(row(name))
    before = None
    for minute in range(30):
        throttle = ClockThrottleTimes(**{counter: minute * ns for counter, ns in held.items()})
        seen = NvmlSnapshot(minute * MINUTE, gpus=but(3, gpus(utilization=97), throttle=throttle))
        conditions.saw(one.judge(seen, before, one.limits), at(60 * minute))
        before = seen
        if conditions.findings():
            break
    assert least <= minute <= most


FRESH = {
    "utilization": 90, "power_mw": 600_000, "sm_clock_mhz": 1900, "vbios": "96.00.74.00.01",
    "persistence": True, "sm_clock_application_mhz": 1980,
}  # fmt: skip

START = NvmlSnapshot(
    0.0,
    gpus=gpus(**FRESH, throttle=ClockThrottleTimes(hw_thermal_ns=0), pcie=PcieLinkState(replays=0)),
)


def later(at: float = 10.0) -> NvmlSnapshot:
    among = gpus(
        **FRESH, throttle=ClockThrottleTimes(hw_thermal_ns=0), pcie=PcieLinkState(replays=0)
    )
    return NvmlSnapshot(
        at,
        gpus=but(
            2, among, throttle=ClockThrottleTimes(hw_thermal_ns=4_000_000_000),
            pcie=PcieLinkState(replays=50), sm_clock_mhz=1200, utilization=98,
        ),
    )  # fmt: skip


def test_the_worst_gpu_tells_and_load_and_power_are_means():
    assert gpu_gauges.compute_gpu_peer_gauges(later(), START) == {
        "gpu.throttle_share": pytest.approx(0.4), "gpu.sm_clock_mhz": 1200.0,
        "gpu.pcie_replays_per_minute": pytest.approx(300.0), "gpu.busy": pytest.approx(0.91),
        "gpu.power_w": pytest.approx(600.0), "gpu.vbios": float(0x9600740001),
        "gpu.persistence": 1.0, "gpu.application_clock_mhz": 1980.0,
    }  # fmt: skip


def test_an_idle_gpu_sets_no_pace():
    idle = NvmlSnapshot(10.0, gpus=but(2, gpus(**FRESH), utilization=0, sm_clock_mhz=210))
    assert gpu_gauges.compute_gpu_peer_gauges(idle, START)["gpu.sm_clock_mhz"] == 1900.0
