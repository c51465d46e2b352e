"""What is kept of a node: its commands and files, and how much each may say.

Nothing that names a process's environment or arguments is read: of processes, names alone. A
program that does not end, or says too much, is ended and what it has said is kept.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

from hpctl.toolkit.bounded_child import BoundedSubprocess, ChildOutputLimitError, ChildTimeoutError

BUG_REPORT: Final = "nvidia-bug-report.sh"
MOST_ITEM: Final = 8 * 1024 * 1024
"""Bytes of one item; of NVIDIA's own report, MOST_REPORT."""
MOST_REPORT: Final = 24 * 1024 * 1024
MOST_FILE: Final = 16 * 1024
MOST_FILES: Final = 4096
_CHUNK: Final = 64 * 1024
_REAP_S: Final = 1.0
"""How long a killed program may take to end, in seconds."""
_ENVIRONMENT: Final = {"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin"}
_FOLDERS: Final = ("usr/sbin", "usr/bin", "sbin", "bin", "opt/nvidia/bin", "usr/local/bin")


class EvidenceCommand(Struct, frozen=True):
    """A command whose output is kept under a name, and how many seconds it may take."""

    name: str
    words: tuple[str, ...]
    limit_s: float = 15.0


_PROCESS_FIELDS: Final = "pid,ppid,user,stat,pcpu,pmem,rss,etime,wchan:32,comm"
COMMANDS: Final = (
    EvidenceCommand("dmesg", ("dmesg", "--kernel", "--time-format", "iso"), 10.0),
    EvidenceCommand("nvidia-smi", ("nvidia-smi", "-q"), 20.0),
    EvidenceCommand("dcgm-health", ("dcgmi", "health", "--check"), 10.0),
    EvidenceCommand("dcgm-discovery", ("dcgmi", "discovery", "--list"), 10.0),
    EvidenceCommand(
        "fabricmanager", ("systemctl", "status", "--no-pager", "nvidia-fabricmanager.service"), 10.0
    ),
    EvidenceCommand("lspci", ("lspci", "-vvv"), 15.0),
    EvidenceCommand("processes", ("ps", "-eo", _PROCESS_FIELDS), 10.0),
    EvidenceCommand("rdma", ("rdma", "statistic", "show"), 10.0),
)  # fmt: skip
"""What every node is asked, in this order; a program that is not there is left out."""
LOGS: Final = {"fabricmanager-log": "var/log/fabricmanager.log", "mounts": "proc/self/mounts"}
"""Files of which the end is kept."""
COUNTERS: Final = {
    "rdma-counters": (
        *("sys/class/infiniband/*/ports/*/counters/*", "sys/class/infiniband/*/ports/*/state"),
        "sys/class/infiniband/*/ports/*/hw_counters/*",
    )
}
"""Files of one line each, which are kept with their paths."""


class EvidenceCollector:
    """Reads one machine below `root` until `ends`, by time.monotonic(). For one thread."""

    def __init__(self, root: Path, ends: float) -> None:
        self._root, self._ends = root, ends

    def find_program(self, name: str) -> str | None:
        """Return the path of a program of the machine; None where it has none. A name with a slash
        is the path itself."""
        if "/" in name:
            return name if os.access(name, os.X_OK) else None
        paths = (self._root / folder / name for folder in _FOLDERS)
        return next((str(path) for path in paths if os.access(path, os.X_OK)), None)

    def run(self, command: EvidenceCommand) -> Iterator[bytes]:
        """Yield what a command says, and how it ended; nothing where there is no such program."""
        program = self.find_program(command.words[0])
        if program is None:
            return
        limit = min(self._ends, time.monotonic() + command.limit_s)
        try:
            child = BoundedSubprocess(
                (program, *command.words[1:]),
                environment=_ENVIRONMENT,
                stderr=subprocess.STDOUT,
                own_group=False,
            )
        except OSError as error:
            yield f"cannot be started: {error.strerror}\n".encode()
            return
        yield from _read_command_output(child, limit)

    def start_bug_report(self, place: Path) -> BoundedSubprocess | None:
        """Start NVIDIA's own report, which takes long; None where the driver brings none.

        `--safe-mode` leaves out what may hang a machine whose GPU is lost.
        """
        program = self.find_program(BUG_REPORT)
        if program is None:
            return None
        try:
            return BoundedSubprocess(
                (program, "--safe-mode", "--output-file", str(place)),
                environment=_ENVIRONMENT,
                directory=str(place.parent),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                own_group=False,
            )
        except OSError:
            return None

    def read_bug_report(self, child: BoundedSubprocess, place: Path) -> Iterator[bytes]:
        """Yield the report once it has ended, or what there is of it when time is over."""
        if not child.wait(self._ends):
            yield b"[ended: it took too long]\n"
        child.end(_REAP_S)
        packed, plain = place.with_name(place.name + ".gz"), place
        if packed.exists():
            yield from _read_bounded_gzip_file(packed, MOST_REPORT)
        elif plain.exists():
            yield from read_file_tail(plain, MOST_REPORT)

    def list_hardware_network_interfaces(self) -> list[str]:
        """Return the network interfaces that have hardware of their own."""
        paths = sorted(self._root.glob("sys/class/net/*"))[:64]
        return [path.name for path in paths if (path / "device").exists()]

    def read_log_file_tail(self, path: str) -> Iterator[bytes]:
        """Yield the end of a file of the machine; nothing where there is none."""
        yield from read_file_tail(self._root / path, MOST_ITEM)

    def read_counter_files(self, patterns: Sequence[str]) -> Iterator[bytes]:
        """Yield `path: value` of each file that a pattern names."""
        left = MOST_FILES
        for pattern in patterns:
            for path in sorted(self._root.glob(pattern))[:left]:
                left -= 1
                if time.monotonic() > self._ends:
                    yield b"[ended: no time left]\n"
                    return
                value = b"".join(read_file_tail(path, MOST_FILE)).strip()
                yield f"{path.relative_to(self._root)}: ".encode() + value + b"\n"


def make_site_commands(commands: Mapping[str, Sequence[str]]) -> list[EvidenceCommand]:
    """Return a site's own commands, under names that cannot be taken for hpctl's."""
    return [EvidenceCommand(f"site-{name}", tuple(words)) for name, words in commands.items()]


def read_file_tail(path: Path, most: int) -> Iterator[bytes]:
    """Yield the last `most` bytes of a regular file, no link followed; nothing of another."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(path, flags), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                file.seek(size - most)
            yield from _read_bounded_chunks(file, most)
    except (OSError, ValueError) as error:
        if not isinstance(error, FileNotFoundError):
            yield f"[cannot be read: {error}]\n".encode()


def _read_bounded_chunks(file: IO[bytes], most: int) -> Iterator[bytes]:
    left = most
    while left > 0:
        chunk = file.read(min(_CHUNK, left))
        if not chunk:
            return
        left -= len(chunk)
        yield chunk
    yield b"\n[ended: it has more]\n"


def _read_bounded_gzip_file(path: Path, most: int) -> Iterator[bytes]:
    """Yield what a gzip file holds, `most` bytes at most; what is there of one that was cut."""
    try:
        with gzip.open(path, "rb") as file:
            yield from _read_bounded_chunks(file, most)  # type: ignore[arg-type]
    except (OSError, EOFError, zlib.error):
        yield b"\n[ended: the report is not complete]\n"


def _read_command_output(child: BoundedSubprocess, limit: float) -> Iterator[bytes]:
    """Yield what a program says until it ends, time is over, or it says too much; and its end.

    The program stays in the group of this process: the agent kills that as a whole.
    """
    why, code = "", None
    try:
        for _, chunk in child.read(limit, MOST_ITEM):
            yield chunk
    except ChildTimeoutError:
        why = "it took too long"
    except ChildOutputLimitError:
        why = "it says too much"
    finally:
        code = child.end(_REAP_S)
    if why:
        yield f"\n[ended: {why}]\n".encode()
    if code is None:
        # It sleeps in the kernel; it ends with the machine.
        yield b"\n[does not end]\n"
    elif code and not why:
        yield f"\n[exit code {code}]\n".encode()
