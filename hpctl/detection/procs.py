"""The tasks of the machine as /proc lists them, with as few reads as possible."""

import os
from collections.abc import Iterator

from msgspec import Struct

from hpctl.detection.check import CheckedMachine, CheckResultUnknownError
from hpctl.detection.slurm_jobs import is_slurmstepd_process

MOST = 8192
"""Tasks that one scan reads at most; the next scan continues after the last."""


_REFRESH = 10
"""After so many scans the kernel's own threads are read again: a pid may be reused."""


KERNEL_THREAD = 0x00200000
"""PF_KTHREAD in the flags of /proc/<pid>/stat (include/linux/sched.h)."""


class ProcTask(Struct, frozen=True):
    """One task. `start` is in clock ticks after boot: with the pid it identifies one task."""

    pid: int
    comm: str
    state: str
    threads: int
    start: int


class ProcessScanner:
    """Repeated scans of all processes of user space. For one thread at a time.

    A node of 192 cores has some 2 000 kernel threads, which hardly change and are not read: their
    pids are remembered, which leaves the processes of users and jobs to be read.
    """

    def __init__(self) -> None:
        self._kernel: set[int] = set()
        self._scans = 0
        self._behind = 0

    def tasks(self, machine: CheckedMachine) -> Iterator[ProcTask]:
        """Yield the leaders of all thread groups, at most MOST. Raises CheckResultUnknownError
        without a /proc."""
        if self._scans % _REFRESH == 0:
            self._kernel.clear()
        self._scans += 1
        folder = str(machine.path("/proc"))
        try:
            pids = sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
        except OSError as error:
            raise CheckResultUnknownError(f"/proc: {error.strerror}") from error
        pids = [pid for pid in pids if pid not in self._kernel]
        if len(pids) > MOST:
            pids = ([p for p in pids if p > self._behind] + [p for p in pids if p <= self._behind])[
                :MOST
            ]
            self._behind = pids[-1]
        for pid in pids:
            task = self._read_proc_task(f"{folder}/{pid}/stat", pid)
            if task is not None:
                yield task

    def is_slurm_step_running(self, machine: CheckedMachine) -> bool:
        """Return whether Slurm runs a job here. Raises CheckResultUnknownError."""
        proc = machine.path("/proc")
        named = (task.pid for task in self.tasks(machine) if task.comm == "slurmstepd")
        return any(is_slurmstepd_process(proc / str(pid)) for pid in named)

    def _read_proc_task(self, path: str, pid: int) -> ProcTask | None:
        fields = read_proc_stat_fields(path)
        if fields is None:
            return None
        comm, rest = fields
        if int(rest[6]) & KERNEL_THREAD:
            self._kernel.add(pid)
            return None
        return ProcTask(pid, comm, rest[0], int(rest[17]), int(rest[19]))


def list_threads(machine: CheckedMachine, leader: ProcTask, most: int) -> Iterator[ProcTask]:
    """Yield the threads of one process, `most` at most; none once it has ended."""
    folder = str(machine.path(f"/proc/{leader.pid}/task"))
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names[:most]:
        fields = read_proc_stat_fields(f"{folder}/{name}/stat")
        if fields is not None:
            comm, rest = fields
            yield ProcTask(int(name), comm, rest[0], 1, int(rest[19]))


def read_proc_stat_fields(path: str) -> tuple[str, list[str]] | None:
    """Return the name and the fields from the state on of a `stat` file; None once the task has
    ended."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(file, 1024).decode(errors="replace")
        finally:
            os.close(file)
    except OSError:
        return None
    head, _, tail = text.rpartition(")")
    rest = tail.split()
    return (head.partition("(")[2], rest) if len(rest) > 19 else None
