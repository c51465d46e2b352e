"""The seven registers of an Xid 74, as NVIDIA's workflow reads them."""

from __future__ import annotations

from datetime import datetime

import pytest

from hpctl.agent.checks import kernel_gpu
from hpctl.agent.kmsg import Record
from hpctl.core.compat import UTC
from hpctl.core.decode import link, part

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


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
