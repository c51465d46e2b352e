"""Processes that hold a GPU on a node without a job."""

import contextlib
import os
import threading

import pytest

from hpctl.detection.checks import gpu_processes
from hpctl.detection.nvml.snapshot import GpuProcess, NvmlSnapshot
from tests.sweeps import but, codes, gpus, machine, pci
from tests.waiting import PATIENCE_S

MIB = 1024 * 1024


def process(root, pid, name, cmdline=b"", cgroup=""):
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n")
    (folder / "cmdline").write_bytes(cmdline)
    (folder / "cgroup").write_text(cgroup)


def holding(*processes: GpuProcess) -> NvmlSnapshot:
    return NvmlSnapshot(1.0, gpus=but(1, gpus(processes=()), processes=processes))


@pytest.mark.parametrize(("mib", "found"), [(15, {}), (16, {pci(1): "stray"})])
def test_a_process_on_a_node_without_a_job(tmp_path, mib, found):
    process(tmp_path, 4242, "python3", b"python3\0train.py\0", "0::/user.slice/session-4.scope\n")
    process(tmp_path, 1, "systemd", b"/sbin/init\0")
    sample = gpu_processes.collect_gpu_process_sample(
        machine(holding(GpuProcess(4242, mib * MIB)), tmp_path)
    )
    assert codes("gpu.processes", sample) == found


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0\n",
        "4:memory:/slurm/uid_1000/job_77/step_batch\n1:name=systemd:/x\n",
    ],
)
def test_a_process_of_a_job_is_known_by_its_control_group(tmp_path, cgroup):
    process(tmp_path, 4242, "python3", b"python3\0", cgroup)
    sample = gpu_processes.collect_gpu_process_sample(
        machine(holding(GpuProcess(4242, 900 * MIB)), tmp_path)
    )
    assert (sample.has_job, codes("gpu.processes", sample)) == (True, {})


def test_a_user_who_calls_a_process_after_slurm_is_no_job(tmp_path):
    process(tmp_path, 4242, "python3", b"python3\0slurmstepd: [77.batch]\0")
    process(tmp_path, 4243, "python3", b"slurmstepd: [77.batch]\0")
    sample = gpu_processes.collect_gpu_process_sample(
        machine(holding(GpuProcess(4242, 900 * MIB)), tmp_path)
    )
    assert codes("gpu.processes", sample) == {pci(1): "stray"}


def test_a_process_that_hangs_in_the_driver_does_not_hang_the_check(tmp_path):
    """To read its command line would: a pipe that nobody writes stands in for it."""
    process(tmp_path, 4242, "python3")
    line = tmp_path / "proc/4242/cmdline"
    line.unlink()
    os.mkfifo(line)
    done = []
    here = machine(holding(GpuProcess(4242, 900 * MIB)), tmp_path)
    look = threading.Thread(
        target=lambda: done.append(gpu_processes.collect_gpu_process_sample(here)), daemon=True
    )
    look.start()
    look.join(PATIENCE_S)
    with contextlib.suppress(OSError):
        os.close(os.open(line, os.O_WRONLY | os.O_NONBLOCK))
    assert done, "the look at the processes hangs with one of them"
    assert codes("gpu.processes", done[0]) == {pci(1): "stray"}


def test_services_gone_processes_and_unknown_memory_are_not_stray(tmp_path):
    process(tmp_path, 900, "nv-hostengine", b"nv-hostengine\0")
    process(tmp_path, 902, "python3", b"python3\0")
    seen = holding(GpuProcess(900, 400 * MIB), GpuProcess(901, 400 * MIB), GpuProcess(902, None))
    assert (
        codes("gpu.processes", gpu_processes.collect_gpu_process_sample(machine(seen, tmp_path)))
        == {}
    )
