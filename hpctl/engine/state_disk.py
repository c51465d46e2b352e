"""The file system of the state directory: which one, and how full. The journal is written there."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

LOW: Final = 256 * 1024 * 1024
"""Bytes that must be free for reports of jobs; the events of recoveries are written until the very
end."""
OPEN_DIRECTORIES: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 -- only looked at
"""Where every user of a host may write, by default."""
_MIB: Final = 2**20


class FilesystemMount(Struct, frozen=True):
    """A mounted file system. `kind`: its type; `unknown` where nothing tells."""

    point: str
    kind: str


def find_filesystem_mount_for_path(path: Path, mountinfo: str) -> FilesystemMount:
    """Return the file system that a path is on, by the text of proc(5), mountinfo."""
    found = FilesystemMount("", "unknown")
    real = str(path.resolve())
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split(" ")[4].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found.point):
            found = FilesystemMount(point, right.split(" ", 1)[0])
    return found


def describe_full_state_filesystem(state_dir: Path) -> str:
    """Return which file system is full, how full, and what to do; "" where there is room, and where
    it cannot be looked at."""
    try:
        disk = os.statvfs(state_dir)
        free = disk.f_bavail * disk.f_frsize
        no_inodes = disk.f_files > 0 and disk.f_favail == 0
        if free >= LOW and not no_inodes:
            return ""
        mount = find_filesystem_mount_for_path(state_dir, Path("/proc/self/mountinfo").read_text())
    except OSError:
        return ""
    size = disk.f_blocks * disk.f_frsize
    full = "no inode is free"
    if not no_inodes:
        share = 100 * (size - free) // size if size else 100
        full = f"{share} % full, {free // _MIB} MiB of {size // _MIB} MiB free"
    return (
        f"the file system {mount.point} ({mount.kind}) of the state directory {state_dir} is"
        f" short of room ({full}): with under {LOW // _MIB} MiB hpctl refuses reports of jobs."
        " Recoveries go on in the journal's reserve, and stop where that is used up. Free space on"
        f" {mount.point}, or enlarge it; the daemon continues then, without a restart"
    )


def find_world_writable_directories(
    state_dir: Path, directories: Sequence[str] = OPEN_DIRECTORIES
) -> list[str]:
    """Return which of the directories every user may write to on the file system of the state
    directory: by one of them a user can fill it. Raises OSError where the state directory cannot be
    looked at."""
    device = state_dir.stat().st_dev
    found = []
    for directory in directories:
        with contextlib.suppress(OSError):
            status = os.stat(directory)
            if status.st_dev == device and status.st_mode & stat.S_IWOTH:
                found.append(directory)
    return found
