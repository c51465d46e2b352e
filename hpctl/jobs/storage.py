"""Which file system a path is on, as the mount table says: nothing is asked of the file system."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SHARED = (
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "smbfs", "glusterfs", "9p",
    "afs", "panfs", "pvfs2", "orangefs", "wekafs", "virtiofs", "ocfs2", "gfs2", "daos", "vastnfs",
)  # fmt: skip
_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "overlay", "squashfs", "aufs")
# /opt/dlami/nvme: where HyperPod's and the deep learning AMIs mount the instance store.
_LOCAL = re.compile(
    r"/(tmp|var/tmp|dev/shm|run|proc|sys|root|opt/dlami/nvme|local|local_?scratch|(mnt/)?nvme\d*"
    r"|(mnt/)?localdisk|raid)(/|$)"
)


def local(directory: str, filesystem: str) -> str:
    """Why a directory is probably not shared between nodes; "" where nothing says so.

    `filesystem` is its type on the submitting machine, "" where unknown.
    """
    if filesystem in _SHARED or filesystem.startswith("fuse"):
        return ""
    if filesystem in _MEMORY:
        return f"is on {filesystem}, which is this machine's alone"
    if found := _LOCAL.match(directory):
        return f"is below {found[0].rstrip('/')}, which is this machine's alone"
    if filesystem:
        return f"is on {filesystem}, a disk of this machine, unless it is exported"
    return ""


def filesystem(directory: str, table: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that a directory is or would be on, "" where unknown."""
    try:
        lines = table.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:  # proc_pid_mountinfo(5): field 5 the mount point, the type after " - "
        left, _, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if len(fields) < 6:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
        inside = os.path.commonpath([point, directory]) == point
        if inside and len(point) >= len(best):  # of two on one point, the later hides the other
            best, kind = point, rest[0]
    return kind
