"""Two things that the kernel says of a process by its name, and that say nothing of the node.

    python invoked oom-killer: gfp_mask=0x140dca(...), order=0, oom_score_adj=0
    pt_main_thread[4711]: segfault at 7f79 ip 00007f7c sp 00007f7c error 4 in libnccl.so.2[7f7c+d3d]

Other detectors act on them. The out-of-memory killer says afterwards whose memory ran out
(`kernel_oom`), and a crash inside of NCCL is its job's: whoever asks why it ended may like to see
it. Any user can have either line printed.
"""

from __future__ import annotations

import re

from hpctl.agent.checks.kernel_line import Line, line, watched
from hpctl.agent.kmsg import Record
from hpctl.core.model import Finding

CHECK = "kernel.process"
WORDS = (" invoked oom-killer: ", " in libnccl.so")
_SAYS = re.compile(
    r"(?:\\x[0-9a-fA-F]{2}|.){1,15}(?: invoked (?P<oom>oom-killer): gfp_mask=0x"
    r"|\[(?P<pid>\d{1,10})\]: segfault at [^\[]{1,200} in libnccl\.so)"
)


def gather(record: Record) -> Line | None:
    """Whether the line is one of the two."""
    if (match := _SAYS.match(record.text)) is None:
        return None
    return line(CHECK, "oom-killer" if match["oom"] else "nccl", record, pid=match["pid"])


def judge(said: Line) -> Finding:
    """WARN: told, never acted on."""
    return watched(said, frozenset())
