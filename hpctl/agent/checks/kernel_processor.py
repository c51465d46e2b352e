"""Processors, memory and the kernel itself in its log: lockups, crashes, errors, out of memory."""

import re

from msgspec.structs import replace

from hpctl.agent.checks.kernel_line import Family, Line, line
from hpctl.agent.kmsg import Record
from hpctl.agent.procs import job_of_cgroup

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
    found = line(trouble.check, "driver", record, trouble.device)
    return replace(found, detail=match["module"], pid=trouble.pid)


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


# --- errors ----------
# Main memory and processors that report errors: MCE, EDAC and firmware (APEI) lines.
#
#     EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 ...)
#     EDAC MC1: 3 CE memory scrubbing error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (...)
#     mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000010090
#     mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 8: 9c00004001010090
#     mce: Uncorrected hardware memory error in user-access at 3fc1d2a40
#     [Hardware Error]: Uncorrected, software restartable error.              (AMD, decoded)
#     [Hardware Error]: Corrected error, no action required.                  (AMD, decoded)
#     {1}[Hardware Error]: event severity: corrected                          (APEI)
#     {1}[Hardware Error]:   error_type: 3, multi-bit ECC                     (APEI, memory)
#     [Hardware Error]: CPU:22 (19:1:1) MC0_STATUS[Over|UE|MiscV|AddrV|PCC|...]: 0xfea0... ...
#     mce: CMCI storm detected: switching to poll mode
#     soft_offline: 0x77aa1: invalidated
#     Memory failure: 0x3fc1d2a: Sending SIGBUS to python:4321 due to hardware memory corruption
#     MCE: Killing python:4321 due to hardware memory corruption fault at 7f0012345678
#     Memory failure: 0x3fc1d2a: recovery action for clean LRU page: Recovered
#
# The severity of an APEI record alone says little: PCIe errors come the same way. Without its
# number in braces such a record was found at boot (BERT) and is about the boot before.

MEMORY_CHECK = "kernel.memory"
MEMORY_HEADS = ("EDAC", "mce:", "MCE:", "Memo", "[Har", "soft")
MEMORY_WORDS = ("}[Hardware Error]: ",)
_EDAC = re.compile(
    # What comes after `on` is the DIMM's own name; what follows in brackets is where it is.
    r"EDAC (?P<device>MC\d+): (?P<count>\d+) (?P<kind>CE|UE) "
    r"(?P<where>.{0,80}?on .{1,80}?) \(\w+[:#]"
)
_BANK = re.compile(
    r"(?:mce: )?\[Hardware Error\]: CPU (?P<cpu>\d+): Machine Check(?: Exception)?: "
    r"[0-9a-f]+ Bank (?P<bank>\d+): (?P<status>[0-9a-f]{1,16})\b"
    r"|\[Hardware Error\]: CPU:(?P<cpu2>\d+) \([0-9a-f:]+\) MC\d+_STATUS\[[^\]]{0,80}\]: "
    r"0x(?P<amd>[0-9a-f]{1,16})\b"
)
_SAYS = re.compile(
    r"mce: (?P<uncorrected>Uncorrected hardware memory error in )"
    r"|mce: (?P<corrected3>(?:CPU\d+ BANK\d+ )?CMCI storm detected)"
    r"|mce: (?P<logged3>CPUs not responding to MCE broadcast)"
    r"|soft[_ ]offline: 0x[0-9a-f]+: (?P<corrected4>invalidated"
    r"|.{1,40} (?:migration|isolation) failed)"
    r"|(?:mce: )?\[Hardware Error\]: (?:"
    r"(?P<uncorrected2>Uncorrected, software (?:restartable|containable) error|System Fatal error)"
    r"|(?P<deferred>Deferred error, no action required)"
    r"|(?P<corrected>Corrected error, no action required)"
    r"|(?P<logged>Machine check events logged))"
    r"|\{\d+\}\[Hardware Error\]:\s+(?:"
    r"(?P<uncorrected3>error_type: 3, multi-bit ECC)"
    r"|(?P<corrected2>event severity: corrected|error_type: 2, single-bit ECC)"
    r"|(?P<logged2>event severity: (?:recoverable|fatal)))"
)
_POISON = re.compile(
    r"MCE: Killing .{0,80}:(?P<consumed>\d{1,10}) due to hardware memory corruption"
    r"|Memory failure: 0x[0-9a-f]+: (?:"
    r"Sending SIGBUS to .{0,80}:(?P<pid>\d{1,10}) due to hardware memory corruption"
    r"|Killing .{0,80}:(?P<killed>\d{1,10}) due to hardware memory corruption"
    r"|recovery action for "
    r"(?P<unhurt>(?:clean|free|already truncated) .{1,40}: (?:Recovered|Delayed))?)"
)
_UNCORRECTED_BIT = 1 << 61
_CONTEXT_CORRUPT_BIT = 1 << 57
_SIGNALLED_BIT = 1 << 56
_TASK_CORRUPT_BIT = 1 << 55
_DEFERRED_BIT = 1 << 44


def gather_errors(record: Record) -> Line | None:
    """Which DIMM or processor, and whether the error was corrected."""
    text = record.text
    if (match := _EDAC.match(text)) is not None:
        code = "uncorrected" if match["kind"] == "UE" else "corrected"
        found = line(MEMORY_CHECK, code, record, _dimm(match))
        return replace(found, count=max(1, int(match["count"][:9])))
    if (match := _BANK.match(text)) is not None:
        # What Intel calls signalled, AMD calls a context that is corrupt (TCC), one bit lower.
        mask = _TASK_CORRUPT_BIT if match["amd"] else _SIGNALLED_BIT
        code = _status(int(match["amd"] or match["status"], 16), mask)
        return line(MEMORY_CHECK, code, record, f"cpu{match['cpu'] or match['cpu2']}")
    if (match := _SAYS.match(text)) is not None:
        return line(MEMORY_CHECK, str(match.lastgroup).rstrip("234"), record)
    if (match := _POISON.match(text)) is not None:
        # A page that was free, or clean and so on its disk, is taken out of use: nothing is lost.
        code = "deferred" if match["unhurt"] else "uncorrected"
        return line(
            MEMORY_CHECK, code, record, pid=match["pid"] or match["killed"] or match["consumed"]
        )
    return None


def _dimm(match: re.Match[str]) -> str:
    """`MC0 CPU_SrcID#0_MC#0_Chan#0_DIMM#0`."""
    name = match["where"].rpartition(" on ")[2] if " on " in match["where"] else ""
    return f"{match['device']} {name}".strip()


def _status(status: int, signalled: int) -> str:
    """What a bank's status word says (Intel SDM 3B, 17.3.2.2; AMD APM 2, 9.3.2.3).

    An uncorrected error that no processor has consumed and that needs no action (UCNA) is not
    one yet: the page is taken out of use.
    """
    if status & _DEFERRED_BIT and not status & _UNCORRECTED_BIT:
        return "deferred"
    if not status & _UNCORRECTED_BIT:
        return "corrected"
    return "uncorrected" if status & (_CONTEXT_CORRUPT_BIT | signalled) else "deferred"


# --- oom ----------
# The out-of-memory killer (mm/oom_kill.c): whose fault it was, and which job it hit.
#
#     oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job_12,mems_allowed=0-1,
#         oom_memcg=/slurm/uid_1000/job_12,task_memcg=/slurm/uid_1000/job_12/step_0/task_0,
#         task=python,pid=4321,uid=1000
#
#     Out of memory: Killed process 4321 (python) total-vm:...
#     Memory cgroup out of memory: Killed process 4321 (python) total-vm:...
#
# One line of the first kind for each kill since Linux 5.0; the others come after it. The constraint
# says who ran out: a control group (the job's own limit: its fault), the memory nodes that a task
# may use, or the machine. A daemon that the cluster needs among the killed is a fault of the node,
# whatever the constraint; a process that only bears such a name (a user's own `hpctl run`, too) is
# distinguished by its owner and by the control group it lives in.

OOM_CHECK = "kernel.oom"
OOM_HEADS = ("oom-", "Out ", "Memo")
_KILL = re.compile(
    r"oom-kill:constraint=CONSTRAINT_(?P<constraint>[A-Z_]+),"
    r".*?task_memcg=(?P<cgroup>/.*?),task=(?P<task>.{0,16}),pid=(?P<pid>\d{1,10}),uid=(?P<uid>\d+)\s*$"
)
_KILLED = re.compile(
    r"(?P<scope>Memory cgroup out of memory|Out of memory(?: and no killable processes)?"
    r"(?: \([\w]+\))?): Kill(?:ed)? process (?P<pid>\d{1,10})\b"
    r"|Out of memory and no killable processes"
)
_MARKS = (",task_memcg=/", ",task=")
"""Each once in a line, unless a user's control group or process is named after them."""
_OOM_CODES = {"NONE": "node", "CPUSET": "numa", "MEMORY_POLICY": "numa"}
_FEW = 8
"""More marks than that stand in no real line, and would be slow to match."""
_ROOTS = ("slurmd", "slurmstepd", "hpctl")
_MUNGED = "munged"
_PEOPLE = "/user.slice/"
"""Where systemd puts what people start."""


def gather_oom(record: Record) -> Line | None:
    """Which constraint, which job, and whether a daemon of the cluster was killed."""
    text = record.text
    if (killed := _KILLED.match(text)) is not None:
        code = "cgroup" if text.startswith("Memory") else "node"
        return line(OOM_CHECK, code, record, pid=killed["pid"])
    if not text.startswith("oom-kill:") or any(text.count(mark) > _FEW for mark in _MARKS):
        return None
    if (match := _KILL.match(text)) is None:
        return None
    if any(text.count(mark) > 1 for mark in _MARKS):
        # Whose process that was can be read in two ways: nobody's daemon, and nobody's job.
        memcg = match["constraint"] == "MEMCG"
        return line(OOM_CHECK, "cgroup" if memcg else "node", record, pid=match["pid"])
    job = job_of_cgroup(match["cgroup"])
    found = line(OOM_CHECK, _oom_code(match, job), record, pid=match["pid"])
    return replace(found, job=job, detail=match["task"] if found.code == "daemon" else "")


def _oom_code(match: re.Match[str], job: str) -> str:
    if _is_daemon(match["task"], root=match["uid"] == "0", cgroup=match["cgroup"], job=job):
        return "daemon"
    if match["constraint"] == "MEMCG":
        return "job" if job else "cgroup"
    return _OOM_CODES.get(match["constraint"], "node")


def _is_daemon(task: str, *, root: bool, cgroup: str, job: str) -> bool:
    if task.startswith(_MUNGED):  # a user of its own, whose number is the site's choice
        return not job and not cgroup.startswith(_PEOPLE)
    # slurmstepd alone lives in its job's control group; a user's process there is not root's.
    return root and task.startswith(_ROOTS) and (not job or task == "slurmstepd")


MEMORY = Family(gather_errors, MEMORY_HEADS, MEMORY_WORDS)
OOM = Family(gather_oom, OOM_HEADS)
