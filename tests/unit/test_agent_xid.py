"""Every documented shape of an Xid or SXid line, and the lines that only look like one."""

from __future__ import annotations

from datetime import datetime

import pytest

from hpctl.agent.checks import kernel_gpu
from hpctl.agent.kmsg import Record
from hpctl.core.compat import UTC
from hpctl.core.decode import link, part
from hpctl.core.model import Finding, Verdict

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def judged(text: str, facility: int = 0, accept_user: bool = False) -> Finding | None:
    error = kernel_gpu.gather(Record(facility, 1, NOON, text), accept_user=accept_user)
    return None if error is None else kernel_gpu.judge(error)


@pytest.mark.parametrize(
    ("text", "device", "code", "detail"),
    [
        ("NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.", "0000:c1:00.0", "79", ""),
        ("NVRM: Xid (PCI:0000:C1:00.0): 48, pid=12, name=python3, DBE", "0000:c1:00.0", "48", ""),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00.0", "14", ""),
        ("NVRM: Xid (PCI:00000000:5e:00): 63, Row Remapper: New row", "0000:5e:00.0", "63", ""),
        ("NVRM: Xid (PCI:10de:01:00): 31, pid='<unknown>', name=<unknown>, Ch 0008",
         "10de:01:00.0", "31", ""),
        ("NVRM: Xid (PCI:0000:c1:00 GPU-I:05): 94, pid=4, name=py, Contained",
         "0000:c1:00.0", "94", ""),
        ("NVRM: Xid (PCI:0000:b7:00): 95", "0000:b7:00.0", "95", ""),
        ("NVRM: Xid (PCI:0000:b7:00): 149 NETIR_LINK_EVT", "0000:b7:00.0", "149", ""),
        ("NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.", "0000:9b:00.0", "79", ""),
        ("NVRM: The NVIDIA GPU 0000:2a:00.0 NVRM: (PCI ID: 10de:2330) installed in this system has "
         "NVRM: fallen off the bus and is not responding to commands.", "0000:2a:00.0", "79", ""),
        ("NVRM: Xid (PCI:0009:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 "
         "(0x021425C6 0x00000000 0x0 0x0 0x0 0x0)", "0009:01:00.0", "149",
         "NETIR_LINK_EVT Fatal link=1 regs=0x021425c6,0x00000000"),
        ("NVRM: Xid (PCI:0000:00:1e): 145, RLW_SRC_TRACK Nonfatal XC 1 i 2 Link -1 [0x0000000a]",
         "0000:00:1e.0", "145", "RLW_SRC_TRACK Nonfatal link=-1 regs=0x0000000a"),
        ("NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 "
         "(GPU Reset Required)", "0008:01:00.0", "154", "GPU Reset Required"),
        ("NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 "
         "(Node Reboot Required)", "0008:01:00.0", "154", "Node Reboot Required"),
        ("NVRM: Xid (PCI:0008:01:00): 154, pid=1, name=x, GPU recovery action changed from "
         "0x2 (Node Reboot Required) to 0x0 (None)", "0008:01:00.0", "154", "None"),
        ("NVRM: Xid (PCI:0008:01:00): 154, pid=1, name=to 0x0 (None), GPU recovery action changed "
         "from 0x0 (None) to 0x2 (Node Reboot Required)", "0008:01:00.0", "154",
         "Node Reboot Required"),
        ("NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 "
         "(Drain P2P)", "0008:01:00.0", "154", "Drain P2P"),
        ("NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 "
         "(Drain and Reset)", "0008:01:00.0", "154", "Drain and Reset"),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 "
         "(OS Reboot)", "0000:01:00.0", "154", "Node Reboot Required"),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 "
         "(PF FLR)", "0000:01:00.0", "154", "GPU Reset Required"),
        ("NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x9 "
         "(Some New Words)", "0000:01:00.0", "154", "Some New Words"),
    ],
)  # fmt: skip
def test_xid_shapes(text: str, device: str, code: str, detail: str) -> None:
    finding = judged(text)
    assert finding == Finding(
        "kernel.xid", Verdict.FAIL, NOON, NOON, device, code, detail, text, count=1
    )


@pytest.mark.parametrize(
    ("text", "code", "detail", "verdict"),
    [
        ("nvidia-nvswitch3: SXid (PCI:0000:c2:00.0): 12028, Non-fatal, Link 32 egress non-posted "
         "PRIV error (First)", "12028", "Non-fatal", Verdict.WARN),
        ("nvidia-nvswitch0: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
         "20034", "Fatal", Verdict.FAIL),
        ("nvidia-nvswitch10: SXid (PCI:0000:c2:00.0): 10003, Host_bar0_timeout", "10003", "",
         Verdict.FAIL),
    ],
)  # fmt: skip
def test_sxid_shapes(text: str, code: str, detail: str, verdict: Verdict) -> None:
    finding = judged(text)
    assert finding == Finding(
        "kernel.sxid", verdict, NOON, NOON, "0000:c2:00.0", code, detail, text
    )


def test_errors_that_the_driver_skipped_are_counted() -> None:
    finding = judged(
        "NVRM: Xid (PCI:0000:c1:00): 120, GSP Error: Task 1 raised error code 0x5 for reason 0x0 "
        "at 0x63f2a8 (12 more errors skipped)"
    )
    assert finding is not None
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


def test_only_the_kernel_is_believed_unless_told_otherwise() -> None:
    text = "NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus."
    assert judged(text, facility=1) is None
    assert judged(text, facility=3) is None
    assert judged(text, facility=1, accept_user=True) is not None


def test_evidence_is_bounded() -> None:
    finding = judged("NVRM: Xid (PCI:0000:c1:00): 13, " + "x" * 5000)
    assert finding is not None
    assert len(finding.evidence) == kernel_gpu.EVIDENCE_CHARS


# --- The seven registers of an Xid 74, as NVIDIA's workflow reads them.


def registers(**bits: int) -> list[int]:
    """`r1=4`: bit 4 of the first register."""
    words = [0] * 7
    for name, bit in bits.items():
        words[int(name[1:]) - 1] |= 1 << bit
    return words


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (registers(r1=4), "parity"),
        (registers(r3=6), "parity"),
        (registers(r5=28), "parity"),
        (registers(r1=8), "hardware"),
        (registers(r3=16), "hardware"),
        (registers(r1=21), "signal"),
        (registers(r1=27), "repeats-matter"),
        (registers(r3=17), "repeats-matter"),
        (registers(r3=13), "unexpected"),
        (registers(r4=18), "fabric"),
        (registers(r1=20), "side-effect"),
        (registers(r4=16), "side-effect"),
        (registers(r5=20), "corrected"),
        (registers(r1=23), "harmless"),
        # The most telling bit speaks for the line.
        (registers(r1=20, r3=0), "parity"),
        (registers(r1=30, r5=20), "corrected"),
        # A bit that the table does not have makes the whole unknown, in the registers that count.
        (registers(r1=31), "unknown"),
        (registers(r1=2, r5=28), "unknown"),
        (registers(r2=31, r1=4), "parity"),
        ([0] * 7, "unknown"),
        ([], "unknown"),
    ],
)
def test_what_the_bits_mean(words: list[int], kind: str) -> None:
    assert kernel_gpu.nvlink_kind(words) == kind


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error "
         "detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)", "link=14 hardware"),
        ("NVRM: Xid (PCI:0000:b9:00): 74, pid=1, name=x, NVLink: fatal error detected on link "
         "6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", "link=6 hardware"),
        ("NVRM: Xid (PCI:0000:65:00): 74, NVLink: fatal error detected on link 2", ""),
        ("NVRM: Xid (PCI:0000:65:00): 74, NVLink: fatal error detected on link 2(0x0, 0x0)", ""),
        ("NVRM: Xid (PCI:0000:65:00): 48, link 2(0x0, 0x0, 0x1, 0x0, 0x0, 0x0, 0x0)", ""),
    ],
)  # fmt: skip
def test_the_line_carries_link_and_kind(text: str, detail: str) -> None:
    error = kernel_gpu.gather(Record(0, 1, NOON, text))
    assert error is not None
    finding = kernel_gpu.judge(error)
    assert finding.detail == detail
    if finding.code == "74":
        # The head node tells links apart by the same text, decoded or not.
        number = link(f"{finding.detail} {finding.evidence}")
        assert part("74", f"{finding.detail} {finding.evidence}") == f"link {number}"
