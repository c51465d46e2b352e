"""Kernel lines. What a user's process causes and any user can cause."""

import re

from hpctl.detection.kernel.firmware import PLATFORM_HEADS, gather_platform
from hpctl.detection.kernel.line import Family, Line, line
from hpctl.detection.kernel.neuron import NEURON_WORDS, gather_neuron
from hpctl.detection.kernel.pcie import PCIE_HEADS, PCIE_WORDS, gather_pcie
from hpctl.detection.kernel.unknown_driver_lines import DRIVER_HEADS, gather_driver
from hpctl.detection.kmsg import Record

# Two things that the kernel says of a process by its name, and that say nothing of the node.
#
#     python invoked oom-killer: gfp_mask=0x140dca(...), order=0, oom_score_adj=0
#     pt_main_thread[4711]: segfault at 7f79 ip 00007f7c sp 00007f7c error 4 in ...
#
# Other detectors act on them. The out-of-memory killer says afterwards whose memory ran out
# (`kernel_oom`), and a crash inside of NCCL is its job's: whoever asks why it ended may like to see
# it. Any user can have either line printed.

PROCESS_CHECK = "kernel.process"


PROCESS_WORDS = (" invoked oom-killer: ", " in libnccl.so")


_PROCESS_SAYS = re.compile(
    r"(?:\\x[0-9a-fA-F]{2}|.){1,15}(?: invoked (?P<oom>oom-killer): gfp_mask=0x"
    r"|\[(?P<pid>\d{1,10})\]: segfault at [^\[]{1,200} in libnccl\.so)"
)


def gather_process(record: Record) -> Line | None:
    """Whether the line is one of the two."""
    if (match := _PROCESS_SAYS.match(record.text)) is None:
        return None
    return line(PROCESS_CHECK, "oom-killer" if match["oom"] else "nccl", record, pid=match["pid"])


PCIE = Family(gather_pcie, PCIE_HEADS, PCIE_WORDS)


PLATFORM = Family(gather_platform, PLATFORM_HEADS)


NEURON = Family(gather_neuron, (), NEURON_WORDS)


DRIVER = Family(gather_driver, DRIVER_HEADS)


PROCESS = Family(gather_process, (), PROCESS_WORDS)
