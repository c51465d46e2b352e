"""A message of NVIDIA's driver over several records, and complaints that go on."""

import time
from collections.abc import Iterable
from datetime import timedelta

import pytest

from hpctl.detection.kernel.link_detection import GOES_ON, PAUSE
from hpctl.detection.kernel.log import KernelLogAnalyzer
from hpctl.detection.kernel.split_messages import APART, FOLLOWS, LONGEST_PART
from hpctl.detection.kmsg import KernelRecord
from hpctl.vocabulary.model import DeviceVerdict, Finding
from tests.fakes.values import T0 as NOON

FIRST = "NVRM: The NVIDIA GPU 0000:b3:00.0"
MIDDLE = "NVRM: (PCI ID: 10de:26b5) installed in this system has"
LAST = "NVRM: fallen off the bus and is not responding to commands."
OTHER = "pcieport 0000:00:01.0: bwctrl: ok"
LINKS = "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!"


def judge_records(texts: Iterable[str], apart_s: float = 0.0, batch: int = 0) -> list[Finding]:
    """Return the findings of records, each `apart_s` seconds after the one before it."""
    records = [
        KernelRecord(0, number, NOON + timedelta(seconds=apart_s * number), text)
        for number, text in enumerate(texts)
    ]
    judge = KernelLogAnalyzer(lambda _pid, _at: "")
    size = batch or len(records)
    batches = [records[at : at + size] for at in range(0, len(records), size)]
    return [finding for part in batches for finding in judge.findings(part)]


def find_lost(findings: Iterable[Finding]) -> list[str]:
    """Return the devices of the findings that a GPU fell off the bus."""
    return [one.device for one in findings if (one.check, one.code) == ("kernel.xid", "79")]


@pytest.mark.parametrize(
    "texts",
    [
        (FIRST, MIDDLE, LAST),
        (FIRST, "NVRM: (PCI ID: 10de:26b5)", "NVRM: installed in this system has", LAST),
        (f"{FIRST} (PCI ID: 10de:26b5)", "NVRM: installed in this system has", LAST),
        (FIRST, "NVRM: installed in this system has", LAST),
        (FIRST, LAST),
        (FIRST, OTHER, MIDDLE, OTHER, LAST),
        ("NVRM: GPU 0000:18:00.0", FIRST, MIDDLE, LAST),
    ],
)
@pytest.mark.parametrize("batch", [0, 1])
def test_a_message_over_several_records_names_its_gpu(texts: tuple[str, ...], batch: int) -> None:
    findings = judge_records(texts, batch=batch)
    assert find_lost(findings) == ["0000:b3:00.0"]
    evidence = next(one.evidence for one in findings if one.code == "79")
    assert "0000:b3:00.0" in evidence
    assert evidence.endswith(LAST)


def test_the_last_part_without_the_others_is_a_gpu_without_a_name() -> None:
    assert find_lost(judge_records([LAST])) == [""]


@pytest.mark.parametrize("name", ["invalid-bdf.0", "10de:26b5", "GPU-0b1c2d3e", "0000:b3"])
def test_a_name_that_is_no_address_is_no_lost_gpu(name: str) -> None:
    findings = judge_records([f"NVRM: The NVIDIA GPU {name}", MIDDLE, LAST])
    assert find_lost(findings) == []
    assert all(one.verdict is not DeviceVerdict.FAIL for one in findings)


def test_parts_too_far_apart_are_not_joined() -> None:
    late = FOLLOWS.total_seconds() + 1
    assert find_lost(judge_records([FIRST, LAST], apart_s=late)) == [""]
    assert find_lost(judge_records([FIRST, *[OTHER] * (APART - 1), LAST])) == ["0000:b3:00.0"]
    assert find_lost(judge_records([FIRST, *[OTHER] * APART, LAST])) == [""]


def test_a_first_part_serves_one_message() -> None:
    assert find_lost(judge_records([FIRST, LAST, LAST])) == ["0000:b3:00.0", ""]


def test_a_storm_of_parts_costs_little_time_and_memory() -> None:
    texts = [FIRST, *[MIDDLE] * 7, "NVRM: " + "x" * (LONGEST_PART - 6)] * 5_000
    begun = time.process_time()
    findings = judge_records([*texts, FIRST, *[MIDDLE] * 6, LAST])
    assert time.process_time() - begun < 5
    assert find_lost(findings) == ["0000:b3:00.0"]
    assert all(len(one.evidence) <= 5 * LONGEST_PART for one in findings)


def list_link_verdicts(times_s: Iterable[float], batch: int = 1) -> list[DeviceVerdict]:
    """Return the verdicts on complaints about NVLinks that come at these seconds."""
    judge = KernelLogAnalyzer(lambda _pid, _at: "")
    records = [
        KernelRecord(0, number, NOON + timedelta(seconds=second), LINKS)
        for number, second in enumerate(times_s)
    ]
    batches = [records[at : at + batch] for at in range(0, len(records), batch)]
    return [finding.verdict for part in batches for finding in judge.findings(part)]


@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_complaints_about_links_act_when_they_go_on(batch: int) -> None:
    limit = int(GOES_ON.total_seconds())
    assert DeviceVerdict.FAIL not in list_link_verdicts(range(0, limit, 20), batch)
    assert list_link_verdicts(range(0, limit + 20, 20), batch)[-1] is DeviceVerdict.FAIL


def test_complaints_about_links_at_several_starts_cost_nothing() -> None:
    pause = PAUSE.total_seconds() + 1
    starts = [start * (pause + 60) + second for start in range(40) for second in (0, 30, 60)]
    assert DeviceVerdict.FAIL not in list_link_verdicts(starts)


def test_a_clock_that_is_set_back_costs_no_reboot() -> None:
    assert DeviceVerdict.FAIL not in list_link_verdicts([7200, 0, 30, 60])
