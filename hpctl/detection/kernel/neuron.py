"""Kernel lines. AWS Neuron's driver."""

import re

from hpctl.detection.kernel.line import Line, line
from hpctl.detection.kmsg import Record

# Hardware errors of AWS Neuron devices, as the Neuron driver logs them.
#
#     NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0592464924bd45322 ...
#         nd-id=0 nc-id=0 serial-num=19fcda00f5ff6eb9 action=TERMINATE_INSTANCE
#
# A time stamp or the driver's name may stand before it (AWS Neuron's troubleshooting guide). What
# the line recommends is left where it is, in the evidence.

NEURON_CHECK = "kernel.neuron"


NEURON_WORDS = ("NEURON_HW_ERR=",)


_ERROR = re.compile(
    r"(?:\d{4}-\d\d-\d\d[T ][\d:.,+Z-]{1,30} )?(?:kernel: )?(?:neuron\w{0,8}: ?)?"
    r"NEURON_HW_ERR=(?P<code>[A-Z][A-Z0-9_]{1,63})\b"
    r"(?:.*?\bnd-id=(?P<device>\d{1,4})\b)?"
)


_CODES = {
    "SRAM_UNCORRECTABLE_ERROR": "sram",
    "NC_UNCORRECTABLE_ERROR": "nc",
    "HBM_UNCORRECTABLE_ERROR": "hbm",
    "DMA_ERROR": "dma",
}


def gather_neuron(record: Record) -> Line | None:
    """Which device (`nd-id`), and which part of it."""
    if (match := _ERROR.match(record.text)) is None:
        return None
    code = _CODES.get(match["code"], "unknown")
    device = f"neuron{match['device']}" if match["device"] else ""
    return line(NEURON_CHECK, code, record, device)
