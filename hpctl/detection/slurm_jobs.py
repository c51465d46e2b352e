"""The Slurm job of a process."""

import os
import re
import stat
import time
from collections import OrderedDict
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from hpctl.toolkit.token_bucket import TokenBucket

#
# Which Slurm job a process belongs to, by only /proc.
#
# Slurm puts a job's processes into separate control groups, `.../slurm/uid_1000/job_12/...` (v1) or
# `.../slurmstepd.scope/job_12/step_0/...` (v2). On a cluster that tracks processes in another way,
# every process of a job has a `slurmstepd: [12.0]` among its ancestors.
#
# A number in an old line may be another process's by now: a process that began after the line was
# written is not the one that it names.

REMEMBERED = 256
"""Limit of the processes whose answer is kept, so that a storm of lines of one process costs one
look-up."""


REMEMBERED_S = 10.0
"""How long: a process number is not reused so soon, and the lines of a process come within seconds
of its end."""


LOOKS_A_SECOND = 100
"""So that a storm that names thousands of processes cannot load the node."""


MAX_ANCESTORS = 64


_CLOCK_SLACK_S = 1.0


_CGROUP = re.compile(
    r"/(?:slurm(?:_[\w.-]+)?/uid_\d+|[\w.-]*slurmstepd\.scope)/job_(?P<job>\d{1,10})(?:/|$)", re.M
)


_SLURMSTEPD = "slurmstepd"


_PROGRAM = re.compile(r"slurmstepd(-\w+)?")
"""The file's name: Debian's is slurmstepd-wlm, to which slurmstepd is a link."""


_STEPD = re.compile(rb"slurmstepd: \[(?P<job>\d{1,10})[.+_\]]")


def parse_cgroup_job_id(path: str) -> str:
    """Return the job id in a control group's path, or an empty text."""
    match = _CGROUP.search(path)
    return match["job"] if match else ""


def is_slurmstepd_process(process: Path) -> bool:
    """Return whether a process, named by its directory in /proc, is one of Slurm's step daemons.

    A user can choose name and title, and a setuid program gives a user ID of 0: a link named
    slurmstepd to one looks the same. So the kernel is asked which file the process runs. It must be
    called slurmstepd, be root's, and be no setuid program, because without one no user comes to a
    process of root. False for a process that has ended.
    """
    try:
        name = (process / "comm").read_text(errors="replace").strip()
        if name != _SLURMSTEPD or not _is_process_owned_by_root(process):
            return False
        return _is_installed_slurmstepd(process / "exe")
    except OSError:
        return False


def _is_process_owned_by_root(process: Path) -> bool:
    """Return whether all user IDs of a process are root's, or this user's as in a sandbox."""
    for line in (process / "status").read_text(errors="replace").splitlines():
        if line.startswith("Uid:"):
            ids = set(line.split()[1:])
            return ids in ({"0"}, {str(os.geteuid())})
    return False


def _is_installed_slurmstepd(program: Path) -> bool:
    """Return whether a running program is the slurmstepd that root has installed.

    True where the agent may not check, which takes CAP_SYS_PTRACE: otherwise a process of a job
    would count as stray and be ended before a reset. Raises OSError for a process that has ended.
    """
    try:
        # An upgrade of Slurm removes the file of running steps.
        path = os.readlink(program).removesuffix(" (deleted)")
        status = program.stat()
    except PermissionError:
        return True
    return (
        _PROGRAM.fullmatch(os.path.basename(path)) is not None
        and status.st_uid in (0, os.geteuid())
        and not status.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWGRP | stat.S_IWOTH)
    )


class _CachedJobLookup(Struct, frozen=True):
    job: str
    began: float
    until: float


class ProcessJobFinder:
    """A look-up of the jobs of processes, with a small cache and a rate limit."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._known: OrderedDict[int, _CachedJobLookup] = OrderedDict()
        self._looks = TokenBucket(LOOKS_A_SECOND, LOOKS_A_SECOND)

    def of(self, pid: int, at: datetime) -> str:
        """Return the job of the process that had this number at that time; empty where unknown."""
        now = time.monotonic()
        answer = self._known.get(pid)
        if answer is None or answer.until < now:
            if not self._looks.take(now):
                return ""
            answer = self._look_up_job(pid, now)
            self._known[pid] = answer
            self._known.move_to_end(pid)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return answer.job if answer.began <= at.timestamp() + _CLOCK_SLACK_S else ""

    def _look_up_job(self, pid: int, now: float) -> _CachedJobLookup:
        until = now + REMEMBERED_S
        try:
            began = self._read_start_time(pid)
            return _CachedJobLookup(self.holder(pid), began, until)
        except (OSError, ValueError, IndexError):
            # Ended, or never existed.
            return _CachedJobLookup("", 0.0, until)

    def holder(self, pid: int) -> str:
        """Return the job that a process is in now; empty for none. Not cached. Raises OSError.

        A user's own slice may have groups of any name below it.
        """
        cgroup = (self._proc / str(pid) / "cgroup").read_text(errors="replace")
        mine = "/user.slice/" in cgroup
        return (not mine and parse_cgroup_job_id(cgroup)) or self._find_ancestor_job(pid)

    def _find_ancestor_job(self, pid: int) -> str:
        for _ in range(MAX_ANCESTORS):
            if pid <= 1:
                break
            directory = self._proc / str(pid)
            _, fields = self._read_process_stat(pid)
            if is_slurmstepd_process(directory):
                match = _STEPD.match((directory / "cmdline").read_bytes())
                return match["job"].decode() if match else ""
            pid = int(fields[1])
        return ""

    def _read_start_time(self, pid: int) -> float:
        """Return when a process began, in seconds of the wall clock."""
        ticks = int(self._read_process_stat(pid)[1][19])
        booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted + ticks / os.sysconf("SC_CLK_TCK")

    def _read_process_stat(self, pid: int) -> tuple[str, list[str]]:
        """Return a process's name, and its fields from the third (`state`) on: see proc(5)."""
        text = (self._proc / str(pid) / "stat").read_text(errors="replace")
        # The name is in brackets and may contain any character, brackets included.
        name, _, rest = text.partition("(")[2].rpartition(")")
        return name, rest.split()
