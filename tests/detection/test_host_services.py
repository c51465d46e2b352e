"""Units and the clock: what systemd, the kernel and chrony say of them."""

import struct
import time

import pytest

from hpctl.detection.check import CheckResultUnknownError
from hpctl.detection.checks import host_clock, host_units
from hpctl.detection.probe import ProbeRunner
from hpctl.vocabulary.model import DeviceVerdict
from tests.detection.host import machine, summary
from tests.waiting import until

WARN = DeviceVerdict.WARN

FM = host_units.FABRIC_MANAGER

RUNS = ("active", "running", "success")

FAILED = ("failed", "failed", "exit-code")

LOOP = ("activating", "auto-restart", "exit-code")

STOPPED = ("inactive", "dead", "success")


def block(name, state=RUNS, *, load="loaded", enabled="enabled", condition="yes"):
    active, sub, result = state
    return (
        f"Result={result}\nId={name}\nLoadState={load}\nActiveState={active}\nSubState={sub}\n"
        f"UnitFileState={enabled}\nConditionResult={condition}\n"
    )


def judged(*blocks, nvswitch=True):
    seen = host_units.parse_systemd_units("\n".join(blocks), nvswitch=nvswitch)
    assert len(seen) == len(blocks)
    return summary(host_units.judge_systemd_units(seen, None, {}))


@pytest.mark.parametrize(
    ("reported", "code"),
    [
        *((block(name), "") for name in host_units.UNITS),
        *((block(name, FAILED), code) for name, code in host_units.UNITS.items()),
        (block("munge.service", LOOP), "munge"),
        (block("munge.service", ("reloading", "reload", "success")), ""),
        # What somebody stopped is told and not fixed, but nothing runs without this one.
        (block("slurmd.service", STOPPED), "stopped"),
        (block(FM, STOPPED), "fabricmanager"),
        (block(FM, STOPPED, condition="no"), "fabricmanager"),
        # Not for this machine.
        (block("slurmd.service", STOPPED, load="not-found", enabled=""), ""),
        (block("slurmd.service", STOPPED, load="masked", enabled="masked"), ""),
        (block("slurmd.service", FAILED, enabled="disabled"), ""),
        (block("slurmd.service", STOPPED, condition="no"), ""),
        # Started by udev: missed only where it is enabled.
        (block("nvidia-persistenced.service", FAILED, enabled="static"), ""),
    ],
)
def test_a_unit(reported, code):
    found = judged(reported)
    assert [c for c, _, _ in found] == ([code] if code else [])
    assert all((verdict is WARN) == (code == "stopped") for _, _, verdict in found)


def test_without_an_nvswitch_the_fabric_manager_is_not_missed():
    assert judged(block(FM, FAILED), nvswitch=False) == []


@pytest.mark.parametrize(
    ("name", "has"),
    [
        ("ml.p5.48xlarge", True), ("p4de.24xlarge", True), ("ml.p6-b200.48xlarge", True),
        ("ml.p5.4xlarge", False), ("ml.g5.48xlarge", False), ("", False),
    ],
)  # fmt: skip
def test_instance_types_with_nvswitch(tmp_path, name, has):
    assert host_units.has_nvswitch(machine(tmp_path, instance_type=name)) is has


def test_the_driver_knows_its_nvswitches(tmp_path):
    folder = tmp_path / host_units.NVSWITCH.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "bind").touch()
    assert not host_units.has_nvswitch(machine(tmp_path))
    (folder / "0000:86:00.0").touch()
    assert host_units.has_nvswitch(machine(tmp_path))


@pytest.mark.parametrize(
    ("script", "output"),
    [
        ("echo Failed to connect to bus >&2; exit 1", "exited with 1: Failed to connect to bus"),
        ("exec sleep 60", "has not answered for 0 s"),
    ],
)
def test_a_systemctl_that_fails_or_hangs_is_no_verdict(tmp_path, monkeypatch, script, output):
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    monkeypatch.setattr(host_units, "SHOW", ("sh", "-c", script))
    monkeypatch.setattr(host_units, "TIMEOUT_S", 0.3)
    probes = ProbeRunner(0.0)
    monkeypatch.setattr(host_units, "PROBES", probes)
    with pytest.raises(CheckResultUnknownError, match=output):
        host_units.read_systemd_units(machine(tmp_path))
    probes.forget(frozenset())
    until(lambda: not probes.out())


FAIL, WARN = DeviceVerdict.FAIL, DeviceVerdict.WARN

KEPT = "A9FEA97B,169.254.169.123,4,1700000000.1,-0.000012,0.1,0.1,-9.1,0,0,0.1,0.1,16.1,Normal"

LOST = "7F7F0101,,0,0.000000000,-90.5,0.0,0.0,0.0,0.0,0.0,1.0,1.0,0.0,Not synchronised"


@pytest.mark.parametrize(
    ("line", "offset_s"),
    [
        (KEPT, 0.000012), (KEPT.replace("-0.000012", "75.25"), 75.25), (LOST, 0.0),
        ("506 Cannot talk to daemon", 0.0), ("", 0.0),
    ],
)  # fmt: skip
def test_what_chrony_prints(line, offset_s):
    assert host_clock.parse_chrony_tracking_offset(line) == offset_s


@pytest.fixture
def booted(tmp_path, monkeypatch):
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    monkeypatch.setattr(host_units, "PROBES", ProbeRunner(5.0))
    return machine(tmp_path)


def test_the_kernel_of_this_machine_answers(booted, monkeypatch):
    monkeypatch.setattr(host_clock, "CHRONY", ("/no/such/chronyc",))
    kept, offset_s = host_clock.read_kernel_clock_sync_state()
    # The kernel keeps half a second at most; a wrong layout of the structure gives more.
    assert 0 <= offset_s <= 0.5
    assert host_clock.read_system_clock_offset(booted).kept is kept


def test_the_structure_is_the_kernel_s():
    """The kernel writes its time behind the fields that are named: it stands where it should."""
    timex = host_clock.KernelTimex(modes=0)
    assert host_clock._libc.adjtimex(host_clock.ctypes.byref(timex)) >= 0
    (seconds,) = struct.unpack_from("q", bytes(timex.rest), 28)
    assert abs(seconds - time.time()) < 5


def test_chrony_s_offset_counts_where_it_is_larger(booted, monkeypatch, tmp_path):
    program = tmp_path / "chronyc"
    program.write_text(f"#!/bin/sh\necho '{KEPT.replace('-0.000012', '75.25')}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(host_clock, "CHRONY", (str(program),))
    assert host_clock.read_system_clock_offset(booted).offset_s == 75.25
