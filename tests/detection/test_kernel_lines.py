"""Every family of kernel lines, in the wordings of several kernels, look-alikes and nonsense."""

import time
from datetime import timedelta
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctl.detection.kernel.log import KernelLogAnalyzer
from hpctl.detection.kmsg import RECORD_BYTES, KernelRecord
from hpctl.faults.catalogue import SHIPPED
from hpctl.faults.table import CHECKS, DRIVERS, KERNEL_CHECKS, list_check_fault_rows
from hpctl.vocabulary.model import AgentReport, ClearCondition, DeviceVerdict, Finding
from hpctl.wire import reports as wire
from tests.detection.kernel_cases import BENIGN, CASES, NOTHING, OOM_OF_A_JOB, WATCH
from tests.fakes.values import T0 as NOON


def records(*texts: str, facility: int = 0, second: float = 0) -> list[KernelRecord]:
    at = NOON + timedelta(seconds=second)
    return [KernelRecord(facility, n, at, text) for n, text in enumerate(texts)]


def kernel(jobs: dict[int, str] | None = None) -> KernelLogAnalyzer:
    return KernelLogAnalyzer(lambda pid, _at: (jobs or {}).get(pid, ""))


@pytest.mark.parametrize(("text", "check", "code", "device", "means"), CASES)
def test_a_line_is_found_and_means_what_the_table_says(text, check, code, device, means):
    (finding,) = kernel().findings(records(text))
    assert (finding.check, finding.code, finding.device) == (check, code, device)
    assert finding.evidence == text[:512]
    if means is None:
        return
    stem = check.replace(".", "-")
    rule = SHIPPED.get(f"{stem}-{code}") or SHIPPED[stem]
    assert rule.urgency is (NOTHING if means is WATCH else means)
    assert finding.verdict is {WATCH: DeviceVerdict.WARN, NOTHING: DeviceVerdict.NOTE}.get(
        means, DeviceVerdict.FAIL
    )


@pytest.mark.parametrize("text", [case[0] for case in CASES])
def test_no_line_is_believed_that_the_kernel_did_not_write(text):
    assert kernel().findings(records(text, facility=1)) == []
    assert kernel().findings(records(text, facility=3)) == []
    assert len(kernel().findings(records(text, facility=1), accept_user=True)) == 1


@pytest.mark.parametrize("text", [case[0] for case in CASES])
def test_what_user_space_gets_into_a_line_is_no_separate_line(text):
    """A process or device may be named as it likes: its name never stands first."""
    for line in (f"audit: comm={text}", f"usb 1-1: Product: {text}", f"x[1]: segfault: {text}"):
        assert kernel().findings(records(line)) == []


@pytest.mark.parametrize("text", BENIGN)
def test_lines_that_are_no_trouble(text):
    assert kernel().findings(records(text)) == []


def test_equal_lines_of_a_batch_are_one_finding():
    text = "nvme nvme1: I/O 12 QID 4 timeout, aborting"
    batch = [
        KernelRecord(0, n, NOON + timedelta(seconds=second), text)
        for n, second in enumerate((3, 1, 9))
    ]
    other = records("nvme nvme1: I/O 99 QID 1 timeout, aborting", second=4)
    (finding,) = kernel().findings([*batch, *other])
    assert (finding.count, finding.last) == (4, NOON + timedelta(seconds=9))


def test_numbers_in_the_text_count():
    text = "EDAC MC1: 3 CE memory read error on DIMM_A1 (channel:1 slot:0)"
    (finding,) = kernel().findings(records(text, text))
    assert finding.count == 6


def test_a_server_that_is_back_ends_what_was_reported_of_it():
    lost = "nfs: server 10.0.0.5 not responding, still trying"
    output = kernel().findings([*records(lost), *records("nfs: server 10.0.0.5 OK", second=5)])
    assert [(f.verdict, f.clears, f.code, f.device) for f in output] == [
        (DeviceVerdict.WARN, ClearCondition.GONE, "not-responding", "10.0.0.5"),
        (DeviceVerdict.OK, ClearCondition.GONE, "not-responding", "10.0.0.5"),
    ]
    restored = (
        "Lustre: fsx-OST0000-osc-ffff8a01: Connection restored to 10.0.1.5@tcp (at 10.0.1.5@tcp)",
        "Lustre: fsx-OST0000-osc-ffff8a01: Connection restored to  (at 10.0.1.5@tcp)",
    )
    for text in restored:
        (over,) = kernel().findings(records(text))
        assert (over.verdict, over.code, over.device) == (
            DeviceVerdict.OK, "connection-lost", "fsx-OST0000",
        )  # fmt: skip


SOFT = "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1234]"

OOPS = "BUG: kernel NULL pointer dereference, address: 0000000000000008"

IN_NVIDIA = "RIP: 0010:nv_poll+0x12/0x80 [nvidia]"


def codes(found: list[Finding]) -> list[tuple[str, str, str]]:
    return [(f.check, f.code, f.detail) for f in found]


@pytest.mark.parametrize(
    ("trouble", "frame", "check", "module"),
    [
        (SOFT, IN_NVIDIA, "kernel.lockup", "nvidia"),
        (OOPS, "RIP: 0010:efa_destroy_qp.cold+0x12/0x80 [efa]", "kernel.crash", "efa"),
        (OOPS, "RIP: 0010:uvm_x+0x12/0x80 [nvidia_uvm]", "kernel.crash", "nvidia_uvm"),
        ("Internal error: Oops: 96000004 [#1] SMP", "pc : nv_poll+0x12/0x80 [nvidia]",
         "kernel.crash", "nvidia"),
        # To Linux 4.10 with the addresses.
        (OOPS, "IP: [<ffffffffa0c9b9a6>] _nv005757rm+0x6/0x20 [nvidia]", "kernel.crash", "nvidia"),
        (OOPS, "RIP: 0010:[<ffffffffa0c9b9a6>]  [<ffffffffa0c9b9a6>] _nv005757rm+0x6/0x20 [nvidia]",
         "kernel.crash", "nvidia"),
    ],
)  # fmt: skip
def test_a_trace_in_a_driver_is_a_fault_of_the_node(trouble, frame, check, module):
    middle = ("Modules linked in: nvidia(POE) efa", "CPU: 3 PID: 1234 Comm: python Tainted: P")
    found = kernel().findings(records(trouble, *middle, frame))
    assert codes(found)[1:] == [(check, "driver", module)]
    split = kernel()
    first = split.findings(records(trouble, *middle))
    assert codes(first + split.findings(records(frame, second=0.5))) == codes(found)


def test_a_trace_elsewhere_is_not():
    assert len(kernel().findings(records(SOFT, "RIP: 0010:ext4_x+0x12/0x80 [ext4]"))) == 1
    # A warning of the driver that comes just after has a trace of its own.
    warned = ("WARNING: CPU: 1 PID: 7 at nv.c:1 nv_poll+0x1/0x2 [nvidia]", IN_NVIDIA)
    assert [f.code for f in kernel().findings(records(SOFT, *warned))] == ["soft", "warning"]
    late = kernel()
    late.findings(records(SOFT))
    assert late.findings(records(IN_NVIDIA, second=3)) == []


def test_what_comes_after_trouble_is_found_as_ever():
    found = kernel().findings(records(OOPS, "Oops: 0002 [#1] SMP", CASES[-1][0]))
    assert {f.check for f in found} == {"kernel.crash", "kernel.sxid"}


def test_the_job_is_that_of_the_process_that_the_line_names():
    lines = (
        "NVRM: Xid (PCI:0000:c1:00): 31, pid=1234, name=python, Ch 0008",
        "NVRM: Xid (PCI:0000:c1:00): 31, pid='1235', name=python, Ch 0008",
        "NVRM: Xid (PCI:0000:c1:00): 31, pid='<unknown>', name=<unknown>, Ch 0008",
        "NVRM: Xid (PCI:0000:c1:00): 45, pid=1234, name=python, Ch 0008",
        "INFO: task python:1235 blocked for more than 120 seconds.",
        SOFT,
        "Memory failure: 0x1: Sending SIGBUS to python:1234 due to hardware memory corruption",
        OOM_OF_A_JOB,
    )
    found = kernel({1234: "12", 1235: "13"}).findings(records(*lines))
    assert {(f.check, f.code, f.job) for f in found} == {
        ("kernel.xid", "31", "12"), ("kernel.xid", "31", "13"), ("kernel.xid", "31", ""),
        ("kernel.xid", "45", ""), ("kernel.lockup", "task", "13"), ("kernel.lockup", "soft", "12"),
        ("kernel.memory", "uncorrected", "12"), ("kernel.oom", "job", "4711"),
    }  # fmt: skip


def test_every_row_of_the_catalogue_has_a_line_that_leads_to_it():
    reached = {f"{c.replace('.', '-')}-{code}" for _, c, code, _, _ in CASES}
    reached |= {"kernel-lockup-driver", "kernel-crash-driver", "kernel-efa", "kernel-neuron"}
    reached.add("kernel-nvidia-nvlink-stuck")  # by its duration: tests/detection/corpus
    # The head node's own, where an unknown line stands beside another sign.
    reached.add("kernel-driver-unknown-confirmed")
    assert {rule for rule in SHIPPED if rule.startswith("kernel-")} - reached == set()


READ_BY_CODE = {
    ("kernel.oom", "daemon"), ("kernel.oom", "numa"), ("kernel.oom", "job"),
    ("kernel.lockup", "driver"), ("kernel.crash", "driver"), ("kernel.nvidia", "nvlink-stuck"),
    ("kernel.driver", "unknown"), ("kernel.driver", "unknown-confirmed"),
}  # fmt: skip
"""Rows without a pattern: what they mean is not in one line's words (`hpctl.detection.kernel`)."""
KERNEL_ROWS = [
    row
    for spec in KERNEL_CHECKS
    for row in list_check_fault_rows(spec.name)
    if spec.name not in ("kernel.xid", "kernel.sxid")
]


def test_every_row_has_a_pattern_unless_code_reads_its_lines():
    without = {(row.check, row.code) for row in KERNEL_ROWS if not row.line}
    assert without == READ_BY_CODE


@pytest.mark.parametrize("row", [row for row in KERNEL_ROWS if row.line], ids=lambda r: r.rules[0])
def test_the_example_of_a_row_is_a_line_of_that_row(row):
    (finding,) = kernel().findings(records(row.example))
    assert finding.check == row.check
    assert finding.code == row.code or not row.code


def test_a_note_names_its_driver_and_the_head_node_knows_whose_checks_confirm_it():
    texts = ("NVRM: new words", "mlx5_core 0000:5e:00.0: new failure", "nvme nvme1: new failure")
    found = kernel().findings(records(*texts))
    assert [f.detail for f in found] == ["nvidia", "mlx5", "disk"]
    names = [spec.name for spec in (*CHECKS, *KERNEL_CHECKS)]
    for prefix in chain.from_iterable(row.checks for row in DRIVERS):
        assert any(name.startswith(prefix) for name in names), prefix


KNOWN = st.sampled_from([case[0] for case in CASES])


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """A line that matters, with something in it that was not expected."""
    text = draw(KNOWN)
    at = draw(st.integers(0, len(text)))
    end = draw(st.integers(at, min(len(text), at + 12)))
    return text[:at] + draw(st.text(max_size=20)) + text[end:]


@given(st.lists(mangled() | KNOWN | st.text(max_size=80), max_size=20))
def test_no_line_breaks_the_reader_or_the_report(texts):
    found = KernelLogAnalyzer(lambda pid, _at: str(pid)[:9]).findings(
        [KernelRecord(0, n, NOON, text) for n, text in enumerate(texts)]
    )
    report = AgentReport("n1", "i-1", "b-1", 1, NOON, NOON, tuple(found))
    assert wire.decode_agent_report(wire.encode_agent_report(report)) == report


@pytest.mark.parametrize("text", [case[0] for case in CASES])
def test_no_line_is_long_in_being_judged(text):
    """Made as long as a record can be, at every place where a user's word may stand."""
    fillers = (
        ":1, blocked a=[x](0x1," * 400, "9" * 6000, " " * 6000, "A" * 6000, "0000:18:00.0 " * 500,
        "RLW_A Fatal XC0 i0 Link 0 (0x1 " * 200,
    )  # fmt: skip
    kernel = KernelLogAnalyzer(lambda _pid, _at: "")
    records = [
        KernelRecord(0, 1, NOON, (text[:at] + filler + text[at:])[:RECORD_BYTES])
        for at in range(0, len(text), 3)
        for filler in fillers
    ]
    begun = time.process_time()
    kernel.findings(records)
    assert (time.process_time() - begun) / len(records) < 0.005
