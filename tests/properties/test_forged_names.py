"""Nobody forges a fault by the name of a process, a file or a control group.

The templates are the kernel's messages that hold such a name (Linux 4.14 to 6.18). The names are
cut out of lines that we would act on: the first characters of one as the process, any end of
another as the file.
"""

import re
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctl.agent.checks import kernel_gpu, kernel_platform, kernel_processor, kernel_storage
from hpctl.agent.checks.kernel_log import Kernel
from hpctl.agent.kmsg import Record
from hpctl.core.compat import UTC
from tests.examples import examples
from tests.unit.kernel_cases import CASES

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
COMM = 15
"""Characters of a process's name: TASK_COMM_LEN less one."""

# {c}: a process's name, first in the line; {f}: a file or a control group.
BEGIN_WITH_A_NAME = [
    "{c}[4711]: segfault at 0 ip 0000563a sp 00007ffc error 6 in {f}[55d0+1000]",
    "{c}[4711]: segfault at 0 ip 0000563a sp 00007ffc error 6 in {f}[55d0+1000] likely on CPU 3",
    "{c}[4711] bad frame in rt_sigreturn frame:0000a ip:7f sp:7f orax:ffff in {f}[55d0+1000]",
    "{c}[4711]: bad frame in rt_sigreturn: pc=00007f sp=00007f",
    "{c}[4711]: bad frame in rt_sigreturn: 00007f nip 0000 lr 0000",
    "{c}[4711]: unhandled exception: DABT (lower EL), ESR 0x92000046, in {f}[55d0+1000]",
    "{c}[4711]: unhandled level 1 translation fault (11) at 0x0, esr 0x92000045, in {f}[55d0+1000]",
    "{c}[4711] general protection fault ip:7f sp:7f error:0 in {f}[55d0+1000]",
    "{c}[4711] attempts to use CLI/STI, pretending it's a NOP, ip:7f in {f}[55d0+1000]",
    "{c}[4711] uses hintable NOPs that your processor does not support.",
    "{c}[4711]: Invalid access, in {f}",
    "{c} (4711): drop_caches: 3",
    "{c} (4711) used greatest stack depth: 11240 bytes left",
    "{c}(4711): dirtied inode 12 ({f}) on tmpfs",
    "{c}(4711): WRITE block 1234 on {f} (8 sectors)",
    "{c}/4711: potentially unexpected fatal signal 11.",
    "{c}: potentially unexpected fatal signal 11.",
    "{c} invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0",
    "{c} cpuset={f} mems_allowed=0-1",
    "{c}: page allocation failure: order:4, mode:0x40cc0(GFP_KERNEL|__GFP_COMP),"
    "nodemask=(null),cpuset={f},mems_allowed=0",
    "{c}: page allocation stalls for 10000ms, order:0, mode:0x14(GFP),nodemask=(null)",
    "{c}: vmalloc error: size 4096, failed to allocated page array size 8, mode:0xcc0(GFP_KERNEL),"
    "nodemask=(null),cpuset={f},mems_allowed=0",
    "{c}: vmalloc: allocation failure: 4096 bytes, mode:0xcc0(GFP_KERNEL),nodemask=(null),"
    "cpuset={f},mems_allowed=0",
    "{c}: attempt to access beyond end of device loop0: rw=0, sector=8, nr_sectors = 8 limit=4",
    "{c}: sending ioctl 5310 to a partition!",
    "{c} uses obsolete (PF_INET,SOCK_PACKET)",
    "{c} is using obsolete setsockopt SO_BSDCOMPAT",
]
WITH_A_NAME_INSIDE = [
    "traps: {c}[4711] general protection fault ip:7f sp:7f error:0 in {f}[55d0+1000]",
    "traps: {c}[4711] trap divide error ip:7f sp:7f error:0 in {f}[55d0+1000]",
    "umip: {c}[4711] ip:7f sp:7f: SGDT instruction cannot be used by applications.",
    "x86/split lock detection: #AC: {c}/4711 took a split_lock trap at address: 0x7f",
    "process '{f}' started with executable stack",
    "audit: type=1701 audit(1.2:3): auid=1 uid=1 pid=4711 comm={c} exe={f} sig=11 res=1",
    "CPU: 3 PID: 4711 Comm: {c} Tainted: P           OE     5.15.0",
    "[   4711]  1000  4711    12345     1234   98304        0             0 {c}",
    "Modules linked in: nvidia(POE)",
    "warning: `{c}' uses wireless extensions which will stop working for Wi-Fi 7 hardware",
    "ptrace of pid 12 was attempted by: {f} (pid 4711)",
    "netlink: 12 bytes leftover after parsing attributes in process `{c}'.",
    "msr: Write to unrecognized MSR 0x1 by {c} (pid: 4711).",
    "coredump: 4711({c}): over core_pipe_limit, skipping core dump",
    "mmap: {c} (4711): VmData 1 exceed data ulimit 0. Update limits.",
    "memory: usage 1024kB, limit 1024kB, failcnt 12",
    "Memory cgroup stats for {f}:",
    "cgroup: fork rejected by pids controller in {f}",
    "FAT-fs (loop0): bogus number of reserved sectors in {f}",
    "overlayfs: upperdir={f} is in-use",
    "veth1: renamed from {c}",
]
LINES = [case[0] for case in CASES]
SHAPES = [
    value
    for module in (kernel_gpu, kernel_processor, kernel_platform, kernel_processor, kernel_storage)
    for value in vars(module).values()
    if isinstance(value, re.Pattern)
]
matching = st.sampled_from(LINES) | st.one_of(*(st.from_regex(shape) for shape in SHAPES))


@st.composite
def names(draw: st.DrawFn) -> tuple[str, str]:
    """A process's name and a file's, both from what our patterns look for."""
    text = draw(matching).replace("\n", " ")
    length = draw(st.integers(1, COMM))
    rest = draw(st.just(text) | matching.map(lambda t: t.replace("\n", " ")))
    return text[:length], rest[draw(st.integers(0, len(rest))) :][:200]


def found(text: str) -> list[tuple[str, str]]:
    record = Record(0, 1, NOON, text)
    seen = Kernel(lambda _pid, _at: "").findings([record])
    # What is told of a process itself, and means nothing for its node.
    return [(f.check, f.code) for f in seen if f.check != "kernel.process"]


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from(BEGIN_WITH_A_NAME + WITH_A_NAME_INSIDE), names())
def test_a_name_makes_no_fault(template: str, name: tuple[str, str]) -> None:
    comm, file = name
    assert found(template.format(c=comm, f=file)) == []


@pytest.mark.parametrize("template", BEGIN_WITH_A_NAME)
def test_a_line_that_is_cut_into_two_names_makes_no_fault(template: str) -> None:
    """The best that a forger can do: the line's own beginning, then its own end."""
    for text in LINES:
        for cut in range(1, COMM + 1):
            line = template.format(c=text[:cut], f=text[cut:])
            assert found(line) == [], line


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("NVRM: Xid (PCI:0000:18:00): 145, pid=7, name=Fatal, RLW_RXPIPE Nonfatal XC0 i0 Link 00 "
         "(0x00000006 0x00000001 0x0 0x0 0x0 0x0)", "xid-145"),
        ("NVRM: Xid (PCI:0000:18:00): 145, pid=7, name=fatal, a", "xid-145"),
        ("NVRM: Xid (PCI:0000:18:00): 149, pid=7, name=NETIR_LINK x, y", "xid-149"),
        ("NVRM: Xid (PCI:0000:18:00): 154, pid=7, name=to 0x2 (reboot), GPU recovery action "
         "changed from 0x1 (GPU Reset Required) to 0x0 (None)", "xid-154-none"),
    ],
)  # fmt: skip
def test_a_process_s_name_says_nothing_of_the_severity(text: str, code: str) -> None:
    from hpctl.core.assess import told_by
    from hpctl.core.catalogue import rules

    finding = Kernel(lambda _pid, _at: "").findings([Record(0, 1, NOON, text)])
    assert [fault.rule for fault in told_by(finding, rules())] == [code]
