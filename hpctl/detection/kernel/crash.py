"""Kernel lines. Crashes of the kernel itself."""

import re

from hpctl.detection.kernel.line import Line, line
from hpctl.detection.kmsg import Record

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
