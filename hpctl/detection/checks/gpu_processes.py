"""Processes that hold GPU memory on a node without a Slurm job.

A job left them behind, or a user started them outside of Slurm: the next job finds less memory than
it requested. A node has a job when it runs a slurmstepd process, or a process in a control group of
a job.

The command line of other processes is not read: that needs the lock of their memory map, and a
process that hangs in the driver holds it forever. `comm`, `stat` and `cgroup` need none.
"""

from collections.abc import Iterable

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckFunctions,
    DeviceAbsentError,
    Judged,
    Limits,
    get_nvml_snapshot_with_gpus,
    make_warn_observation,
)
from hpctl.detection.slurm_jobs import ProcessJobFinder, is_slurmstepd_process

_MIB = 1024 * 1024
# Processes that belong on a GPU node without a job: DCGM, its exporter, the persistence daemon.
_SERVICES = frozenset({"nv-hostengine", "dcgm-exporter", "nvidia-persiste", "nvidia-smi"})
_SHOWN = 4


class GpuProcessUsage(Struct, frozen=True):
    """A process on a GPU, its memory there in MiB, and its command's name."""

    device: str
    pid: int
    mib: float
    name: str


class GpuProcessSample(Struct, frozen=True):
    """Whether a Slurm job is on the node, and which processes hold GPU memory, without services."""

    has_job: bool
    holders: tuple[GpuProcessUsage, ...]


def collect_gpu_process_sample(machine: CheckedMachine) -> GpuProcessSample:
    """Return the processes. Raises DeviceAbsentError where NVML does not list processes."""
    seen = get_nvml_snapshot_with_gpus(machine)
    if all(gpu.processes is None for gpu in seen.gpus):
        raise DeviceAbsentError("NVML does not list processes here")
    found = []
    for gpu in seen.gpus:
        for process in gpu.processes or ():
            if process.used_bytes is None:
                continue
            name = _read_process_name(machine, process.pid)
            if name and name not in _SERVICES:
                found.append(
                    GpuProcessUsage(gpu.device, process.pid, process.used_bytes / _MIB, name)
                )
    holders = tuple(found)
    return GpuProcessSample(_is_slurm_job_on_node(machine, holders), holders)


def judge_stray_gpu_processes(
    seen: GpuProcessSample, before: GpuProcessSample | None, limits: Limits
) -> Judged:
    """Return one observation for each GPU with a stray process, on a node without a job."""
    if seen.has_job:
        return
    stray: dict[str, list[GpuProcessUsage]] = {}
    for holder in seen.holders:
        if holder.mib > limits["used_mib"]:
            stray.setdefault(holder.device, []).append(holder)
    for device, holders in stray.items():
        shown = ", ".join(f"{h.name}[{h.pid}] {h.mib:.0f} MiB" for h in holders[:_SHOWN])
        yield make_warn_observation("stray", device, f"no Slurm job here, but: {shown}")


def _read_process_name(machine: CheckedMachine, pid: int) -> str:
    """Return a process's name; empty for one that has ended since the sweep."""
    try:
        return machine.path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _is_slurm_job_on_node(machine: CheckedMachine, holders: Iterable[GpuProcessUsage]) -> bool:
    """Return whether a job is on the node, as far as it matters here: false where no process holds
    memory.

    The holders are checked first: reading all of /proc costs a busy node more than all other GPU
    checks together.
    """
    pids = {holder.pid for holder in holders}
    jobs = ProcessJobFinder(machine.path("/proc"))
    return any(_is_slurm_job_process(jobs, pid) for pid in pids) or (
        bool(pids) and _is_slurm_step_running(machine)
    )


def _is_slurm_job_process(jobs: ProcessJobFinder, pid: int) -> bool:
    try:
        return bool(jobs.holder(pid))
    except (OSError, ValueError, IndexError):
        # Gone in the meantime.
        return False


def _is_slurm_step_running(machine: CheckedMachine) -> bool:
    return any(is_slurmstepd_process(process) for process in machine.path("/proc").glob("[0-9]*"))


CHECKS = {"gpu.processes": CheckFunctions(collect_gpu_process_sample, judge_stray_gpu_processes)}
"""What the runner calls, by the check's name."""
