"""The agent's rivals, where they are installed: LBNL NHC, and node_exporter's InfiniBand collector.

Neither comes with hpctl. `nhc` and `prometheus-node-exporter` (or `node_exporter`) are looked for
in PATH, or where HPCTL_BENCH_NHC and HPCTL_BENCH_NODE_EXPORTER say.
"""

import getpass
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from benchmarks.agent_process import tree_mb

NHC = ("HPCTL_BENCH_NHC", ("nhc",))
NODE_EXPORTER = ("HPCTL_BENCH_NODE_EXPORTER", ("prometheus-node-exporter", "node_exporter"))
TIMEOUT_S = 30

NHC_CHECKS = (
    "check_fs_mount_rw -f /",
    "check_fs_free / 1%",
    "check_fs_ifree / 1k",
    "check_fs_free /dev/shm 1%",
    "check_fs_free /tmp 1%",
    "check_hw_physmem_free 1mb",
    "check_hw_mem_free 1mb",
    "check_ps_loadavg 10000",
    "check_ps_service -u {user} {service}",
    "check_cmd_status -t 5 -r 0 stat -f /",
    "check_cmd_dmesg -t 5 '!/NVRM: Xid/' '!/I\\/O error/' '!/soft lockup/'",
    "check_file_test -r -w -x -d -k /tmp /var/tmp",
    "check_file_test -c -r -w /dev/null /dev/zero",
)
"""What both look at: disks, mounts, memory, processes, services, the kernel's log."""


class Run(Struct, frozen=True):
    """One run of a program with all that it ran: processor seconds, and MB at the peak."""

    cpu_s: float
    peak_mb: float


def find(where: tuple[str, tuple[str, ...]]) -> str | None:
    """The program by its variable, else in PATH; None where it is not installed."""
    variable, names = where
    if path := os.environ.get(variable):
        return shutil.which(path)
    return next(filter(None, map(shutil.which, names)), None)


class Nhc:
    """NHC without a resource manager and without marking anything offline, in one directory."""

    def __init__(self, program: str, directory: Path, service: str) -> None:
        """`service`: the name of a process that runs, for its check of services."""
        self._program, self._directory = program, directory
        user = getpass.getuser()
        lines = (f"* || {check}".format(user=user, service=service) for check in NHC_CHECKS)
        (directory / "nhc.conf").write_text("\n".join(lines) + "\n")

    def once(self) -> Run:
        """Raises RuntimeError where it finds this machine unhealthy: it then stops half way."""
        # What is set in the environment is dropped by NHC; what is set on the command line is not.
        arguments = [
            self._program,
            *("-c", str(self._directory / "nhc.conf"), "-l", str(self._directory / "nhc.log")),
            *("MARK_OFFLINE=0", "DETACHED_MODE=0", "NHC_RM=", "TIMEOUT=25"),
            *_beside(Path(self._program)),
        ]
        output = self._directory / "nhc.out"
        with output.open("wb") as out:
            process = subprocess.Popen(arguments, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        # Not ru_maxrss: a child begins as a copy of us, and so does that figure.
        peak_mb, ended = 0.0, 0
        while not ended:
            peak_mb = max(peak_mb, tree_mb(process.pid))
            time.sleep(0.01)
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            text = output.read_text(errors="replace").strip()[-300:]
            raise RuntimeError(f"nhc says that this machine is unhealthy: {text}")
        return Run(used.ru_utime + used.ru_stime, peak_mb)


def _beside(program: Path) -> list[str]:
    """In a source tree its scripts and helpers lie beside it, not in /etc and /usr/libexec."""
    here = program.resolve().parent
    if not (here / "scripts/common.nhc").exists():
        return []
    return [f"INCDIR={here / 'scripts'}", f"HELPERDIR={here / 'helpers'}"]


class NodeExporter:
    """A running node_exporter. `read` scrapes it once and returns how many counters it gave."""

    def __init__(self, pid: int, url: str) -> None:
        self.pid, self._url = pid, url

    def read(self) -> int:
        """Raises OSError."""
        with urllib.request.urlopen(self._url, timeout=TIMEOUT_S) as answer:
            text = answer.read().decode()
        return sum(line.startswith("node_infiniband_") for line in text.splitlines())


@contextmanager
def node_exporter(program: str, root: Path, *, only_infiniband: bool) -> Iterator[NodeExporter]:
    """One that reads the sysfs below `root`, alone or with all its usual collectors."""
    port = _free_port()
    arguments = [program, f"--path.sysfs={root / 'sys'}", f"--web.listen-address=127.0.0.1:{port}"]
    if only_infiniband:
        arguments += ["--collector.disable-defaults", "--collector.infiniband"]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        exporter = NodeExporter(process.pid, f"http://127.0.0.1:{port}/metrics")
        until = time.monotonic() + 10
        while True:
            try:
                exporter.read()
                break
            except urllib.error.URLError:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{program} does not serve") from None
                time.sleep(0.1)
        yield exporter
    finally:
        process.terminate()
        process.wait(10)


def _free_port() -> int:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])
