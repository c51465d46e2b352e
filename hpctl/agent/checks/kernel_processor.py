"""Processors and the kernel itself in its log: lockups, stalls, panics, oopses."""

from __future__ import annotations

import re
from dataclasses import replace

from hpctl.agent.checks.kernel_line import Line, line
from hpctl.agent.kmsg import Record

# --- lockup ----------
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
    said = line(trouble.check, "driver", record, trouble.device)
    return replace(said, detail=match["module"], pid=trouble.pid)


# --- crash ----------
# The kernel's own failures: a panic, an oops, a bug that it tripped over.
#
#     Kernel panic - not syncing: Fatal exception in interrupt
#     BUG: unable to handle page fault for address: ffffb0d1c1a3f000
#     BUG: kernel NULL pointer dereference, address: 0000000000000008
#     kernel BUG at mm/slub.c:305!
#     general protection fault, probably for non-canonical address 0xdead...: 0000 [#1] PREEMPT SMP
#     Oops: general protection fault, probably for non-canonical address ...   (since Linux 6.10)
#     divide error: 0000 [#1] PREEMPT SMP                                      (and other traps)
#     Oops: 0002 [#1] SMP NOPTI
#     Internal error: Oops: 0000000096000004 [#1] SMP                          (Arm)
#     Unable to handle kernel paging request at virtual address ...            (Arm)
#
#     BUG: Bad page state in process python3  pfn:1f23a4          (and whatever else begins with ...
#     list_del corruption. next->prev should be ffff8881123ab008, but was dead000000000122
#     WARNING: CPU: 12 PID: 4123 at lib/refcount.c:28 refcount_warn_saturate+0xa9/0x150
#
# After an oops the kernel goes on without the process it happened in, and nobody knows which locks
# that one held. One inside the GPU's or the network's driver is a fault of the node
# (`kernel_lockup.in_driver`); a lone other one is worth watching. A warning of the kernel's proves
# nothing: drivers print them for what they did not expect.

CRASH_CHECK = "kernel.crash"
_TRAPS = ("divi", "inva", "stac", "doub", "int3", "boun", "segm", "alig", "over", "copr", "cont")
_FAILURES = ("Kern", "BUG:", "kern", "gene", "Oops", "Inte", "Unab", "PANI", *_TRAPS)
_STALLED = ("smp:", "irq ", "huh,", "Unha")
_DAMAGE = ("BUG ", "WARN", "list", "refc", "Fixi", "SErr", "user", "UBSA")
CRASH_HEADS = (*_FAILURES, *_DAMAGE, *_STALLED)
_PANIC = re.compile(r"Kernel [Pp]anic - not syncing|PANIC: double fault")
_OOPS = re.compile(
    r"BUG: (?:unable to handle |kernel NULL pointer dereference)"
    r"|kernel BUG at [\w./+-]{1,200}:\d+!"
    r"|(?:Oops: |Internal error: |general protection fault\b).*\[#\d+\]"
    r"|(?:divide error|invalid opcode|stack segment|double fault|int3|bounds|segment not present"
    r"|invalid TSS|alignment check|overflow|coprocessor segment overrun|control protection fault"
    r"|stack-segment)[:,] .*\[#\d+\]"
    r"|Unable to handle kernel "
)
_BUG = re.compile(
    r"BUG: |BUG [\w:-]{1,64} \(|list_(?:add|del) (?:corruption|double add)|refcount_t: "
    r"|smp: csd: Detected non-responsive|irq \d+: nobody cared|huh, entered softirq "
    r"|Unhandled .{1,60} exception on CPU|kernel tried to execute "
    r"|Fixing recursive fault|SError Interrupt on |usercopy: Kernel memory "
)
_WARNING = re.compile(r"UBSAN: |WARNING: (?:CPU: \d+ PID: \d+ at |[\w./+-]{1,200}:\d+ at )")


def gather_crash(record: Record) -> Line | None:
    """Whether the kernel failed, and how."""
    if _PANIC.match(record.text) is not None:
        return line(CRASH_CHECK, "panic", record)
    if _OOPS.match(record.text) is not None:
        return line(CRASH_CHECK, "oops", record)
    for code, shape in (("bug", _BUG), ("warning", _WARNING)):
        if shape.match(record.text) is not None:
            return line(CRASH_CHECK, code, record)
    return None
