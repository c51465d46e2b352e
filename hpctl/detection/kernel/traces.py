"""Join a lockup or an oops with the line after it that names the driver in which it happened.

Not patterns of rows: the finding needs two lines.

    watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1234]
    RIP: 0010:nv_poll+0x12/0x80 [nvidia]
"""

import re
from datetime import timedelta

from msgspec.structs import replace

from hpctl.detection.kernel.line import KernelFaultLine, make_kernel_fault_line
from hpctl.detection.kmsg import KernelRecord

TRACE_CHECKS = ("kernel.lockup", "kernel.crash")
"""Checks of lines that a trace may follow."""
TRACE_FOLLOWS = timedelta(seconds=2)
"""A lockup's or an oops's registers are printed within this time after it."""
_HAS_TRACE = frozenset({"soft", "soft-long", "hard", "rcu", "oops"})
_FRAME = re.compile(
    # To Linux 4.10 the addresses are before the names.
    r"(?:RIP: [0-9a-f]{4}:|pc : |IP: )(?: ?\[<[0-9a-f]{8,16}>\] ){0,2}"
    r"[\w.]+\+0x[0-9a-f]+/0x[0-9a-f]+ "
    r"\[(?P<module>nvidia\w*|efa|neuron|mlx5_core)\b"
    # The loop of mlx5 that polls its queues, anywhere below (NVIDIA/NVSentinel: the card's driver
    # is stuck); a frame with a question mark is left over from an earlier call.
    r"| ?mlx5e_(?:poll_ico_cq|napi_poll)\+0x[0-9a-f]+/0x[0-9a-f]+ \[(?P<poll>mlx5_core)\b"
)


def is_followed_by_kernel_trace(trouble: KernelFaultLine) -> bool:
    """Return whether the kernel prints registers after this line."""
    return trouble.code in _HAS_TRACE


def is_past_kernel_trace(trouble: KernelFaultLine, record: KernelRecord) -> bool:
    """Return whether a record is too late to be of the trace, or begins another one."""
    return record.at - trouble.at > TRACE_FOLLOWS or record.text.startswith("WARNING: ")


def add_driver_name_from_trace(
    trouble: KernelFaultLine, record: KernelRecord
) -> KernelFaultLine | None:
    """Return `trouble` as one inside a driver where this record names one."""
    match = _FRAME.match(record.text)
    if match is None:
        return None
    found = make_kernel_fault_line(trouble.check, "driver", record, trouble.device)
    return replace(found, detail=match["module"] or match["poll"], pid=trouble.pid)
