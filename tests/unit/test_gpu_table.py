"""The GPU checks as a whole: their table, what acts and what never does, and sound machines."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from hpctl.agent.check import CannotTell, DriverHung, NotHere, Observation
from hpctl.agent.conditions import Conditions
from hpctl.agent.nvml.snapshot import (
    Ecc,
    Event,
    Fabric,
    NvLink,
    NvmlError,
    Pcie,
    Process,
    Remap,
    Snapshot,
    Throttle,
)
from hpctl.core.assess import assess
from hpctl.core.catalogue import SHIPPED, rules
from hpctl.core.compat import UTC
from hpctl.core.faults.table import GPU_CHECKS
from hpctl.core.model import (
    BootId,
    Condition,
    Finding,
    Generation,
    Health,
    InstanceId,
    NodeName,
    RuleId,
    Urgency,
    Verdict,
)
from tests.sweeps import bus, check, gpus, machine, row

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NODE = Generation(NodeName("n1"), InstanceId("i-0123456789abcdef0"), BootId("b1"))
NAMES = [spec.name for spec in GPU_CHECKS]


# --- what acts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stem",
    [
        "gpu-throttle-",
        "gpu-slowdown-",
        "gpu-clocks-",
        "gpu-temperature-",
        "gpu-nvlink-errors-",
        "gpu-ecc-corrected-",
        "gpu-processes-",
        "gpu-pcie-replays",
        "gpu-fabric-health",
        "gpu-remap-bank-",
    ],
)
def test_what_is_relative_or_new_never_touches_a_node(stem):
    found = [fault for rule, fault in SHIPPED.items() if rule.startswith(stem)]
    assert found
    assert all(fault.urgency is Urgency.NONE for fault in found)


@pytest.mark.parametrize("number", [46, 54, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143])
def test_an_xid_means_the_same_from_nvml_as_from_the_log(number):
    theirs, ours = SHIPPED[RuleId(f"xid-{number}")], SHIPPED[RuleId(f"gpu-xid-{number}")]
    assert (ours.urgency, ours.ladder) == (theirs.urgency, theirs.ladder)


@pytest.mark.parametrize(
    ("name", "observation", "condition"),
    [
        ("gpu.lost", Observation("lost", "0000:10:00.0"), Condition.FAULTY),
        ("gpu.fabric", Observation("mixed", "0000:10:00.0"), Condition.FAULTY),
        (
            "gpu.clocks",
            Observation("slow", "0000:10:00.0", Verdict.WARN),
            Condition.SUSPECT,
        ),
        ("gpu.pcie", Observation("width-all", "", Verdict.WARN), Condition.HEALTHY),
    ],
)
def test_from_observations_to_the_head_nodes_assessment(name, observation, condition):
    spec = row(name)
    conditions = Conditions(spec)
    for run in range(spec.seen[1]):
        assert all(f.verdict is not Verdict.UNKNOWN for f in conditions.findings())
        conditions.saw([observation], NOON + timedelta(seconds=run * spec.every_s))
    (finding,) = conditions.findings()
    last = finding.last
    health = Health(NODE, last, (finding,))
    assert assess(health, rules(), last).condition is condition


def test_unknown_is_never_a_fault():
    conditions = Conditions(row("gpu.count"))
    for run in range(50):
        conditions.could_not_tell("the driver hangs", NOON + timedelta(seconds=30 * run))
    found: list[Finding] = conditions.findings()
    assert [f.verdict for f in found] == [Verdict.UNKNOWN]
    assert assess(Health(NODE, NOON, tuple(found)), rules(), NOON).condition is Condition.UNKNOWN


# --- every check on sound, bare and absent machines -------------------------------------------

TRAINING: dict[str, Any] = {
    "recovery_action": 0,
    "utilization": 99,
    "sm_clock_mhz": 1755,
    "sm_clock_max_mhz": 1980,
    "clock_reasons": 0x4,
    "power_mw": 699_000,
    "temperature_c": 71,
    "temperature_margin_c": 16,
    "memory_temperature_c": 84,
    "memory_temperature_max_c": 95,
    "remap": Remap(2, 1, False, False, 639, 1, 0, 0, 0),
    "ecc": Ecc(0, 3, False),
    "pcie": Pcie(5, 5, 16, 16, 3, 0),
    "nvlinks": tuple(NvLink(n, True, 0, 0, 0, 0, 0.0, 1.5e-254) for n in range(18)),
    "fabric": Fabric(3, 0, 0, "0" * 32, 0b10_10_10_10),
    "processes": (),
}


def training(at: float) -> Snapshot:
    """A healthy node under load: power capped as always, corrected errors, ordinary Xids."""
    capped = Throttle(int(at * 8e8), 0, 0, 0, 0)
    xids = tuple(Event(at - n, "0000:10:00.0", 0x8, xid) for n, xid in enumerate((45, 31, 13)))
    return Snapshot(at, "570.86.15", gpus(throttle=capped, **TRAINING), events=xids, slow_at=at)


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_node_under_load_is_silent(name, tmp_path):
    one = check(name)
    bus(tmp_path, 8)
    before = one.gather(machine(training(1000.0), tmp_path, 8))
    seen = one.gather(machine(training(1060.0), tmp_path, 8))
    assert list(one.judge(seen, before, one.limits)) == []


@pytest.mark.parametrize("name", NAMES)
def test_gpus_that_say_nothing_prove_nothing(name):
    one, here = check(name), machine(Snapshot(100.0, gpus=gpus()))
    try:
        sample = one.gather(here)
    except NotHere:
        return
    assert list(one.judge(sample, sample, one.limits)) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "nvml", [None, NotHere("no driver"), Snapshot(1.0, error=NvmlError(9, "nvmlInit_v2"))]
)
def test_without_nvml_a_check_is_not_here(name, nvml, tmp_path):
    if name == "gpu.hung" and isinstance(nvml, Snapshot):
        one = check(name)
        assert list(one.judge(one.gather(machine(nvml)), None, one.limits)) == []
        return
    with pytest.raises(NotHere):
        check(name).gather(machine(nvml, tmp_path))


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("gpu.hung", "gpu.count")])
def test_a_hung_driver_makes_the_others_unknown(name, tmp_path):
    with pytest.raises(CannotTell):
        check(name).gather(machine(DriverHung(25.0), tmp_path))


def test_a_sweep_crosses_the_childs_pipe_whole():
    sweep = training(1000.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sweep), type=Snapshot) == sweep
    one = Snapshot(1.0, gpus=gpus(1, processes=(Process(1, None),)), error=NvmlError(15, "x"))
    assert msgspec.json.decode(msgspec.json.encode(one), type=Snapshot) == one
