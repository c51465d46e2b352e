"""Every documented shape of an Xid or SXid line, and the lines that only look like one."""

import pytest

from hpctl.detection.kernel import xid74
from hpctl.detection.kernel.line import EVIDENCE_CHARS
from hpctl.detection.kernel.log import KernelLogAnalyzer
from hpctl.detection.kmsg import KernelRecord
from hpctl.faults.decode import parse_gpu_component, parse_nvlink_number
from hpctl.vocabulary.model import DeviceVerdict, Finding
from tests.detection.kernel_cases import rows
from tests.fakes.values import T0 as NOON


def judged(text: str) -> Finding | None:
    """The finding of one line by itself, where it is one of `kernel.xid` or `kernel.sxid`."""
    found = KernelLogAnalyzer(lambda _pid, _at: "").findings([KernelRecord(0, 1, NOON, text)])
    numbered = [one for one in found if one.check in ("kernel.xid", "kernel.sxid")]
    return numbered[0] if numbered else None


SHAPES = [row.split(" | ", 5) for row in rows("xid_lines.txt")]


@pytest.mark.parametrize(("check", "code", "device", "detail", "verdict", "text"), SHAPES)
def test_shapes(check: str, code: str, device: str, detail: str, verdict: str, text: str) -> None:
    output = "" if detail == "-" else detail
    assert judged(text) == Finding(
        check, DeviceVerdict(verdict), NOON, NOON, device, code, output, text
    )
    if code == "74" and output:
        # The head node tells links apart by the same text, decoded or not.
        assert (
            parse_gpu_component(code, f"{output} {text}")
            == f"link {parse_nvlink_number(f'{output} {text}')}"
        )


def test_errors_that_the_driver_skipped_are_counted() -> None:
    finding = judged(
        "NVRM: Xid (PCI:0000:c1:00): 120, GSP Error: Task 1 raised error code 0x5 for reason 0x0 "
        "at 0x63f2a8 (12 more errors skipped)"
    )
    assert finding.count == 13


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: GPU at PCI:0000:c1:00: GPU-0b1c2d3e",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15",
        "NVRM: Xid (PCI:0000:66:00): abc, pid=2280636",
        "NVRM: Xid error: xyz, invalid data",
        "nvidia-nvswitch3: SXid (PCI:0000:c2:00.0): 12028, Data {0x00140004, 0x00100000}",
        "nvidia-nvswitch3: SXid (PCI:0000:c2:00.0): 12028, Severity 0 Engine instance 32",
        "nvidia-nvswitch3: open (major=511)",
        "usb 1-1: Product: NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:c1:00): 79, "[:20],
        "EXT4-fs (nvme0n1): mounted filesystem",
        "",
    ],
)
def test_lines_that_are_no_error(text: str) -> None:
    assert judged(text) is None


def test_evidence_is_bounded() -> None:
    finding = judged("NVRM: Xid (PCI:0000:c1:00): 13, " + "x" * 5000)
    assert len(finding.evidence) == EVIDENCE_CHARS


# The seven registers of an Xid 74, as NVIDIA's workflow reads them.


@pytest.mark.parametrize("row", rows("xid_74_bits.txt"))
def test_what_the_bits_mean(row: str) -> None:
    """`1.4 3.0`: bit 4 of the first register and bit 0 of the third."""
    bits, kind = row.split(" | ")
    registers = [0] * 7
    for register, bit in (one.split(".") for one in bits.split() if one != "-"):
        registers[int(register) - 1] |= 1 << int(bit)
    assert xid74.classify_xid74_registers([] if bits == "-" else registers) == kind
