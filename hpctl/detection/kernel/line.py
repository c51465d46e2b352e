"""The values of one kernel line, and the finding that it becomes.

Only the fault table decides what a line means for the node: its row, by check and code, gives the
finding's verdict (`FaultRow.verdict`), and the head node judges the finding by the same row, with
the site's overrides and with the other lines around it.
"""

import re
from datetime import datetime

from msgspec import Struct

from hpctl.detection.kmsg import KernelRecord
from hpctl.faults.decode import find_driver_line_fault_row
from hpctl.faults.table import KERNEL_CHECKS, FaultRow, list_check_fault_rows
from hpctl.vocabulary.model import DeviceVerdict, Finding

ENDED = "ok:"
"""A prefix of a code: the line that ends the condition of the code."""
HEAD_CHARS = 4
"""How many of a line's first characters choose its families."""
EVIDENCE_CHARS = 512
NAME_CHARS = 128
"""Characters kept of a device's or server's name, which may be of any length."""
# The kernel's own lines about a process begin with its name, which is its owner's to choose: up
# to 15 characters (control characters stay escaped). Some end with a file's name, or a control
# group's. What may follow the process's name, by the kernel's sources, Linux 4.14 to 6.18:
#   NAME[PID]       segfault at, unhandled exception, bad frame in, attempts to use CLI/STI, ...
#   NAME (PID), NAME(PID)   drop_caches, used greatest stack depth, dirtied inode, Uses, ...
#   NAME/PID        potentially unexpected fatal signal (to 5.0), took a split_lock trap
#   NAME: WHAT, mode:0x(GFP...),nodemask=,cpuset=GROUP   warn_alloc: page allocation, vmalloc
#   NAME invoked oom-killer, NAME cpuset=GROUP           mm/oom_kill.c
# and a few with patterns of their own.
_OF_A_PROCESS = re.compile(
    r"(?:\\x[0-9a-fA-F]{2}|.){1,15}"
    r"(?:\[\d{1,10}\]| ?\(\d{1,10}\)(?![^: ])|/\d{1,10}\b| invoked oom-killer:? | cpuset="
    r"|: .*,? mode:0x|: (?:page allocation (?:failure|stall)|vmalloc (?:error|size|allocation)"
    r"|attempt to access beyond end of device|sending ioctl |potentially unexpected fatal signal)"
    r"| (?:uses|attempts|tried|trying|took|is using|called) )"
)


_NUMBERED = ("kernel.xid", "kernel.sxid")
"""Checks whose row depends on more than the number: see `hpctl.faults.decode`."""


def _index_kernel_fault_rows() -> dict[tuple[str, str], FaultRow]:
    """Return the rows of the kernel's checks by check and code."""
    index: dict[tuple[str, str], FaultRow] = {}
    for spec in KERNEL_CHECKS:
        for row in list_check_fault_rows(spec.name):
            index |= {(row.check, code): row for code in row.codes}
    return index


_ROWS = _index_kernel_fault_rows()


class KernelFaultLine(Struct, frozen=True):
    """One line that matters. `pid` is the process that it names, `job` the job that it names."""

    check: str
    code: str
    at: datetime
    text: str
    device: str = ""
    detail: str = ""
    pid: int | None = None
    job: str = ""
    count: int = 1


def has_process_name_prefix(text: str) -> bool:
    """Return whether a line begins with the name of a process, which may begin like any family's
    lines.

    XFS (a): x[4711]: segfault at 0 ip ... error 6 in Shutting down filesystem[55d0+1000]
    NVRM:[4711] bad frame in rt_sigreturn frame:... in x 0000:18:00.0 fallen off the bus[55d0+1000]
    """
    return _OF_A_PROCESS.match(text) is not None


def make_kernel_fault_line(
    check: str, code: str, record: KernelRecord, device: str = "", pid: str | None = None
) -> KernelFaultLine:
    """Return the line of a record: its time and its text, cut to what a report carries."""
    number = int(pid) if pid else None
    return KernelFaultLine(
        check, code, record.at, record.text[:EVIDENCE_CHARS], device[:NAME_CHARS], "", number
    )


def _find_kernel_fault_row(check: str, code: str, found: KernelFaultLine) -> FaultRow:
    if check in _NUMBERED:
        return find_driver_line_fault_row(check, code, found.detail, found.text)
    return _ROWS.get((check, code)) or _ROWS[check, ""]


def make_kernel_line_finding(found: KernelFaultLine) -> Finding:
    """Return the finding of a line, with the verdict of its row in the fault table.

    OK for a line that ends what an earlier one began. The job of the line's `pid` is looked up by
    the dispatcher.
    """
    ended = found.code.startswith(ENDED)
    code = found.code.removeprefix(ENDED)
    row = _find_kernel_fault_row(found.check, code, found)
    return Finding(
        check=found.check,
        verdict=DeviceVerdict.OK if ended else row.verdict,
        first=found.at,
        last=found.at,
        device=found.device,
        code=code,
        detail=found.detail,
        evidence=found.text,
        count=found.count,
        clears=row.clears,
        job=found.job,
    )
