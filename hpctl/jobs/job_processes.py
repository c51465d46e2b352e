"""The processes of a job on this node, and which signals they handle, read from /proc only."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from hpctl.toolkit.compat import SAFE_PATH

PROC = Path("/proc")
_START_TICKS = 19
"""The place of `starttime` in /proc/PID/stat after the name: field 22 (man 5 proc)."""
_COMMAND_BYTES, _COMMAND_WORDS = 4096, 6
"""Bytes of a command line that are read, and words that are kept."""


class JobProcess(Struct, frozen=True):
    """One process of a job. `owner`: its user ID. `python`: it runs an interpreter of Python.
    `started`: POSIX s, 0 if unknown. `command` are its program and the first arguments."""

    pid: int
    owner: int
    parent: int
    state: str
    env: Mapping[str, str]
    python: bool
    started: float = 0.0
    command: tuple[str, ...] = ()

    @property
    def is_hpctl_command(self) -> bool:
        """Return whether it is a command of hpctl, as the supervisor of a run is."""
        words = list(self.command[1:])
        while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
            del words[0]
        if tuple(words[: len(SAFE_PATH)]) == SAFE_PATH:
            return words[len(SAFE_PATH) :][:1] == ["hpctl"]
        return words[:2] == ["-m", "hpctl"] or _has_hpctl_as_program_name(words)


def _has_hpctl_as_program_name(words: list[str]) -> bool:
    return bool(words) and words[0].rpartition("/")[2] == "hpctl"


def read_job_process(pid: int, uid: int | None, job: str) -> JobProcess | None:
    """Return a process of the job; None for any other, and for one that has ended.

    `uid`: of the job's owner, None: any user's.
    """
    place = PROC / str(pid)
    try:
        owner = place.stat().st_uid
        if uid is not None and owner != uid:
            return None
        with (place / "environ").open("rb") as file:
            fields = file.read(1 << 20).decode(errors="replace").split("\0")
        env = dict(word.split("=", 1) for word in fields if "=" in word)
        stat = (place / "stat").read_text(errors="replace").rpartition(")")[2].split()
        python = "python" in (place / "exe").readlink().name
        with (place / "cmdline").open("rb") as file:
            command = file.read(_COMMAND_BYTES).decode(errors="replace").split("\0")
    except (OSError, ValueError):
        return None
    if env.get("SLURM_JOB_ID") != job:
        return None
    started = _compute_process_start_time(int(stat[_START_TICKS]))
    shown = tuple(command[:_COMMAND_WORDS])
    return JobProcess(pid, owner, int(stat[1]), stat[0], env, python, started, shown)


def _compute_process_start_time(ticks: int) -> float:
    """Return the POSIX time of a process's start, which the kernel counts from the boot."""
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def list_process_ids() -> list[int]:
    """Return the ids of all processes, in order. Raises OSError without a /proc."""
    return sorted(int(name) for name in os.listdir(PROC) if name.isdecimal())


def _read_process_cluster_name(env: Mapping[str, str]) -> str:
    """Return Slurm's name of the cluster: in a batch script's environment and, with its port, in
    that of a step."""
    return env.get("SLURM_CLUSTER_NAME") or env.get("SLURM_WORKING_CLUSTER", "").partition(":")[0]


def is_same_cluster_process(env: Mapping[str, str]) -> bool:
    """Return whether a process may belong to the cluster of this one; only what both know counts.

    Two clusters, each with a job of the same number, may share a node. A step that `srun --jobid`
    adds from outside the job has no name of a cluster from 24.05 on: slurmd's configuration file,
    which each step's environment has, distinguishes the clusters there. An agent is of no cluster,
    and its own SLURM_CONF need not be slurmd's.
    """
    here, there = _read_process_cluster_name(os.environ), _read_process_cluster_name(env)
    if not here and "SLURM_STEP_ID" in os.environ:
        name = "SLURM_CONF"
        here, there = os.environ.get(name, ""), env.get(name, "")
    return here == there or not here or not there


def has_signal_handler(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal; false where it has ended."""
    try:
        status = (PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
