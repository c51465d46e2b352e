"""Kernel lines. File systems: errors, remounts read-only."""

import re

from hpctl.detection.kernel.line import Line, line
from hpctl.detection.kmsg import Record

# Local file systems that stopped taking writes, or found themselves damaged.
#
#     EXT4-fs (nvme0n1p1): Remounting filesystem read-only
#     EXT4-fs error (device nvme0n1p1): ext4_journal_check_start:61: Detected aborted journal
#     XFS (nvme1n1): Corruption of in-memory data detected.  Shutting down filesystem    (to 5.15)
#     XFS (nvme1n1): Log I/O Error (0x2) detected at xlog_ioend_work+0x60/0xb0 [xfs]
#         (fs/xfs/xfs_log.c:1377).  Shutting down filesystem.                            (since)
#     XFS (nvme1n1): Filesystem has been shut down due to log error (0x2).
#     EXT4-fs (nvme1n1): I/O error while writing superblock
#     EXT4-fs (nvme1n1): Invalid checksum for backup superblock 32768
#     BTRFS info (device nvme1n1): forced readonly                                       (to 5.17)
#     BTRFS info (device nvme1n1: state EA): forced readonly                             (since)
#
# A shutdown that somebody ordered (xfs_io, `User initiated shutdown`) is reported by the line that
# names xfs_fs_goingdown: it says nothing of the disk, and it is left out. So are loop devices,
# which are files that some job may have mounted.

FS_CHECK = "kernel.fs"


FS_HEADS = ("EXT4", "EXT3", "EXT2", "XFS ", "BTRF", "I/O ", "JBD2", "Abor")


_FS_DEVICE = r"(?P<device>(?!(?:loop|ram|zram|nbd|rbd|fd|sr)\d)[\w.!-]+)"


_FS_DEVICE2 = _FS_DEVICE.replace("device", "device2")


_EXT = re.compile(rf"EXT[234]-fs \({_FS_DEVICE}\): Remounting filesystem read-only")


_EXT_ERROR = re.compile(
    rf"EXT[234]-fs error \(device {_FS_DEVICE}\)"
    # What was recorded before this boot is reported at each mount, repaired or not.
    rf"|EXT[234]-fs \({_FS_DEVICE2}\): (?!previous |Filesystem error rec)"
    r".{0,80}?(?:(?<!by )superblock|corrupt|[Ii]nvalid checksum|checksum invalid|mount failed"
    r"|can't read |error loading|Delayed block allocation failed|bad geometry"
    r"|failed to convert unwritten extents|Journal got removed)"
)


# xfs_do_force_shutdown names the reason first; no word of a user's stands in these lines.
_XFS = re.compile(
    rf"XFS \({_FS_DEVICE}\): (?:(?:(?:(?:Log|Metadata|Data) )?I/O Error"
    r"|Corruption of (?:in-memory data|on-disk metadata)|Block device removal"
    r"|User initiated shutdown|Unknown)[^:\[]{0,20}"
    r"(?:\(0x[0-9a-f]+\) )?(?:[Dd]etected|received).*Shutting down filesystem"
    r"|Filesystem has been shut ?down due to |xfs_log_force: error -?\d+ returned)"
)


_XFS_ERROR = re.compile(
    rf"XFS \({_FS_DEVICE}\): (?:Metadata corruption detected|Metadata CRC error detected"
    r"|[Mm]etadata I/O error|log I/O error|SB validate failed|SB \w+ check failed"
    r"|Superblock has |Corruption detected|[Cc]orruption warning|writeback error"
    r"|log (?:mount|recovery|record CRC|device read)|[Ff]ailed to (?:locate|find|read|recover) "
    r"|Internal error |Unmount and run|last sector read failed|[Cc]orrupted )"
)


_BTRFS = re.compile(rf"BTRFS info \(device {_FS_DEVICE}:?(?: state \w+)?\): forced readonly")


_BTRFS_ERROR = re.compile(
    rf"BTRFS:? (?:error|critical|(?P<mild>warning)) \(device {_FS_DEVICE}:?(?: state \w+)?\)"
    r"(?: in |: )"
    r"(?(mild).*(?:csum failed|checksum |bad tree block|corrupt |parent transid| errs|lost page))"
)


_UNSAID = re.compile(
    rf"(?:(?:XFS \({_FS_DEVICE}\): |BTRFS: )?I/O error while writing superblock"
    rf"|EXT[234]-fs warning \(device {_FS_DEVICE2}\): ext4_end_bio:"
    r"|JBD2: (?:Detected IO errors|Error -?\d+ detected|I/?O error|recovery failed|Invalid "
    r"|bad block|[Jj]ournal checksum)|Aborting journal on device )"
)


_ORDERED = ("xfs_fs_goingdown", "User initiated shutdown")


def gather_fs(record: Record) -> Line | None:
    """Which file system takes no more writes, or is damaged."""
    text = record.text
    for shape in (_EXT, _BTRFS, _XFS):
        if (match := shape.match(text)) is not None:
            if any(word in text for word in _ORDERED):
                return None
            return line(FS_CHECK, "readonly", record, match["device"])
    for shape in (_EXT_ERROR, _XFS_ERROR, _BTRFS_ERROR, _UNSAID):
        if (match := shape.match(text)) is not None:
            named = match.groupdict()
            return line(FS_CHECK, "error", record, named["device"] or named.get("device2") or "")
    return None
