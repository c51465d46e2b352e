"""The GPU checks over a healthy H200 as it was recorded, idle and under load: nothing to find.

Recordings: nvml-calls.json and compared-load.json (the sweeps), agent-check-idle.json and
agent-check-load.json (what the checks said then). The card is one of a virtual machine: no NVLink,
no fabric (state 0), PCI address 0000:00:06.0.
"""

from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.detection.check import CheckedMachine, ExpectedHardware
from hpctl.detection.check_once import run_node_checks_once
from hpctl.detection.nvml.snapshot import NvmlSnapshot
from hpctl.detection.runner import load_check
from hpctl.faults.table import CHECKS
from hpctl.vocabulary.model import DeviceVerdict
from tests.gpu.recordings import read_json
from tests.stubs.nvml.recorded import snapshot
from tests.sweeps import device

DRIVER = "580.159.04"
GPU_CHECKS = [load_check(spec) for spec in CHECKS if spec.name.startswith("gpu.")]
ABSENT = {"gpu.fabric", "gpu.nvlink", "gpu.nvlink.errors"}


@pytest.fixture
def root(tmp_path) -> Path:
    """The recorded machine: its GPU on the bus, its driver, and the process in a Slurm job."""
    device(tmp_path, "0000:00:06.0")
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build\n"
    )
    libraries = tmp_path / "usr/local/nvidia/lib64"
    libraries.mkdir(parents=True)
    (libraries / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{DRIVER}")
    process = tmp_path / "proc/813"
    process.mkdir()
    (process / "comm").write_text("python\n")
    (process / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_0\n")
    return tmp_path


def machine(root: Path, swept: NvmlSnapshot) -> CheckedMachine:
    return CheckedMachine(root, ExpectedHardware(gpus=1), nvml=lambda: swept)


@pytest.mark.parametrize("state", ["idle", "load"])
def test_each_check_finds_nothing(root, state):
    rows = run_node_checks_once(GPU_CHECKS, machine(root, snapshot(state)))
    assert {row.check: row.state for row in rows} == {
        check.spec.name: "absent" if check.spec.name in ABSENT else "ok" for check in GPU_CHECKS
    }
    assert [finding for row in rows for finding in row.findings] == []


@pytest.mark.parametrize("states", [("idle", "load"), ("load", "idle"), ("load", "load")])
def test_nothing_is_found_from_one_sweep_to_the_next(root, states):
    first, second = (snapshot(state) for state in states)
    second = replace(second, at=first.at + 60.0, slow_at=first.at + 60.0)
    for check in GPU_CHECKS:
        if check.spec.name in ABSENT:
            continue
        before, seen = (check.gather(machine(root, swept)) for swept in (first, second))
        assert list(check.judge(seen, before, check.limits)) == [], check.spec.name


@pytest.mark.parametrize("state", ["idle", "load"])
def test_the_checks_said_the_same_on_the_machine_itself(root, state):
    said = {row["check"]: row["state"] for row in read_json(f"agent-check-{state}.json")}
    now = {
        row.check: row.state
        for row in run_node_checks_once(GPU_CHECKS, machine(root, snapshot(state)))
    }
    differing = {check for check, state in now.items() if said[check] != state}
    # There was no Slurm on that machine when it was recorded under load: a stray process.
    assert differing == ({"gpu.processes"} if state == "load" else set())


def test_a_fault_of_the_recorded_card_is_found(root):
    swept = snapshot("load")
    lost = replace(swept.gpus[0], recovery_action=2)
    rows = run_node_checks_once(GPU_CHECKS, machine(root, replace(swept, gpus=(lost,))))
    found = [f for row in rows for f in row.findings]
    assert [(f.check, f.verdict, f.device) for f in found] == [
        ("gpu.recovery", DeviceVerdict.FAIL, "0000:00:06.0")
    ]
