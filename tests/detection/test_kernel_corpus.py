"""What every kernel line of the tests amounts to by itself: a change of a pattern shows here.

`corpus/kernel_findings.txt` holds the findings of each line as they were when patterns were code,
before they became rows of the fault tables. A line that is not there amounts to nothing.
`HPCTL_REGOLD=1` writes the file again: read the difference before you commit it.
"""

import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from hpctl.detection import kmsg
from hpctl.detection.kernel.log import KernelLogAnalyzer
from hpctl.detection.logtext import LogTextReader
from hpctl.faults.table import KERNEL_CHECKS, list_check_fault_rows
from hpctl.vocabulary.model import Finding
from tests.detection.corpus import case, play, unseen
from tests.fakes.values import T0 as NOON
from tests.gpu.recordings import read_kernel_records, read_text

HERE = Path(__file__).parent
GOLDEN = HERE / "corpus" / "kernel_findings.txt"


def _cases(name: str, cells: int) -> Iterator[str]:
    for row in (HERE / name).read_text().splitlines():
        if not row.startswith("#"):
            yield row.split(" | ", cells)[-1]


def recorded() -> Iterator[str]:
    """The lines of the H200's kernel: at its boot, and when programs crashed."""
    for name in ("kmsg-boot-driver.txt", "kmsg-crashes.txt"):
        for raw in read_kernel_records(name):
            record = kmsg.parse_kmsg_record(raw.encode(), booted=1.7e9)
            assert record is not None
            yield record.text
    for entry in LogTextReader(BytesIO(read_text("deaths/kmsg").encode())):
        yield entry.record.text


def lines() -> Iterator[str]:
    """Every kernel line that the tests know."""
    yield from _cases("kernel_lines.txt", 4)
    yield from _cases("xid_lines.txt", 5)
    yield from _cases("kernel_benign.txt", 0)
    for one in case.load():
        for written in one.kernel:
            _, text = next(iter(play.split_lines(written)))
            yield text.removeprefix("user: ")
    for name in unseen.SETS:
        for held_out in unseen.load(name):
            yield from held_out.text.split("\n")
    yield from recorded()


def judged(text: str) -> list[Finding]:
    kernel = KernelLogAnalyzer(lambda pid, _at: f"job of {pid}")
    return kernel.findings([kmsg.KernelRecord(kmsg.KERNEL_FACILITY, 1, NOON, text)])


def shown() -> Iterator[str]:
    for text in dict.fromkeys(lines()):
        for f in judged(text):
            cells = (f.check, f.code, f.verdict, f.clears, f.device, f.detail, f.job, f.count)
            yield " | ".join([*map(str, cells), text])


def test_every_line_amounts_to_what_it_did() -> None:
    found = list(shown())
    if os.environ.get("HPCTL_REGOLD"):
        GOLDEN.write_text("\n".join(found) + "\n")
    assert found == GOLDEN.read_text().splitlines()


def test_a_row_says_whether_a_recording_holds_a_line_of_it() -> None:
    """H200: tests/gpu/recordings/h200-580.159."""
    in_recordings = {(f.check, f.code) for text in recorded() for f in judged(text)}
    rows = [row for spec in KERNEL_CHECKS for row in list_check_fault_rows(spec.name)]
    recorded_rows = [row for row in rows if any(one.is_recorded_by_hpctl for one in row.sightings)]
    said = {(row.check, code) for row in recorded_rows for code in row.codes}
    assert said == in_recordings
