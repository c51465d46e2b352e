"""Nobody forges a fault by the name of a process, a file or a control group.

The templates are the kernel's messages that hold such a name (Linux 4.14 to 6.18). The names are
cut out of lines that we would act on: the first characters of one as the process, any end of
another as the file.
"""

from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctl.detection.kernel.log import KernelLogAnalyzer
from hpctl.detection.kmsg import KernelRecord
from hpctl.toolkit.compat import UTC
from tests.detection.kernel_cases import CASES, PATTERNS
from tests.examples import examples

NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
COMM = 15
"""Characters of a process's name: TASK_COMM_LEN less one."""

TEMPLATES = Path(__file__).with_name("kernel_templates.txt").read_text().splitlines()[1:]
BEGIN_WITH_A_NAME = [template for template in TEMPLATES if template.startswith("{c}")]
LINES = [case[0] for case in CASES]
matching = st.sampled_from(LINES) | st.one_of(*(st.from_regex(shape) for shape in PATTERNS))


@st.composite
def names(draw: st.DrawFn) -> tuple[str, str]:
    """A process's name and a file's, both from what our patterns look for."""
    text = draw(matching).replace("\n", " ")
    length = draw(st.integers(1, COMM))
    rest = draw(st.just(text) | matching.map(lambda t: t.replace("\n", " ")))
    return text[:length], rest[draw(st.integers(0, len(rest))) :][:200]


def found(text: str) -> list[tuple[str, str]]:
    record = KernelRecord(0, 1, NOON, text)
    seen = KernelLogAnalyzer(lambda _pid, _at: "").findings([record])
    # What is told of a process itself, and means nothing for its node.
    return [(f.check, f.code) for f in seen if f.check != "kernel.process"]


@settings(max_examples=examples(60))
@given(st.sampled_from(TEMPLATES), names())
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
    from hpctl.faults.assess import list_fault_classes_by_severity
    from hpctl.faults.catalogue import build_fault_rules

    finding = KernelLogAnalyzer(lambda _pid, _at: "").findings([KernelRecord(0, 1, NOON, text)])
    assert [
        fault.rule for fault in list_fault_classes_by_severity(finding, build_fault_rules())
    ] == [code]
