"""Full disks, and NVMe: the kernel's word for a controller and the disk's own for its health."""

import json
import os
from unittest.mock import Mock

import pytest

from hpctl.detection.check import CheckResultUnknownError, DeviceAbsentError
from hpctl.detection.checks import host_disk, host_nvme, host_nvme_smart
from hpctl.detection.checks.host_disk import DiskSpaceSample, FileSystemUsage
from hpctl.detection.checks.host_nvme_smart import NvmeSmartHealth
from hpctl.detection.probe import ProbeResult, ProbeRunner
from hpctl.vocabulary.model import DeviceVerdict
from tests.detection.host import limits, machine, summary
from tests.proc_files import add_slurmstepd

GIB = 2**30

FULL, WARN = DeviceVerdict.FAIL, DeviceVerdict.WARN


def disk(point="/", percent=50.0, size_gib=100.0, inodes_pct=1.0, *, free_mib=None):
    size = int(size_gib * GIB)
    free = int(size * (100 - percent) / 100) if free_mib is None else int(free_mib * 2**20)
    return FileSystemUsage(
        point, point in host_disk.SCRATCH, size, size - free, free, 1000,
        int(10 * inodes_pct),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("one", "jobs", "expected"),
    [
        (disk(percent=95), None, [("full", "/", FULL)]),
        (disk(percent=94.9), None, [("filling", "/", WARN)]),
        (disk(percent=90), None, [("filling", "/", WARN)]),
        (disk(percent=89.9), None, []),
        (disk(percent=99.9, size_gib=28_000), None, []),
        (disk(percent=99.95, size_gib=28_000), None, [("full", "/", FULL)]),
        (disk(size_gib=10, free_mib=499), None, [("full", "/", FULL)]),
        (disk(size_gib=4, free_mib=499), None, []),
        (disk(inodes_pct=95), None, [("inodes", "/", FULL)]),
        (disk(inodes_pct=94.9), None, []),
        (disk("/dev/shm", percent=95, size_gib=1000), False, [("leftovers", "/dev/shm", FULL)]),
        (disk("/dev/shm", percent=94.9, size_gib=1000), False, [("filling", "/dev/shm", WARN)]),
        (disk("/tmp", inodes_pct=95), False, [("leftovers", "/tmp", FULL)]),
        # What a job fills while it runs is its own affair, but for the system's own disks.
        (disk("/dev/shm", percent=100), True, []),
        (disk(percent=99), True, [("full", "/", FULL)]),
        (FileSystemUsage("/", False, 100 * GIB, 50 * GIB, 50 * GIB), None, []),
    ],
)
def test_limits(one, jobs, expected):
    seen = DiskSpaceSample((one,), jobs)
    assert summary(host_disk.judge_disk_space(seen, None, limits("host.disk"))) == expected


@pytest.fixture
def statvfs(tmp_path, monkeypatch):
    """Folders of one file system each, with figures of our own."""
    figures = {}

    def fake(path):
        used = figures[str(path).removeprefix(str(tmp_path)) or "/"]
        free, available = 1000 - used, 950 - used
        return os.statvfs_result((4096, 4096, 1000, free, available, 100, 60, 60, 0, 255))

    numbers = iter(range(1, 100))

    def find_device(_):
        return os.stat_result((0, 0, next(numbers), 0, 0, 0, 0, 0, 0, 0))

    monkeypatch.setattr(host_disk, "os", Mock(spec_set=os, stat=find_device, statvfs=fake))
    figures.update(dict.fromkeys((*host_disk.SYSTEM, *host_disk.SCRATCH), 100))
    return figures


def test_the_reserve_of_root_is_not_free(statvfs, tmp_path):
    statvfs["/"] = 475
    root = host_disk.collect_disk_space_sample(machine(tmp_path)).disks[0]
    assert (root.point, root.used_pct, root.used_inodes_pct) == ("/", 50.0, 40.0)


@pytest.mark.parametrize(("comm", "jobs"), [("slurmstepd", True), ("slurmd", False)])
def test_steps_are_looked_for_when_scratch_is_crowded(statvfs, tmp_path, comm, jobs):
    statvfs["/dev/shm"] = 900
    stat = f"7 ({comm}) S 1 7 7 0 -1 4194560 {'0 ' * 10}1 0 99 0"
    here = machine(tmp_path, {"/proc/7/stat": stat})
    add_slurmstepd(tmp_path / "proc/7", tmp_path / "usr/sbin/slurmstepd")
    assert host_disk.collect_disk_space_sample(here).jobs is jobs


def test_no_process_is_read_while_there_is_room(statvfs, tmp_path):
    for point in host_disk.SCRATCH:
        statvfs[point] = 10
    bare = machine(tmp_path)  # has no /proc: reading it would raise
    statvfs["/"] = 900
    assert host_disk.collect_disk_space_sample(bare).jobs is None


def test_one_file_system_is_reported_once(tmp_path):
    (tmp_path / "var").mkdir()
    (tmp_path / "tmp").mkdir()
    assert len(host_disk.collect_disk_space_sample(machine(tmp_path)).disks) == 1


FAIL, WARN = DeviceVerdict.FAIL, DeviceVerdict.WARN


def controller(name="nvme0", state="live", transport="pcie", **files):
    folder = f"/sys/class/nvme/{name}"
    made = {f"{folder}/state": f"{state}\n", f"{folder}/transport": f"{transport}\n"}
    return {**made, f"{folder}/model": "Amazon EC2 NVMe Instance Storage  \n", **files}


def judged(tmp_path, files):
    return summary(
        host_nvme.judge_nvme_controllers(
            host_nvme.read_nvme_controllers(machine(tmp_path, files)), None, {}
        )
    )


ALARM = "/sys/class/nvme/nvme0/hwmon3/temp1_alarm"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (controller(), []),
        (controller(state="dead"), [("dead", "nvme0", FAIL)]),
        (controller(state="deleting (no IO)"), [("dead", "nvme0", FAIL)]),
        (controller(state="resetting"), [("not-live", "nvme0", WARN)]),
        (controller(state="dead", transport=""), [("dead", "nvme0", FAIL)]),
        (controller(**{ALARM: "1"}), [("hot", "nvme0", WARN)]),
        (controller(**{ALARM: "0"}), []),
        (controller() | controller("nvme1", "dead"), [("dead", "nvme1", FAIL)]),
    ],
)
def test_what_the_kernel_says(tmp_path, files, expected):
    assert judged(tmp_path, files) == expected


def test_a_disk_behind_a_network_is_not_this_machine_s(tmp_path):
    with pytest.raises(DeviceAbsentError):
        judged(tmp_path, controller(state="connecting", transport="tcp"))


@pytest.mark.parametrize(
    ("out", "warning"),
    [
        (json.dumps({"critical_warning": 4, "temperature": 310}), 4),
        (json.dumps({"critical_warning": {"value": 8, "available_spare": 0}}), 8), ("", None),
        ("NVMe status: INVALID_OPCODE", None), ("[]", None), ("{}", None),
    ],
)  # fmt: skip
def test_what_nvme_cli_prints(out, warning):
    assert host_nvme_smart.parse_nvme_smart_critical_warning(ProbeResult(0, out, "")) == warning


@pytest.fixture
def nvme_cli(tmp_path, monkeypatch):
    """A stand-in for nvme-cli that prints what the test writes."""
    program = tmp_path / "nvme"
    program.write_text(f'#!/bin/sh\nexec cat "{tmp_path}/$(basename "$1").json"\n')
    program.chmod(0o755)
    monkeypatch.setattr(host_nvme_smart, "COMMAND", (str(program),))
    monkeypatch.setattr(host_nvme_smart, "PROBES", ProbeRunner(5.0))
    return tmp_path


def test_each_live_controller_is_asked(nvme_cli):
    files = {**controller("nvme0"), **controller("nvme1"), **controller("nvme2", "dead")}
    made = machine(nvme_cli, {**files, "/nvme0.json": '{"critical_warning": 0}'})
    machine(nvme_cli, {"/nvme1.json": '{"critical_warning": 8}'})
    assert host_nvme_smart.read_nvme_smart_health(made) == (
        NvmeSmartHealth("nvme0", 0),
        NvmeSmartHealth("nvme1", 8),
    )


def test_a_disk_that_keeps_no_such_log(nvme_cli):
    with pytest.raises(CheckResultUnknownError):
        host_nvme_smart.read_nvme_smart_health(machine(nvme_cli, controller()))


@pytest.mark.parametrize("output", ["Operation not permitted", "Permission denied"])
def test_an_agent_that_may_not_ask_is_not_blind(nvme_cli, output):
    (nvme_cli / "nvme").write_text(f'#!/bin/sh\necho "smart log: {output}" >&2\nexit 1\n')
    with pytest.raises(DeviceAbsentError, match="CAP_SYS_ADMIN"):
        host_nvme_smart.read_nvme_smart_health(machine(nvme_cli, controller()))
