"""Kernel lines. Processors that do not come back: lockups and stalls."""

import re

from msgspec.structs import replace

from hpctl.detection.kernel.line import Line, line
from hpctl.detection.kmsg import Record

# Processors and tasks that are stuck (kernel/watchdog.c, hung_task.c, rcu/tree_stall.h).
#
#     watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1234]
#     watchdog: Watchdog detected hard LOCKUP on cpu 3
#     NMI watchdog: Watchdog detected hard LOCKUP on cpu 3                        (to Linux 6.4)
#     watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3                      (since 6.11)
#     rcu: INFO: rcu_sched self-detected stall on CPU
#     rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
#     rcu: rcu_preempt kthread starved for 254300 jiffies! ...
#     INFO: task python:1234 blocked for more than 120 seconds.
#     BUG: workqueue lockup - pool cpus=3 node=0 flags=0x0 nice=0 stuck for 92s!
#     RIP: 0010:nv_poll+0x12/0x80 [nvidia]
#
# Most are signs of something else: slow storage, a busy hypervisor. A processor is really lost when
# the kernel itself says that it has been stuck for a minute and more, or when the line after
# a lockup shows it inside the GPU's, the network's or the accelerator's driver (`in_driver`).

LOCKUP_CHECK = "kernel.lockup"


LOCKUP_HEADS = ("watc", "NMI ", "BUG:", "INFO", "rcu:", "task")


LONG_S = 60
"""A soft lockup that lasted so long by the kernel's own word; it first tells after 22 s."""


_SOFT = re.compile(
    r"(?:(?:NMI )?watchdog: )?BUG: soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<seconds>\d+)s!"
    r"(?: \[.*:(?P<pid>\d{1,10})\])?"
)


_HARD = re.compile(
    r"(?:NMI )?watchdog: (?:CPU\d+: )?Watchdog detected hard LOCKUP on cpu (?P<cpu>\d+)"
)


_RCU = re.compile(
    r"(?:rcu: )?INFO: rcu_?\w* (?:self-detected stall on CPU"
    r"|(?:detected stalls|detected expedited stalls) on (?:CPUs/)?tasks)"
    r"|rcu: \w{1,40} kthread (?:starved for|timer wakeup didn't happen)"
)


_TASK = re.compile(
    r"(?:INFO: )?task .{0,80}:(?P<pid>\d{1,10}) (?:is )?blocked "
    r"(?:.{0,80}for more than \d+ seconds|on an? (?:mutex|semaphore|rw-semaphore)\b)"
)


_WORKQUEUE = "BUG: workqueue lockup - pool"


_FRAME = re.compile(
    r"(?:RIP: [0-9a-f]{4}:|pc : )[\w.]+\+0x[0-9a-f]+/0x[0-9a-f]+ "
    r"\[(?P<module>nvidia\w*|efa|neuron)\b"
)


def gather_lockup(record: Record) -> Line | None:
    """What is stuck, and since when where the kernel says so."""
    text = record.text
    if (match := _SOFT.match(text)) is not None:
        code = "soft-long" if int(match["seconds"][:6]) >= LONG_S else "soft"
        return line(LOCKUP_CHECK, code, record, f"cpu{match['cpu']}", match["pid"])
    if (match := _HARD.match(text)) is not None:
        return line(LOCKUP_CHECK, "hard", record, f"cpu{match['cpu']}")
    if _RCU.match(text) is not None:
        return line(LOCKUP_CHECK, "rcu", record)
    if (match := _TASK.match(text)) is not None:
        return line(LOCKUP_CHECK, "task", record, pid=match["pid"])
    if text.startswith(_WORKQUEUE):
        return line(LOCKUP_CHECK, "workqueue", record)
    return None


def in_driver(trouble: Line, record: Record) -> Line | None:
    """`trouble` (a lockup or an oops) again, as one inside a driver, if this record says so."""
    if (match := _FRAME.match(record.text)) is None:
        return None
    found = line(trouble.check, "driver", record, trouble.device)
    return replace(found, detail=match["module"], pid=trouble.pid)
