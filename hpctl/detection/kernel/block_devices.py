"""Kernel lines. Disks: failed reads and writes."""

import re

from hpctl.detection.kernel.line import Line, line
from hpctl.detection.kmsg import Record

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
