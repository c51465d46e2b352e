"""What an H200's driver really prints: at boot, idle, under load, and for programs with bugs.

The recordings are those of tests/gpu/recordings/h200-580.159; each test names its file.
"""

from collections.abc import Callable, Iterable
from io import BytesIO

import pytest

from hpctl.detection import kmsg
from hpctl.detection.checks.gpu_xid import judge_xid_events
from hpctl.detection.findings import FindingStore
from hpctl.detection.kernel.log import KernelLogAnalyzer
from hpctl.detection.logtext import LogTextReader
from hpctl.detection.nvml.snapshot import NvmlEvent, NvmlSnapshot
from hpctl.faults.assess import assess_findings_without_settling, list_fault_classes_by_severity
from hpctl.faults.catalogue import build_fault_rules
from hpctl.faults.table import BENIGN_LINES
from hpctl.vocabulary.assessment import NodeCondition, Remedy
from hpctl.vocabulary.model import DeviceVerdict, Finding
from tests.gpu.recordings import read_json, read_kernel_records, read_text

RULES = build_fault_rules()
GPU = "0000:00:06.0"
NOTHING_WRONG = {DeviceVerdict.OK, DeviceVerdict.NOTE}


def parse(lines: Iterable[str]) -> list[kmsg.KernelRecord]:
    records = [kmsg.parse_kmsg_record(line.encode(), booted=1.7e9) for line in lines]
    assert None not in records
    return records


def judge(
    records: Iterable[kmsg.KernelRecord], job_of: Callable[[int], str] = lambda pid: ""
) -> tuple[Finding, ...]:
    """The findings of the agent, record by record as they come."""
    kernel, findings = KernelLogAnalyzer(lambda pid, _at: job_of(pid)), FindingStore()
    for record in records:
        for finding in kernel.findings([record]):
            findings.add(finding)
    return findings.all()


def count_by_code(findings: Iterable[Finding]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for finding in findings:
        counts[finding.code] = counts.get(finding.code, 0) + finding.count
    return counts


def deaths() -> list[kmsg.KernelRecord]:
    log = LogTextReader(BytesIO(read_text("deaths/kmsg").encode()))
    return [entry.record for entry in log]


def test_a_boot_of_a_healthy_card_is_silent() -> None:
    """kmsg-boot-driver.txt; the two lines that warned for ever are rows of the fault data."""
    records = parse(read_kernel_records("kmsg-boot-driver.txt"))
    assert judge(records) == ()
    texts = [record.text for record in records]
    for beginning in (
        "NVRM: gpuClearFbhubPoisonIntrForBug",
        "NVRM: Persistence mode is deprecated",
    ):
        assert any(text.startswith(beginning) for text in texts)
        assert any(row.begins.startswith(beginning) and row.source for row in BENIGN_LINES)


@pytest.mark.parametrize("name", ["agent-check-idle.json", "agent-check-load.json"])
def test_what_warned_on_a_healthy_card_no_longer_warns(name: str) -> None:
    """agent-check-idle.json, agent-check-load.json: each kernel line that they held.

    The one other warning is true: the load ran on the GPU without a Slurm job.
    """
    rows = read_json(name)
    lines = [f["evidence"] for row in rows if row["check"] == "kernel" for f in row["findings"]]
    assert lines
    assert judge(parse(f"4,{n},{n},-;{text}" for n, text in enumerate(lines, 1))) == ()
    others = {row["check"]: row["state"] for row in rows if row["state"] in ("warn", "fail")}
    others.pop("kernel")
    assert others == ({} if "idle" in name else {"gpu.processes": "warn"})


USERS = {957: "11", 965: "12", 978: "13", 985: "14", 993: "15", 1000: "16", 1008: "17"}


@pytest.mark.parametrize("job_of", [lambda pid: "", lambda pid: "7", lambda pid: USERS[pid]])
def test_nine_faulting_programs_are_no_sign_against_the_node(job_of) -> None:
    """kmsg-crashes.txt: outside of jobs, in one job, and each in a job of another user."""
    findings = judge(parse(read_kernel_records("kmsg-crashes.txt")), job_of)
    assert count_by_code(findings) == {"13": 9, "31": 2, "43": 4}
    assert {(f.check, f.device, f.verdict) for f in findings} == {
        ("kernel.xid", GPU, DeviceVerdict.NOTE)
    }
    found = assess_findings_without_settling(findings, RULES)
    assert (found.condition, found.fault) == (NodeCondition.HEALTHY, None)
    remedies = {fault.ladder for fault in list_fault_classes_by_severity(findings, RULES)}
    assert remedies == {(Remedy.RESTART_JOB,), (Remedy.NONE,)}


def test_all_together_is_a_healthy_node() -> None:
    """kmsg-boot-driver.txt, kmsg-crashes.txt and deaths/kmsg."""
    booted = parse(read_kernel_records("kmsg-boot-driver.txt"))
    crashed = parse(read_kernel_records("kmsg-crashes.txt"))
    findings = judge([*booted, *crashed, *deaths()])
    assert {f.verdict for f in findings} <= NOTHING_WRONG
    assert assess_findings_without_settling(findings, RULES).condition is NodeCondition.HEALTHY
    died = count_by_code(judge(deaths()))
    assert died == {"31": 2, "43": 6}


def test_lines_that_tell_of_the_xid_to_come_say_nothing_themselves() -> None:
    """kmsg-crashes.txt: a GPU's first Xid comes with two lines before it."""
    first, second, xid, *_ = parse(read_kernel_records("kmsg-crashes.txt"))
    assert (first.text[:15], second.text[:16]) == ("NVRM: GPU at PC", "NVRM: GPU Board ")
    assert judge([first, second]) == ()
    assert [f.code for f in judge([first, second, xid])] == ["31"]


def test_an_xid_of_the_log_and_of_nvml_is_counted_once() -> None:
    """crashes.json: NVML's events of the same programs add nothing to the kernel's lines."""
    programs = read_json("crashes.json")
    events = tuple(
        NvmlEvent(e["event"]["at"], e["event"]["pci"], e["event"]["kind"], e["event"]["data"])
        for program in programs
        for e in program["nvml_events"]
    )
    assert {event.data for event in events} == {13, 31, 43}
    assert list(judge_xid_events(NvmlSnapshot(200.0, events=events), None, {})) == []
    for program in programs:
        lines = [raw for _, raw in program["kmsg"]]
        codes = {f.code for f in judge(parse(lines))}
        assert {str(e["event"]["data"]) for e in program["nvml_events"]} <= codes


def test_a_line_that_no_rule_knows_is_a_note() -> None:
    """The same lines as in kmsg-boot-driver.txt, as an unknown release might spell them."""
    texts = ("NVRM: gpuClearSomethingElse_GB100: Other Interrupt detected. Clearing it.",) * 2
    (found,) = judge(parse(f"4,{n},{n}000000,c;{text}" for n, text in enumerate(texts, 1)))
    assert (found.check, found.code, found.detail) == ("kernel.driver", "unknown", "nvidia")
    assert (found.verdict, found.count) == (DeviceVerdict.NOTE, 2)
    assert assess_findings_without_settling((found,), RULES).condition is NodeCondition.HEALTHY


def test_a_gpu_that_the_driver_numbers_prints_the_same_harmless_line() -> None:
    lines = [
        line.replace("NVRM: gpuClear", "NVRM: GPU3 gpuClear")
        for line in read_kernel_records("kmsg-boot-driver.txt")
    ]
    assert any("GPU3 gpuClear" in line for line in lines)
    assert judge(parse(lines)) == ()
