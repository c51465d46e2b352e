"""Local file systems that stopped taking writes, or found themselves damaged.

    EXT4-fs (nvme0n1p1): Remounting filesystem read-only
    EXT4-fs error (device nvme0n1p1): ext4_journal_check_start:61: Detected aborted journal
    XFS (nvme1n1): Corruption of in-memory data detected.  Shutting down filesystem    (to 5.15)
    XFS (nvme1n1): Log I/O Error (0x2) detected at xlog_ioend_work+0x60/0xb0 [xfs]
        (fs/xfs/xfs_log.c:1377).  Shutting down filesystem.                            (since)
    XFS (nvme1n1): Filesystem has been shut down due to log error (0x2).
    BTRFS info (device nvme1n1): forced readonly                                       (to 5.17)
    BTRFS info (device nvme1n1: state EA): forced readonly                             (since)

A shutdown that somebody ordered (xfs_io, `User initiated shutdown`) is reported by the line that
names xfs_fs_goingdown: it says nothing of the disk, and it is left out. So are loop devices,
which are files that some job may have mounted.
"""

from __future__ import annotations

import re

from hpctl.agent.checks.kernel_line import Line, line, watched
from hpctl.agent.kmsg import Record
from hpctl.core.model import Finding

CHECK = "kernel.fs"
HEADS = ("EXT4", "EXT3", "EXT2", "XFS ", "BTRF")
_DEVICE = r"(?P<device>(?!(?:loop|ram|zram|nbd|rbd|fd|sr)\d)[\w.!-]+)"
_EXT = re.compile(rf"EXT[234]-fs \({_DEVICE}\): Remounting filesystem read-only")
_EXT_ERROR = re.compile(rf"EXT[234]-fs error \(device {_DEVICE}\)")
_XFS = re.compile(
    rf"XFS \({_DEVICE}\): (?:.*Shutting down filesystem|Filesystem has been shut ?down due to )"
)
_XFS_ERROR = re.compile(rf"XFS \({_DEVICE}\): (?:Metadata corruption detected|log I/O error)")
_BTRFS = re.compile(rf"BTRFS info \(device {_DEVICE}:?(?: state \w+)?\): forced readonly")
_BTRFS_ERROR = re.compile(rf"BTRFS: error \(device {_DEVICE}:?(?: state \w+)?\) in ")
_ORDERED = ("xfs_fs_goingdown", "User initiated shutdown")
_SERIOUS = frozenset({"readonly"})


def gather(record: Record) -> Line | None:
    """Which file system takes no more writes, or is damaged."""
    text = record.text
    for shape in (_EXT, _BTRFS, _XFS):
        if (match := shape.match(text)) is not None:
            if any(word in text for word in _ORDERED):
                return None
            return line(CHECK, "readonly", record, match["device"])
    for shape in (_EXT_ERROR, _XFS_ERROR, _BTRFS_ERROR):
        if (match := shape.match(text)) is not None:
            return line(CHECK, "error", record, match["device"])
    return None


def judge(said: Line) -> Finding:
    """FAIL where nothing can be written any more."""
    return watched(said, _SERIOUS)
