"""Disks, file systems and file servers in the kernel's log."""

import re

from hpctl.agent.checks.kernel_line import ENDED, Family, Line, line
from hpctl.agent.kmsg import Record

# --- block ----------
# Block devices that fail I/O, and arrays that lose a disk (block/blk-core.c, fs/buffer.c, md).
#
#     end_request: I/O error, dev sda, sector 1234                                   (to Linux 4.0)
#     print_req_error: I/O error, dev sda, sector 1234                               (to 5.2)
#     blk_update_request: I/O error, dev nvme1n1, sector 1234 op 0x0:(READ) ...      (to 5.15)
#     I/O error, dev nvme1n1, sector 1234 op 0x1:(WRITE) flags 0x0 phys_seg 1 ...    (since)
#     critical medium error, dev nvme1n1, sector 1234 op 0x0:(READ) ...
#     Buffer I/O error on dev nvme1n1p1, logical block 12, lost async page write
#     attempt to access beyond end of device                                         (to 5.12)
#     md/raid0md0: Disk failure on nvme3n1 detected, failing array.
#     md/raid1:md0: Disk failure on nvme3n1, disabling device.
#     md/raid:md5: Cannot continue operation (2/4 failed).
#     md/raid:md5: read error not correctable (sector 2048 on sdc1).
#     device-mapper: thin: 253:4: switching pool to out-of-data-space (error IO) mode
#
# Loop, RAM, network and removable devices are left out: what fails there is not the node's disk.

BLOCK_CHECK = "kernel.block"
BLOCK_HEADS = (
    *("blk_", "prin", "end_", "I/O ", "crit", "Buff", "atte", "md/r", "md/l", "md: ", "devi"),
    *("Writ", "Read"),
)
_DEVICE = r"(?P<device>(?!(?:loop|ram|zram|nbd|rbd|fd|sr)\d)[\w!-]+)"
_REQUEST = re.compile(
    r"(?:(?:blk_update_request|print_req_error|end_request): )?"
    rf"(?P<what>I/O|critical medium) error, dev {_DEVICE}, sector \d+"
)
_BUFFER = re.compile(rf"Buffer I/O error on dev(?:ice)? {_DEVICE}(?:, logical block \d+|$)")
_ARRAY = re.compile(
    # raid0.c and linear.c print no colon before the array's name, the others do.
    r"md/(?:raid0|linear):?(?P<lost>[\w-]+): Disk failure on \S{1,64} detected, failing array"
    r"|md/raid\w*:(?P<lost2>[\w-]+): Cannot continue operation "
    r"|md/raid\w*:(?P<degraded>[\w-]+): Disk failure on "
    r"|md/raid\w*:(?P<error>[\w-]+): (?:.{0,40}unrecoverable I/O|read error (?:NOT|not|on)"
    r"|Too many read errors|not enough operational|cannot start dirty)"
    r"|(?P<error2>md): (?:super_written gets error|kicking non-fresh|fatal superblock"
    r"|(?:disabled device )?\S{1,40},? (?:could not read|has zero or unknown size|marking faulty))"
    r"|(?P<error3>device-mapper): .{0,80}\b(?:error|[Ff]ail(?:ed|ing|ure)?|[Ii]nvalid|out-of-)"
)
_UNNAMED = ("attempt to access beyond end of device", "Write-error on swap", "Read-error on swap")


def gather_block(record: Record) -> Line | None:
    """Which device failed a request."""
    text = record.text
    if (match := _REQUEST.match(text)) is not None:
        code = "io-error" if match["what"] == "I/O" else "medium-error"
        return line(BLOCK_CHECK, code, record, match["device"])
    if (match := _BUFFER.match(text)) is not None:
        return line(BLOCK_CHECK, "buffer-error", record, match["device"])
    if text.startswith(_UNNAMED):
        return line(BLOCK_CHECK, "io-error", record)
    if (match := _ARRAY.match(text)) is not None:
        what = str(match.lastgroup)
        return line(BLOCK_CHECK, f"raid-{what.rstrip('23')}", record, str(match[what]))
    return None


# --- fs ----------
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


# --- nvme ----------
# NVMe controllers that do not answer (drivers/nvme/host/pci.c, core.c and multipath.c).
#
#     nvme nvme1: I/O 978 QID 3 timeout, completion polled
#     nvme nvme1: I/O tag 12 (400c) opcode 0x2 (I/O Cmd) QID 4 timeout, aborting req_op:READ(0)
#     nvme nvme1: I/O 0 QID 0 timeout, disable controller
#     nvme nvme1: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff
#     nvme nvme1: Device not ready; aborting reset, CSTS=0x1
#     nvme nvme1: Removing after probe failure status: -19            (to Linux 6.1)
#     nvme nvme1: Disabling device after reset failure: -19           (since)
#     block nvme1n1: no available path - failing I/O
#     nvme nvme1: frozen state error detected, reset controller
#     nvme1n1: Read(0x2) @ LBA 8192, 8 blocks, Unrecovered Read Error (sct 0x2 / sc 0x81) DNR
#
# A command that timed out may have been only slow (EBS volumes are NVMe too). A controller that
# went down and was reset is a bad sign; one that did not come back is gone, and its data with it.

NVME_CHECK = "kernel.nvme"
NVME_HEADS = ("nvme", "bloc")
_CONTROLLER = re.compile(
    r"nvme (?P<device>nvme\d+): (?:"
    r"(?P<dead>Removing after probe failure|Disabling device after reset failure)"
    r"|(?P<down>controller is down; will reset|Device not ready; aborting (?:reset|initiali)"
    r"|I/O .{0,80}\btimeout, disable controller)"
    r"|(?P<timeout>I/O .{0,80}\btimeout, )"
    r"|(?P<error>(?:frozen|failure) state error detected|resetting controller due to "
    r"|Identify Controller failed|Device not ready; aborting|Device shutdown incomplete"
    r"|Fw activation timeout))"
    # Reads, writes and flushes: a disk that does not know discard or write zeroes is sound.
    r"|(?P<disk>nvme\d+)[cn]\w{1,12}: (?:Read|Write|Flush|I/O Cmd)\(0x[0-2]\).{0,60}, .{1,60} "
    r"(?P<status>\(sct 0x[0-9a-f]+ / sc 0x[0-9a-f]+\))"
)
_NO_PATH = re.compile(r"block (?P<device>nvme\d+)\w*: no (?:available|usable) path - failing I/O")


def gather_nvme(record: Record) -> Line | None:
    """Which controller, and how far it has gone."""
    if (match := _CONTROLLER.match(record.text)) is not None:
        if match["status"]:
            return line(NVME_CHECK, "error", record, match["disk"])
        return line(NVME_CHECK, str(match.lastgroup), record, match["device"])
    if (match := _NO_PATH.match(record.text)) is not None:
        return line(NVME_CHECK, "dead", record, match["device"])
    return None


# --- remote ----------
# File servers that do not answer, as the NFS and Lustre clients say.
#
#     nfs: server 10.0.0.5 not responding, still trying
#     nfs: server 10.0.0.5 OK
#     lockd: server 10.0.0.5 not responding, still trying
#     NFS: __nfs4_reclaim_open_state: Lock reclaim failed!
#     NFSv4: state recovery failed for open file ckpt/step_100.pt, error = -5
#     Lustre: fsx-OST0000-osc-ffff8a: Connection to fsx-OST0000 (at 10.0.1.5@tcp) was lost; in ...
#     Lustre: fsx-OST0000-osc-ffff8a: Connection restored to 10.0.1.5@tcp (at 10.0.1.5@tcp)
#     LustreError: 167-0: fsx-MDT0000-mdc-ffff8a: This client was evicted by fsx-MDT0000; in ...
#     LustreError: 4242:0:(osc_cache.c:1290:osc_completion()) LBUG
#     LustreError: 4242:0:(osc_object.c:411:osc_req_attr_set()) ASSERTION( ... ) failed:
#     LustreError: 132-0: fsx-OST0007-osc-ffff8a: BAD READ CHECKSUM: from 10.0.7.12@tcp inode ...
#
# A lost connection ends with the line that says so: its finding goes with it. Whether one node or
# the storage is to blame can only be seen from all nodes together: nothing here is for one node
# to be closed, but an assertion that failed inside the client (LBUG), which stops it for good.

NFS = "kernel.nfs"
LUSTRE = "kernel.lustre"
REMOTE_HEADS = ("nfs:", "NFS:", "nfs4", "__nf", "NFSv", "lock", "Lust")
_NFS = re.compile(
    r"(?:nfs|lockd): server (?P<server>\S+) "
    r"(?:(?P<lost>not responding, (?:still trying|timed out))|OK\b)"
)
_RECLAIM = re.compile(r"(?:NFS: )?\w{1,60}: Lock reclaim failed\b")
_STATE = re.compile(
    r"NFSv4: state recovery failed |NFS: (?:state manager: .{1,60} failed"
    r"|migration recovery failed|\w{1,60}: (?:unhandled error|lost \d+ locks))"
)
_TARGET = r"(?P<target>[\w.@:-]+?)(?:-(?:osc|mdc|lwp)-\w+)?"
_LUSTRE = re.compile(
    rf"Lustre(?:Error)?: (?:[\dx]+-\d+: )?{_TARGET}: (?:"
    r"(?P<lost>Connection to .{0,160} was lost; in progress operations)"
    r"|(?P<restored>Connection restored to )"
    r"|(?P<evicted>This client was evicted by )"
    r"|(?P<checksum>BAD (?:READ|WRITE) CHECKSUM: ))"
)
_LBUG = re.compile(r"LustreError: \d+:\d+:\([\w.-]+:\d+:\w+\(\)\) (?:LBUG\b|ASSERTION\(.* failed:)")
_CODES = {
    "lost": "connection-lost",
    "restored": f"{ENDED}connection-lost",
    "evicted": "evicted",
    "checksum": "checksum",
}


def gather_remote(record: Record) -> Line | None:
    """Which server or target, and whether it went or came back."""
    text = record.text
    if (match := _NFS.match(text)) is not None:
        code = "not-responding" if match["lost"] else f"{ENDED}not-responding"
        return line(NFS, code, record, match["server"])
    if _RECLAIM.match(text) is not None:
        return line(NFS, "locks-lost", record)
    if _STATE.match(text) is not None:
        return line(NFS, "state-lost", record)
    if (match := _LUSTRE.match(text)) is not None:
        return line(LUSTRE, _CODES[str(match.lastgroup)], record, match["target"])
    if _LBUG.match(text) is not None:
        return line(LUSTRE, "bug", record)
    return None


BLOCK = Family(gather_block, BLOCK_HEADS)
FS = Family(gather_fs, FS_HEADS)
NVME = Family(gather_nvme, NVME_HEADS)
REMOTE = Family(gather_remote, REMOTE_HEADS)
