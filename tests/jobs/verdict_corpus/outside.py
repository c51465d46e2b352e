"""What the runner does to a run from outside: limits, mounts, signals."""

import ctypes
import fcntl
import os
import signal
import struct
import subprocess
from pathlib import Path
from typing import IO

from tests.jobs.verdict_corpus.cases import Case
from tests.jobs.verdict_corpus.nodes import Node, run

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
_INIT_REQUEST, _INIT_ANSWER = 26, 64


def name_group(job: int) -> str:
    """Return the memory control group of a run, in the form of Slurm's own."""
    return f"hpctl-corpus/slurm/uid_0/job_{job}/step_0"


def limit_memory(pid: int, job: int, mib: int) -> None:
    """Put a process into a control group of its own with so much memory."""
    group = MEMORY_GROUPS / name_group(job)
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text(str(mib << 20))
    (group / "cgroup.procs").write_text(str(pid))


def remove_groups(job: int) -> None:
    """Remove a run's control group, which must be empty, and those around it that are."""
    group = MEMORY_GROUPS / name_group(job)
    while group.name != MEMORY_GROUPS.name:
        try:
            group.rmdir()
        except OSError:
            return
        group = group.parent


def read_address_kib(pid: int) -> int:
    """Return the size of a process's address space in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmSize:"):
            return int(line.split()[1])
    raise OSError(f"process {pid} has no address space")


def limit_rank(case: Case, pid: int, job: int) -> None:
    """Set the bounds of the culprit once it runs."""
    if case.address_mib:
        limit = (read_address_kib(pid) << 10) + (case.address_mib << 20)
        run("prlimit", f"--pid={pid}", f"--as={limit}")
    if case.file_kib:
        run("prlimit", f"--pid={pid}", f"--fsize={case.file_kib << 10}")
    if case.memory_mib:
        limit_memory(pid, job, case.memory_mib)


def mount_small_disk(case: Case, folder: Path) -> None:
    """Put the folder of checkpoints, or that of the culprit, on a file system with little room."""
    point = folder / "checkpoints"
    own = point / str(case.rank)
    point = own if own.is_dir() else point
    run("mount", "-t", "tmpfs", "-o", f"size={case.disk_mib}m", "tmpfs", str(point))


def mount_dead_server(point: Path) -> int:
    """Mount a FUSE file system whose server answers its first request and nothing after that.

    Return the server's file descriptor. linux/fuse.h, protocol 7.31.
    """
    point.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    mount = ctypes.CDLL(None, use_errno=True).mount
    if mount(b"corpus", str(point).encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "cannot mount FUSE", str(point))
    request = os.read(device, 1 << 16)
    _, opcode, unique = struct.unpack_from("<IIQ", request)
    if opcode != _INIT_REQUEST:
        raise OSError(f"FUSE begins with request {opcode}")
    answer = struct.pack("<IIIIHHI", 7, 31, 1 << 16, 0, 12, 10, 1 << 16)
    answer = answer.ljust(_INIT_ANSWER, b"\0")
    os.write(device, struct.pack("<IiQ", 16 + len(answer), 0, unique) + answer)
    return device


def hold_lock(path: Path) -> IO[str]:
    """Hold a lock on a file as a host that has stopped does."""
    file = path.open("w")
    fcntl.lockf(file, fcntl.LOCK_EX)
    return file


def act(case: Case, pid: int, node: Node) -> None:
    """Do to the culprit's process or node what the case says."""
    if case.outside == "kill":
        os.kill(pid, signal.SIGKILL)
    elif case.outside == "stop":
        os.kill(pid, signal.SIGSTOP)
    else:
        node.cut(case.outside)


def read_kernel_lines(job: int) -> list[str]:
    """Return the kernel's lines about the kills in a run's control group."""
    log = subprocess.run(["dmesg", "--notime"], capture_output=True, text=True, check=True).stdout
    lines = log.splitlines()
    kills = [number for number, line in enumerate(lines) if f"/job_{job}/" in line]
    found = [line for number in kills for line in lines[number : number + 2]]
    return [line for line in found if line.startswith(("oom-kill:", "Memory cgroup out"))]
