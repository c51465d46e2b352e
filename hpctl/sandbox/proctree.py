"""Process trees read from /proc, and their end. Standard library only: every instance's init
and every sandbox's keeper imports this, and they must start in a few milliseconds.

A sandbox must leave nothing behind, whatever its jobs do with sessions, double forks and
environments. So each level is a *child subreaper*: what escapes its parent is handed to the
nearest such ancestor instead of init, and stays a descendant. Killing descendants until there
are none is then complete; process groups and pid files are not.
"""

import contextlib
import ctypes
import os
import re
import signal
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_SOCK_DIAG, _BY_FAMILY, _ERROR = 4, 20, 2
_DUMP = 0x301
"""NLM_F_REQUEST | NLM_F_DUMP: see netlink(7), sock_diag(7)."""
_TCP_LISTEN = 10

OWNED = "HPCTL_SANDBOX_OWNED"
"""Set in the environment of everything that a sandbox starts: its id."""

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Adopt orphaned descendants from now on. Raises OSError."""
    _call_prctl(PR_SET_CHILD_SUBREAPER, 1)


def set_parent_death_signal(number: signal.Signals) -> None:
    """Get this signal when the *thread* that started this process ends. Raises OSError."""
    _call_prctl(PR_SET_PDEATHSIG, int(number))


def _call_prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def _read_process_stat(pid: int) -> tuple[int, str, str] | None:
    """Parent pid, state letter and start time (clock ticks since boot); None when gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[1]), fields[0], fields[19]


def read_process_start_time(pid: int) -> str:
    """Return what differs between this process and a later one with the same pid; "" when it is
    gone."""
    stat = _read_process_stat(pid)
    return "" if stat is None or stat[1] == "Z" else stat[2]


def list_pids() -> list[int]:
    """Return every process that this one can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def list_descendants(root: int) -> list[int]:
    """Return every living process below `root`, zombies left out, nearest first."""
    children: dict[int, list[int]] = defaultdict(list)
    zombies: set[int] = set()
    for pid in list_pids():
        stat = _read_process_stat(pid)
        if stat is not None:
            children[stat[0]].append(pid)
            if stat[1] == "Z":
                zombies.add(pid)
    found: list[int] = []
    todo = [root]
    while todo:
        below = children[todo.pop(0)]
        found += [pid for pid in below if pid not in zombies]
        todo += below
    return found


def list_zombie_children(parent: int) -> list[int]:
    """Children of `parent` that ended and were not waited for."""
    stats = ((pid, _read_process_stat(pid)) for pid in list_pids())
    return [pid for pid, stat in stats if stat is not None and stat[:2] == (parent, "Z")]


def send_signal_to_processes(targets: Iterable[int], number: signal.Signals) -> None:
    """Signal each; those that are gone already are what we wanted."""
    for pid in targets:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_descendants(root: int, timeout: float = 10.0) -> list[int]:
    """SIGKILL everything below `root` until nothing is left; returns what would not die.

    A process that forks between the listing and the kill leaves a child which `root`, a
    subreaper, adopts: the next round sees it.
    """
    deadline = time.monotonic() + timeout
    while left := list_descendants(root):
        if time.monotonic() > deadline:
            return left
        send_signal_to_processes(left, signal.SIGKILL)
        time.sleep(0.01)
    return []


def read_process_environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty where we may not look."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def find_leftover_processes(sandbox: str, cluster: str) -> list[int]:
    """Processes of a sandbox whose tree is broken: keeper and supervisor both killed.

    Those carry the sandbox's id; a job's own processes have the environment of its sbatch, and
    are known by the cluster's name together with a node name, which a user's shell never has.
    """
    mine = {os.getpid()}
    found = []
    for pid in list_pids():
        if pid in mine:
            continue
        env = read_process_environment(pid)
        job = "SLURMD_NODENAME" in env and env.get("SLURM_CLUSTER_NAME") == cluster
        if job or env.get(OWNED) == sandbox:
            found.append(pid)
    return found


def kill_leftover_processes(sandbox: str, cluster: str, timeout: float = 10.0) -> list[int]:
    """SIGKILL what `find_leftover_processes` finds until nothing is left; returns what would not
    die."""
    deadline = time.monotonic() + timeout
    while left := [
        pid for pid in find_leftover_processes(sandbox, cluster) if read_process_start_time(pid)
    ]:
        if time.monotonic() > deadline:
            return left
        send_signal_to_processes(left, signal.SIGKILL)
        time.sleep(0.02)
    return []


def is_port_listening(port: int) -> bool:
    """Return whether some TCP socket listens on `port`, in our network namespace."""
    try:
        return _has_listening_socket(port)
    except OSError:  # a kernel without sock_diag
        wanted = re.compile(rf" *\d+: [0-9A-F]+:{port:04X} [0-9A-F:]+ 0A ")
        tables = (Path(f"/proc/self/net/{table}") for table in ("tcp", "tcp6"))
        lines = chain.from_iterable(table.open() for table in tables if table.exists())
        return any(map(wanted.match, lines))


def _has_listening_socket(port: int) -> bool:
    """By sock_diag(7), which looks at listeners alone: who waits for a service asks again and
    again, and /proc/net/tcp costs 10 ms where many connections come and go. Raises OSError.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as ask:
        for family in (socket.AF_INET, socket.AF_INET6):
            # struct inet_diag_req_v2: of all the addresses only the local port is named.
            wanted = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, 1 << _TCP_LISTEN)
            wanted += struct.pack("!H46x", port)
            ask.send(struct.pack("=IHHII", 16 + len(wanted), _BY_FAMILY, _DUMP, 0, 0) + wanted)
            answer = ask.recv(8192)
            kind, first = struct.unpack_from("=4xH10xi", answer)
            if kind == _BY_FAMILY:
                return True
            if kind == _ERROR:
                raise OSError(-first, os.strerror(-first))
    return False
