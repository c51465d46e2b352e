"""Memory: how much there is, how much is left, and its errors."""

import pytest

from hpctl.detection.checks import host_edac, host_memory
from hpctl.detection.checks.host_edac import EdacCounts
from hpctl.detection.checks.host_memory import HostMemorySample
from hpctl.vocabulary.model import DeviceVerdict
from tests.detection.host import limits, machine, summary
from tests.proc_files import add_slurmstepd


def judged(seen, before=None):
    return summary(host_memory.judge_host_memory_use(seen, before, limits("host.memory")))


def edac(uncorrected="0", corrected="0", controller="mc0"):
    folder = f"{host_edac.FOLDER}/{controller}"
    return {f"{folder}/ue_count": uncorrected, f"{folder}/ce_count": corrected}


@pytest.mark.parametrize("name", ["p5.48xlarge", "ml.p5.48xlarge"])
def test_the_instance_type_says_how_much_there_should_be(tmp_path, name):
    files = {"/proc/meminfo": "MemTotal:  1048576 kB\nMemFree: 1 kB\nMemAvailable:  524288 kB\n"}
    seen = host_memory.read_host_memory_sample(
        machine(tmp_path, {**files, **edac("0", "7")}, instance_type=name)
    )
    assert seen == HostMemorySample(
        0.0, 1024.0, 512.0, 2048 * 1024.0, (EdacCounts("mc0", 0, 7),), False
    )
    assert judged(seen) == [
        ("short", "", DeviceVerdict.FAIL),
        ("leftovers", "", DeviceVerdict.WARN),
    ]


@pytest.mark.parametrize(("comm", "jobs"), [("slurmstepd", True), ("sshd", False)])
def test_a_job_is_looked_for_only_where_much_is_in_use(tmp_path, comm, jobs):
    stat = f"77 ({comm}) S 1 77 77 0 -1 0 " + "0 " * 40
    full = machine(tmp_path, {
        "/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 100 kB", "/proc/77/stat": stat,
    })  # fmt: skip
    add_slurmstepd(tmp_path / "proc/77", tmp_path / "usr/sbin/slurmstepd")
    assert host_memory.read_host_memory_sample(full).jobs is jobs
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    assert host_memory.read_host_memory_sample(full).jobs is None
