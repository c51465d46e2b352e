"""Processes that hold GPU memory on a node without a Slurm job.

They are what a job left behind or what somebody started past Slurm: the next job finds less
memory than it asked for. A node has a job when one of its slurmstepd processes is there
(`slurmstepd: [123.batch]`), or a process in a control group of a job (`.../job_123/...`).

Of no other process is the command line read: that needs its memory map's lock, and a process that
hangs in the driver holds it for ever. `comm`, `stat` and `cgroup` need none.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from hpctl.detection.check import Functions, Judged, Limits, Machine, NotHere, sweep, warn

_STEPD = b"slurmstepd\n"
_STEP = re.compile(rb"slurmstepd: \[(\d+)\.")
_GROUP = re.compile(rb"/job_(\d+)(?:/|$)", re.MULTILINE)
_MIB = 1024 * 1024
# What belongs on a GPU node without a job: DCGM, its exporter, the persistence daemon.
_SERVICES = frozenset({"nv-hostengine", "dcgm-exporter", "nvidia-persiste", "nvidia-smi"})
_SHOWN = 4


class Holder(Struct, frozen=True):
    """A process on a GPU, its memory there in MiB, and its command's name."""

    device: str
    pid: int
    mib: float
    name: str


class Sample(Struct, frozen=True):
    """Slurm jobs with a step on the node, and who holds GPU memory, services left out."""

    jobs: frozenset[str]
    holders: tuple[Holder, ...]


def gather(machine: Machine) -> Sample:
    """Who is there. NotHere where NVML does not list processes."""
    seen = sweep(machine)
    if all(gpu.processes is None for gpu in seen.gpus):
        raise NotHere("NVML does not list processes here")
    holders = tuple(
        Holder(gpu.device, process.pid, process.used_bytes / _MIB, name)
        for gpu in seen.gpus
        for process in gpu.processes or ()
        if process.used_bytes is not None
        and (name := _name(machine, process.pid))
        and name not in _SERVICES
    )
    return Sample(_jobs(machine, holders), holders)


def judge(seen: Sample, before: Sample | None, limits: Limits) -> Judged:
    """One observation for each GPU with a stray process, on a node without a job."""
    if seen.jobs:
        return
    stray: dict[str, list[Holder]] = {}
    for holder in seen.holders:
        if holder.mib > limits["used_mib"]:
            stray.setdefault(holder.device, []).append(holder)
    for device, holders in stray.items():
        shown = ", ".join(f"{h.name}[{h.pid}] {h.mib:.0f} MiB" for h in holders[:_SHOWN])
        yield warn("stray", device, f"no Slurm job here, but: {shown}")


def _name(machine: Machine, pid: int) -> str:
    """Empty for a process that has gone: the sweep is older than this look."""
    try:
        return machine.path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _jobs(machine: Machine, holders: Iterable[Holder]) -> frozenset[str]:
    """The jobs on the node, as far as they matter here: none where nobody holds memory.

    Asked of the holders' own control groups first: to walk all of /proc costs a busy node more
    than all other GPU checks together.
    """
    pids = {holder.pid for holder in holders}
    jobs = {job for pid in pids if (job := _job_of(machine, pid))}
    if pids and not jobs:
        jobs = set(_steps(machine))
    return frozenset(jobs)


def _job_of(machine: Machine, pid: int) -> str:
    match = _GROUP.search(_bytes(machine.path(f"/proc/{pid}/cgroup")))
    return match[1].decode() if match else ""


def _steps(machine: Machine) -> Iterator[str]:
    for process in machine.path("/proc").glob("[0-9]*"):
        if _bytes(process / "comm") != _STEPD:
            continue
        if match := _STEP.match(_bytes(process / "cmdline")):
            yield match[1].decode()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        # Gone in the meantime.
        return b""


CHECKS = {"gpu.processes": Functions(gather, judge)}
"""What the runner calls, by the check's name."""
