"""What a helper may take of its node: of the network, of the file system, of the job's memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

LEFT = 1 << 30
"""Bytes of the job's memory limit that copies leave to its ranks."""
_BURST_S = 0.05


class Pace:
    """Sleeps, so that no more than `rate` bytes a second pass on average."""

    def __init__(self, rate: int) -> None:
        self._rate, self._due = rate, 0.0

    def __call__(self, count: int) -> None:
        """So many bytes have come."""
        now = time.monotonic()
        self._due = max(self._due, now - _BURST_S) + count / self._rate
        if self._due > now:
            time.sleep(self._due - now)


def file_system(path: Path, proc: Path = Path("/proc")) -> str:
    """The kind that a directory lies in, as /proc/mounts has it."""
    found, real = ("", ""), os.path.realpath(path)
    for line in (proc / "mounts").read_text(errors="replace").splitlines():
        _, where, kind, *_ = line.split(" ")
        where = where.encode().decode("unicode_escape")
        inside = real == where or real.startswith(where.rstrip("/") + "/")
        if inside and len(where) >= len(found[0]):  # of two on one place the later one counts
            found = where, kind
    return found[1]


def memory_room(
    proc: Path = Path("/proc/self"), groups: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Bytes that the job may still take here, less LEFT; None where no control group limits it."""
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    rooms = []
    for group in (own, *map(str, Path(own).parents)):
        place = groups / group.strip("/")
        try:
            most = (place / "memory.max").read_text().strip()
            if most != "max":
                rooms.append(int(most) - int((place / "memory.current").read_text()))
        except (OSError, ValueError):
            continue
    return max(0, min(rooms) - LEFT) if rooms else None
