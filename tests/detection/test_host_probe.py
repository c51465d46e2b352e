"""Hangs that are real: children that never end, a disk that takes no write, tasks in state D."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpctl.detection.check import CheckedMachine
from hpctl.detection.check_once import run_node_checks_once
from hpctl.detection.checks import host_dstate, host_mounts
from hpctl.detection.probe import PendingProbe, ProbeResult, ProbeRunner
from hpctl.detection.procs import ProcessScanner
from hpctl.detection.runner import load_check
from hpctl.faults.table import CHECKS
from hpctl.vocabulary.model import DeviceVerdict
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

STUCK_S = 300
NEVER = ("sleep", str(STUCK_S))
FSX = "50 22 0:51 / /fsx rw - lustre 10.0.0.1@tcp:/abcd rw\n"
EFS = "52 22 0:52 / /efs rw - nfs4 fs-1:/ rw,hard\n"


def children() -> set[int]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return {int(pid) for pid in path.read_text().split()}


def describe(pid: int) -> str:
    """Say what a process runs, for the message of a failed test."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError as error:
        return f"{pid}: {error.strerror}"
    return f"{pid} ({state}): {command}"


@pytest.fixture
def no_child_stays():
    before = children()
    yield
    assert [describe(pid) for pid in children() - before] == []


@pytest.fixture
def probes(no_child_stays: None):
    made = ProbeRunner(0.5)
    yield made
    made.forget(frozenset())
    until(lambda: made.out() == 0)


def test_a_hang_is_known_from_its_first_child_on(probes):
    ages = []
    for _ in range(4):
        output = probes.ask({"fsx": NEVER}, 0.3)["fsx"]
        assert isinstance(output, PendingProbe)
        ages.append(output.age_s)
        time.sleep(0.3)
    # The first child was killed on the way: its successor does not make the hang young.
    assert ages == sorted(ages)
    assert ages[-1] > 1.5
    until(lambda: isinstance(probes.ask({"fsx": ("true",)}, 1.0)["fsx"], ProbeResult))
    assert probes.ask({"fsx": NEVER}, 0.0)["fsx"].age_s < 1.5


def test_what_cannot_be_killed_yet_gets_no_second_child(probes):
    before = children()
    probes.ask({"fsx": NEVER}, 0.0)
    (pid,) = children() - before
    # Alive, and deaf to all signals but SIGKILL.
    os.kill(pid, signal.SIGSTOP)
    for _ in range(20):
        probes.ask({"fsx": NEVER}, 0.0)
        assert children() - before == {pid}


def test_a_hanging_mount_is_reported_and_nothing_piles_up(tmp_path, monkeypatch, probes):
    """The whole check, with a program that hangs for one mount and answers for the other."""
    stand_in = tmp_path / "stat"
    stand_in.write_text('#!/bin/sh\ncase "$1" in */fsx) exec sleep 300;; *) echo 1;; esac\n')
    stand_in.chmod(0o755)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text(FSX + EFS)
    monkeypatch.setattr(host_mounts, "PROBES", probes)
    monkeypatch.setattr(host_mounts, "TURNS", iter([(str(stand_in),)] * 20))
    check = load_check(
        next(spec for spec in CHECKS if spec.name == "host.mounts"), {"silent_s": 0.5}
    )
    before = children()
    began = time.monotonic()
    (row,) = run_node_checks_once([check], CheckedMachine(tmp_path))
    assert [(f.code, f.device, f.verdict) for f in row.findings] == [
        ("hangs", "/fsx", DeviceVerdict.FAIL)
    ]
    assert time.monotonic() - began < STUCK_S / 10
    for _ in range(8):
        began = time.monotonic()
        (row,) = run_node_checks_once([check], CheckedMachine(tmp_path))
        assert [f.device for f in row.findings] == ["/fsx"]
        assert time.monotonic() - began < STUCK_S / 10
        assert len(children() - before) <= 1


@pytest.fixture
def frozen(tmp_path):
    """An ext4 that takes no write: whoever tries sleeps in state D, deaf to SIGKILL too."""
    image, point = tmp_path / "disk", tmp_path / "mount"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(32 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True, timeout=60)
    subprocess.run(["mount", "-o", "loop", image, point], check=True, timeout=60)
    try:
        subprocess.run(["fsfreeze", "--freeze", point], check=True, timeout=60)
        try:
            yield point
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", point], check=True, timeout=60)
    finally:
        time.sleep(0.2)
        subprocess.run(["umount", "--lazy", point], check=True, timeout=60)


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists() or not shutil.which("fsfreeze"),
    reason="only root can mount and freeze a disk",
)
def test_a_child_in_state_d_is_left_alone(probes, frozen):
    before = children()
    write = ("dd", "if=/dev/zero", "bs=1", "count=1", "status=none", f"of={frozen}/byte")
    for _ in range(6):
        began = time.monotonic()
        assert isinstance(probes.ask({"disk": write}, 0.1)["disk"], PendingProbe)
        assert time.monotonic() - began < STUCK_S / 10, "the frozen disk was waited for"
        assert len(children() - before) == 1
        time.sleep(0.2)
    (pid,) = children() - before
    # Killed, and still there: nothing but the disk can end it.
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "D"
    assert (
        host_dstate.find_driver_in_kernel_stack(
            host_dstate.read_task_kernel_stack(CheckedMachine(), pid)
        )
        == ""
    )
    subprocess.run(["fsfreeze", "--unfreeze", frozen], check=True, timeout=60)
    try:
        until(lambda: probes.out() == 0)
        assert isinstance(probes.ask({"disk": write}, 5.0)["disk"], ProbeResult)
    finally:
        subprocess.run(["fsfreeze", "--freeze", frozen], check=True, timeout=60)


# A parent of a vfork sleeps in state D until its child has a program to run; here the child
# waits for a writer of its standard input first.
ASLEEP = """
import os, sys
first = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[first])
"""


def test_a_task_in_state_d_is_seen_with_its_age_and_place(tmp_path, monkeypatch, no_child_stays):
    monkeypatch.setattr(host_dstate, "SCAN", ProcessScanner())
    monkeypatch.setattr(host_dstate, "KNOWN", {})
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    sleeper = subprocess.Popen([sys.executable, "-c", ASLEEP, fifo])

    def stuck() -> list[host_dstate.StuckTask]:
        return [s for s in host_dstate.list_stuck_tasks(CheckedMachine()) if s.pid == sleeper.pid]

    try:
        # A process that is just being loaded is in D now and then, too, and not for long.
        until(lambda: any(each.asleep_s >= 0.2 for each in stuck()))
        (seen,) = stuck()
        assert host_dstate.find_driver_in_kernel_stack(seen.where) == ""
        limits = {"asleep_s": 0.1}
        assert list(host_dstate.judge_stuck_tasks((seen,), None, limits)) == []
        theirs = host_dstate.StuckTask(seen.pid, seen.comm, seen.asleep_s, "nv_ioctl+0x1 [nvidia]")
        assert [o.code for o in host_dstate.judge_stuck_tasks((theirs,), None, limits)] == [
            "nvidia"
        ]
    finally:
        writer = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)  # does not wait for a reader itself
        try:
            sleeper.wait(PATIENCE_S)
        finally:
            os.close(writer)
    assert stuck() == []
