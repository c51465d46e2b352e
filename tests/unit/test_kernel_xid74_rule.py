"""An Xid 74 whose registers say that nothing was lost is watched; any other resets the GPU."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from hpctl.agent.checks.kernel_log import Kernel
from hpctl.agent.kmsg import Record
from hpctl.core.assess import assess
from hpctl.core.catalogue import rules
from hpctl.core.compat import UTC
from hpctl.core.model import (
    Assessment,
    BootId,
    Condition,
    Generation,
    Health,
    InstanceId,
    NodeName,
)

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
NOW = NOON + timedelta(seconds=10)
NODE = Generation(NodeName("n1"), InstanceId("i-1"), BootId("b-1"))


def judged(*registers: str) -> Assessment:
    texts = [
        f"NVRM: Xid (PCI:0000:b9:00): 74, pid=1, name=x, NVLink: fatal error detected on link 6{r}"
        for r in registers
    ]
    found = Kernel(lambda _pid, _at: "").findings(
        [Record(0, n, NOON, text) for n, text in enumerate(texts)]
    )
    return assess(Health(NODE, NOW, tuple(found)), rules(), NOW)


CORRECTED = "(0x0, 0x0, 0x0, 0x0, 0x100000, 0x0, 0x0)"
HARMLESS = "(0x40000001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
PARITY = "(0x10, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
UNKNOWN = "(0x80000000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"


@pytest.mark.parametrize("registers", [(CORRECTED,), (HARMLESS,), (CORRECTED, HARMLESS)])
def test_what_was_corrected_is_watched(registers: tuple[str, ...]) -> None:
    said = judged(*registers)
    assert said.condition is Condition.SUSPECT
    assert "xid-74-corrected" in said.why


@pytest.mark.parametrize("registers", [(PARITY,), (UNKNOWN,), ("",), (CORRECTED, PARITY)])
def test_all_else_is_a_fault(registers: tuple[str, ...]) -> None:
    said = judged(*registers)
    assert said.condition is Condition.FAULTY
    assert said.fault is not None
    assert said.fault.rule == "xid-74"
