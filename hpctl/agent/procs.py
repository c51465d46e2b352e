"""The tasks of the machine as /proc lists them, read as seldom and as little as can be."""

import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from hpctl.agent.check import CannotTell, Machine

MOST = 8192
"""Tasks that one scan reads at most; the next scan goes on behind the last."""
_REFRESH = 10
"""After so many scans the kernel's own threads are looked at again: a pid may be reused."""
KERNEL_THREAD = 0x00200000
"""PF_KTHREAD in the flags of /proc/<pid>/stat (include/linux/sched.h)."""


class Task(Struct, frozen=True):
    """One task. `start` is in clock ticks after boot: with the pid it names one task for good."""

    pid: int
    comm: str
    state: str
    threads: int
    start: int


class Scan:
    """Repeated looks at all processes of user space. For one thread at a time.

    A node of 192 cores has some 2 000 kernel threads, which hardly change and are not asked
    for: their pids are remembered, which leaves the processes of users and jobs to be read.
    """

    def __init__(self) -> None:
        self._kernel: set[int] = set()
        self._scans = 0
        self._behind = 0

    def tasks(self, machine: Machine) -> Iterator[Task]:
        """The leaders of all thread groups, at most MOST. Raises CannotTell without a /proc."""
        if self._scans % _REFRESH == 0:
            self._kernel.clear()
        self._scans += 1
        folder = str(machine.path("/proc"))
        try:
            pids = sorted(int(name) for name in os.listdir(folder) if name.isdecimal())
        except OSError as error:
            raise CannotTell(f"/proc: {error.strerror}") from error
        pids = [pid for pid in pids if pid not in self._kernel]
        if len(pids) > MOST:
            pids = ([p for p in pids if p > self._behind] + [p for p in pids if p <= self._behind])[
                :MOST
            ]
            self._behind = pids[-1]
        for pid in pids:
            task = self._task(f"{folder}/{pid}/stat", pid)
            if task is not None:
                yield task

    def a_step_runs(self, machine: Machine) -> bool:
        """Whether Slurm runs a job here. Raises CannotTell."""
        return any(task.comm == "slurmstepd" for task in self.tasks(machine))

    def _task(self, path: str, pid: int) -> Task | None:
        fields = stat_fields(path)
        if fields is None:
            return None
        comm, rest = fields
        if int(rest[6]) & KERNEL_THREAD:
            self._kernel.add(pid)
            return None
        return Task(pid, comm, rest[0], int(rest[17]), int(rest[19]))


def threads(machine: Machine, leader: Task, most: int) -> Iterator[Task]:
    """The threads of one process, `most` at most; none once it has ended."""
    folder = str(machine.path(f"/proc/{leader.pid}/task"))
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names[:most]:
        fields = stat_fields(f"{folder}/{name}/stat")
        if fields is not None:
            comm, rest = fields
            yield Task(int(name), comm, rest[0], 1, int(rest[19]))


def stat_fields(path: str) -> tuple[str, list[str]] | None:
    """The name and the fields from the state on of a `stat` file; None once the task has ended."""
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


# --- slurm job ---
#
# Which Slurm job a process belongs to, by /proc alone.
#
# Slurm puts a job's processes into control groups of its own, `.../slurm/uid_1000/job_12/...` (v1)
# or `.../slurmstepd.scope/job_12/step_0/...` (v2). On a cluster that tracks processes otherwise,
# every process of a job has a `slurmstepd: [12.0]` among its ancestors.
#
# A number in an old line may be another process's by now: a process that began after the line was
# written is not the one it speaks of.

REMEMBERED = 256
"""Processes whose answer is kept, so that a storm of lines of one process costs one look."""
REMEMBERED_S = 10.0
"""How long: a process number is not given out again so soon, and a dead process's lines come
within seconds of its death."""
LOOKS_A_SECOND = 100
"""So that a storm that names thousands of processes cannot load the node."""
MAX_ANCESTORS = 64
_CLOCK_SLACK_S = 1.0
_CGROUP = re.compile(
    r"/(?:slurm(?:_[\w.-]+)?/uid_\d+|[\w.-]*slurmstepd\.scope)/job_(?P<job>\d{1,10})(?:/|$)", re.M
)
_STEPD = re.compile(rb"slurmstepd: \[(?P<job>\d{1,10})[.+_\]]")


def job_of_cgroup(path: str) -> str:
    """The job id in a control group's path, or nothing."""
    match = _CGROUP.search(path)
    return match["job"] if match else ""


class _Answer(Struct, frozen=True):
    job: str
    began: float
    until: float


class Jobs:
    """Looks up jobs of processes, remembers a little, and never looks up too often."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: OrderedDict[int, _Answer] = OrderedDict()
        self._second = 0
        self._looks = 0

    def of(self, pid: int, at: datetime) -> str:
        """The job of the process that had this number at that time; empty where unknown."""
        now = time.monotonic()
        answer = self._known.get(pid)
        if answer is None or answer.until < now:
            if not self._may_look(now):
                return ""
            answer = self._look(pid, now)
            self._known[pid] = answer
            self._known.move_to_end(pid)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return answer.job if answer.began <= at.timestamp() + _CLOCK_SLACK_S else ""

    def _may_look(self, now: float) -> bool:
        if int(now) != self._second:
            self._second, self._looks = int(now), 0
        self._looks += 1
        return self._looks <= LOOKS_A_SECOND

    def _look(self, pid: int, now: float) -> _Answer:
        until = now + REMEMBERED_S
        try:
            began = self._began(pid)
            return _Answer(self.holder(pid), began, until)
        except (OSError, ValueError, IndexError):
            # Gone, or never there.
            return _Answer("", 0.0, until)

    def holder(self, pid: int) -> str:
        """The job that a process is in now; empty for none. Looks at once. Raises OSError.

        A user's own slice may have groups of any name below it.
        """
        cgroup = (self._proc / str(pid) / "cgroup").read_text(errors="replace")
        mine = "/user.slice/" in cgroup
        return (not mine and job_of_cgroup(cgroup)) or self._by_ancestor(pid)

    def _by_ancestor(self, pid: int) -> str:
        for _ in range(MAX_ANCESTORS):
            if pid <= 1:
                break
            directory = self._proc / str(pid)
            name, fields = self._stat(pid)
            if name == "slurmstepd" and directory.stat().st_uid in (0, os.geteuid()):
                match = _STEPD.match((directory / "cmdline").read_bytes())
                return match["job"].decode() if match else ""
            pid = int(fields[1])
        return ""

    def _began(self, pid: int) -> float:
        """When a process began, in seconds of the wall clock."""
        ticks = int(self._stat(pid)[1][19])
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted + ticks / os.sysconf("SC_CLK_TCK")

    def _stat(self, pid: int) -> tuple[str, list[str]]:
        """A process's name, and its fields from the third (`state`) on: see proc(5)."""
        text = (self._proc / str(pid) / "stat").read_text(errors="replace")
        # The name stands in brackets and may hold any character, brackets too.
        name, _, rest = text.partition("(")[2].rpartition(")")
        return name, rest.split()
