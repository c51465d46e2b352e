"""Kernel lines. NVMe controllers."""

import re

from hpctl.detection.kernel.line import Line, line
from hpctl.detection.kmsg import Record

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
