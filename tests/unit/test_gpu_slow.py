"""GPU checks of slowness: throttle time, clocks beside peers, temperature margin."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from hpctl.agent.checks import check_gpu_speed
from hpctl.agent.conditions import Conditions
from hpctl.agent.nvml.snapshot import Gpu, Snapshot, Throttle
from hpctl.core.compat import UTC
from hpctl.core.model import Finding
from tests.sweeps import HOPPER, MINUTE, but, check, codes, gpus, judged, pci, row

SECOND = 1_000_000_000
NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def throttled(at: float, held: Throttle, load: int | None = 97, bits: int = 0x4) -> Snapshot:
    among = gpus(utilization=97, throttle=Throttle(0, 0, 0, 0, 0), clock_reasons=bits)
    return Snapshot(at, gpus=but(3, among, throttle=held, utilization=load))


START = throttled(0.0, Throttle(0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("held", "found"),
    [
        (Throttle(hw_thermal_ns=3 * SECOND), {}),
        (Throttle(hw_thermal_ns=3 * SECOND + 1), {pci(3): "hw-thermal"}),
        (Throttle(power_brake_ns=0), {}),
        (Throttle(power_brake_ns=1), {pci(3): "power-brake"}),
        (Throttle(sw_thermal_ns=12 * SECOND), {}),
        (Throttle(sw_thermal_ns=13 * SECOND), {pci(3): "sw-thermal"}),
        (Throttle(sw_power_cap_ns=60 * SECOND), {}),
        (Throttle(sync_boost_ns=60 * SECOND), {}),
        (Throttle(), {}),
    ],
)
def test_throttle_time_of_a_minute(held, found):
    assert codes("gpu.throttle", throttled(MINUTE, held), START) == found


@pytest.mark.parametrize(
    ("held", "found"),
    [
        (Throttle(hw_thermal_ns=12 * SECOND), {}),
        (Throttle(hw_thermal_ns=12 * SECOND + 1), {pci(3): "hw-thermal"}),
        (Throttle(power_brake_ns=12 * SECOND), {}),
        (Throttle(power_brake_ns=13 * SECOND), {pci(3): "power-brake"}),
        (Throttle(sw_thermal_ns=60 * SECOND), {}),
    ],
)
def test_heavy_slowdown_of_a_minute(held, found):
    assert codes("gpu.slowdown", throttled(MINUTE, held), START) == found


def test_the_software_power_cap_under_load_and_all_other_bits_are_normal():
    for bits in (0x4, 0x8, 0x20, 0x40, 0x80, 0x1FF):
        seen = throttled(MINUTE, Throttle(0, 0, 0, 0, 0), bits=bits)
        assert codes("gpu.throttle", seen, START) == {}
        assert codes("gpu.slowdown", seen, START) == {}


@pytest.mark.parametrize("load", [0, 49, None])
def test_only_a_busy_gpu_is_held_up(load):
    held = Throttle(hw_thermal_ns=30 * SECOND, power_brake_ns=30 * SECOND)
    assert codes("gpu.throttle", throttled(MINUTE, held, load), START) == {}
    busy_now = throttled(2 * MINUTE, Throttle(hw_thermal_ns=60 * SECOND))
    assert codes("gpu.throttle", busy_now, throttled(MINUTE, held, load)) == {}


def test_counters_that_go_back_or_jump_are_no_evidence():
    before = throttled(0.0, Throttle(hw_thermal_ns=900 * SECOND))
    assert codes("gpu.throttle", throttled(MINUTE, Throttle(hw_thermal_ns=50)), before) == {}
    jumped = Throttle(hw_thermal_ns=4000 * SECOND)
    assert codes("gpu.throttle", throttled(MINUTE, jumped), START) == {}


def test_no_share_without_an_earlier_and_another_sweep():
    held = throttled(MINUTE, Throttle(hw_thermal_ns=60 * SECOND))
    assert codes("gpu.throttle", held) == {}
    assert codes("gpu.throttle", held, held) == {}


def test_a_gpu_is_known_again_by_its_uuid_when_indexes_move():
    first = Gpu(0, "GPU-a", pci(0), HOPPER, utilization=90, throttle=Throttle(power_brake_ns=0))
    other = Gpu(1, "GPU-b", pci(1), HOPPER, utilization=90, throttle=Throttle(power_brake_ns=900))
    moved = Gpu(0, "GPU-b", pci(1), HOPPER, utilization=90, throttle=Throttle(power_brake_ns=900))
    seen, before = Snapshot(MINUTE, gpus=(moved,)), Snapshot(0.0, gpus=(first, other))
    assert codes("gpu.throttle", seen, before) == {}


def told_after(name: str, held_per_minute: Throttle) -> tuple[Finding, timedelta]:
    """Minute after minute of the same, until the agent tells of it."""
    one, conditions = check(name), Conditions(row(name))
    before = START
    for minute in range(1, 30):
        held = Throttle(
            hw_thermal_ns=minute * (held_per_minute.hw_thermal_ns or 0),
            power_brake_ns=minute * (held_per_minute.power_brake_ns or 0),
        )
        seen = throttled(minute * MINUTE, held)
        at = NOON + timedelta(minutes=minute)
        conditions.saw(one.judge(seen, before, one.limits), at)
        before = seen
        if found := conditions.findings():
            return found[0], at - NOON
    raise AssertionError("never told")


def test_a_light_power_brake_is_told_within_ten_minutes():
    finding, after = told_after("gpu.throttle", Throttle(power_brake_ns=SECOND // 100))
    assert (finding.code, finding.device) == ("power-brake", pci(3))
    assert after <= timedelta(minutes=10)


def test_heavy_heat_is_told_twice_first_after_five_then_after_ten_minutes():
    hot = Throttle(hw_thermal_ns=20 * SECOND)
    assert told_after("gpu.throttle", hot)[1] == timedelta(minutes=5)
    assert timedelta(minutes=8) < told_after("gpu.slowdown", hot)[1] <= timedelta(minutes=10)


def test_the_gauge_is_the_most_throttled_busy_gpu_without_the_power_cap():
    held = Throttle(sw_power_cap_ns=60 * SECOND, hw_thermal_ns=6 * SECOND)
    gauges = check_gpu_speed.gauges_throttle(throttled(MINUTE, held), START)
    assert gauges == {"gpu.throttle_share": pytest.approx(0.1)}
    assert check_gpu_speed.gauges_throttle(START, None) == {}


# --- clocks -----------------------------------------------------------------------------------


def clocked(mhz: int | None, load: int | None = 98, count: int = 8) -> Snapshot:
    among = gpus(count, sm_clock_mhz=1800, utilization=98)
    return Snapshot(100.0, gpus=but(5 % count, among, sm_clock_mhz=mhz, utilization=load))


@pytest.mark.parametrize(
    ("mhz", "found"), [(1619, {pci(5): "slow"}), (1620, {}), (1980, {}), (None, {})]
)
def test_a_clock_below_nine_tenths_of_its_peers(mhz, found):
    assert codes("gpu.clocks", clocked(mhz)) == found


@pytest.mark.parametrize("load", [0, 49, 77, None])
def test_a_gpu_that_does_less_than_its_peers_is_not_compared(load):
    assert codes("gpu.clocks", clocked(210, load)) == {}


@pytest.mark.parametrize(("count", "found"), [(3, {}), (4, {pci(1): "slow"})])
def test_two_peers_are_too_few(count, found):
    assert codes("gpu.clocks", clocked(900, count=count)) == found


def test_all_slow_together_is_no_outlier_and_models_are_not_mixed():
    assert codes("gpu.clocks", Snapshot(1.0, gpus=gpus(sm_clock_mhz=900, utilization=98))) == {}
    other = Gpu(8, "GPU-8", pci(8), "NVIDIA T4", utilization=98, sm_clock_mhz=585)
    mixed = Snapshot(1.0, gpus=(*gpus(sm_clock_mhz=1800, utilization=98), other))
    assert codes("gpu.clocks", mixed) == {}


def test_the_gauge_is_the_slowest_busy_clock():
    assert check_gpu_speed.gauges_clocks(clocked(1500), None)["gpu.sm_clock_mhz"] == 1500.0
    assert check_gpu_speed.gauges_clocks(clocked(210, load=0), None)["gpu.sm_clock_mhz"] == 1800.0
    assert check_gpu_speed.gauges_clocks(Snapshot(1.0, gpus=gpus(sm_clock_mhz=210)), None) == {}


# --- temperature ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"temperature_margin_c": 0}, ["core"]),
        ({"temperature_margin_c": -3}, ["core"]),
        ({"temperature_margin_c": 1}, []),
        ({"temperature_c": 90, "temperature_slowdown_c": 90}, ["core"]),
        ({"temperature_c": 89, "temperature_slowdown_c": 90}, []),
        ({"temperature_c": 95}, []),
        ({"temperature_c": 95, "temperature_slowdown_c": 0}, []),
        ({"temperature_c": 95, "temperature_slowdown_c": 90, "temperature_margin_c": 4}, []),
        ({"memory_temperature_c": 95, "memory_temperature_max_c": 95}, ["memory"]),
        ({"memory_temperature_c": 94, "memory_temperature_max_c": 95}, []),
        ({"memory_temperature_c": 0, "memory_temperature_max_c": 95}, []),
        ({}, []),
    ],
)
def test_the_margin_is_the_devices_own(values, found):
    seen = Snapshot(100.0, gpus=but(0, gpus(), **values))
    assert [o.code for o in judged("gpu.temperature", seen)] == found
