"""Whatever a kernel line holds, it is judged without an error, at once, and fits a report."""

import time
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctl.agent.checks.kernel_log import Kernel
from hpctl.agent.kmsg import RECORD_BYTES, Record
from hpctl.core.compat import UTC
from hpctl.core.model import BootId, InstanceId, NodeName, Report
from hpctl.protocol import reports as wire
from tests.unit.kernel_cases import CASES

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
KNOWN = st.sampled_from([case[0] for case in CASES])


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """A line that matters, with something in it that was not expected."""
    text = draw(KNOWN)
    at = draw(st.integers(0, len(text)))
    end = draw(st.integers(at, min(len(text), at + 12)))
    return text[:at] + draw(st.text(max_size=20)) + text[end:]


@given(st.lists(mangled() | KNOWN | st.text(max_size=80), max_size=20))
def test_no_line_breaks_the_reader_or_the_report(texts: list[str]) -> None:
    found = Kernel(lambda pid, _at: str(pid)[:9]).findings(
        [Record(0, n, NOON, text) for n, text in enumerate(texts)]
    )
    report = Report(NodeName("n1"), InstanceId("i-1"), BootId("b-1"), 1, NOON, NOON, tuple(found))
    assert wire.decode(wire.encode(report)) == report


@pytest.mark.parametrize("text", [case[0] for case in CASES])
def test_no_line_is_long_in_being_judged(text: str) -> None:
    """Made as long as a record can be, at every place where a user's word may stand."""
    fillers = (
        ":1, blocked a=[x](0x1," * 400,
        "9" * 6000,
        " " * 6000,
        "A" * 6000,
        "0000:18:00.0 " * 500,
        "RLW_A Fatal XC0 i0 Link 0 (0x1 " * 200,
    )
    kernel = Kernel(lambda _pid, _at: "")
    records = [
        Record(0, 1, NOON, (text[:at] + filler + text[at:])[:RECORD_BYTES])
        for at in range(0, len(text), 3)
        for filler in fillers
    ]
    begun = time.process_time()
    kernel.findings(records)
    assert (time.process_time() - begun) / len(records) < 0.005
