"""Other tools' output, as their sources write it, and what of it becomes a finding."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctl.detection import report_command
from hpctl.detection.check import CheckObservation, CheckResultUnknownError
from hpctl.detection.outside.report_request import MAX_WORD
from hpctl.detection.outside.verdict_formats import (
    FORMAT_NAMES,
    FORMATS,
    MAX_FINDINGS,
    parse_health_tool_verdict,
)
from hpctl.detection.outside.verdict_readers import HealthToolOutput, rank_verdict_severity
from hpctl.vocabulary.model import DeviceVerdict

DOCS = Path(__file__).parents[2] / "docs/plugins.md"
FAIL, WARN, NOTE, UNKNOWN = (
    DeviceVerdict.FAIL,
    DeviceVerdict.WARN,
    DeviceVerdict.NOTE,
    DeviceVerdict.UNKNOWN,
)


def read(name: str, text: object, status: int | None = 0) -> tuple[CheckObservation, ...]:
    """Return what a format finds in an output, which may be given as a JSON value."""
    said = text if isinstance(text, str) else json.dumps(text)
    return parse_health_tool_verdict(name, HealthToolOutput(said, status, "ip-10-1-2-3"))


def list_codes(found: tuple[CheckObservation, ...]) -> list[tuple[str, str, DeviceVerdict]]:
    return [(one.code, one.device, one.verdict) for one in found]


def make_system(value: str, *lines: str) -> Mapping[str, object]:
    """Return one system's part of `dcgmi health -c -j` (DcgmiOutput.h: value, overflow)."""
    return {"value": value, "overflow": list(lines)}


def make_dcgm(overall: str, **gpus: Mapping[str, object]) -> Mapping[str, object]:
    children = {
        name.removeprefix("gpu"): {"value": "x", "children": {"Errors": {"children": systems}}}
        for name, systems in gpus.items()
    }
    body = {"GPU": {"children": children}} if children else {}
    return {"body": {"Overall Health": {"value": overall}, **body}, "header": ["Health Monitor"]}


HV_COMPONENT = {
    "check_ids": ["gpu_xid_79", "gpu_xid_48"],
    "entities": ["GPU-1"],
    "category": "xid",
    "max_severity": "CRITICAL",
}
DCGM_FAILURE = make_dcgm(
    "Failure",
    gpu0={"Memory system": make_system("Warning", "a page is", "pending")},
    gpu1={"NVLINK system": make_system("Failure", "CRC"), "Driver": make_system("odd")},
)
NHC_FAILURE = "ERROR:  nhc:  Health check failed:  check_fs_mount:  /scratch not mounted\n"
RESULT = "HEALTH_CHECK_RESULT:ip-10-1-2-3:Failed:replace:memory: GPU 3: row remap failure\n"

CASES = [
    ("health-validation", {"overall_severity": "PASS"}, 0, []),
    ("health-validation", {"overall_severity": "INFO"}, 0, [("overall", "", NOTE)]),
    ("health-validation", {"overall_severity": "WARNING"}, None, [("overall", "", WARN)]),
    ("health-validation", {"overall_severity": "UNKNOWN"}, 1, [("overall", "", UNKNOWN)]),
    ("health-validation", {"overall_severity": "SEVERE"}, 1, [("overall", "", UNKNOWN)]),
    ("health-validation", {"overall_severity": "CRITICAL"}, 0, [("overall", "", FAIL)]),
    (
        "health-validation",
        {"overall_severity": "CRITICAL", "affected_components": [HV_COMPONENT]},
        1,
        [("xid", "", FAIL)],
    ),
    (
        "health-validation",
        {"overall_severity": "CRITICAL", "any": [{"category": "cpu", "max_severity": "odd"}]},
        1,
        [("overall", "", FAIL), ("cpu", "", UNKNOWN)],
    ),
    ("dcgm-health", make_dcgm("Healthy"), 0, []),
    ("dcgm-health", make_dcgm("Warning"), 0, [("overall", "", WARN)]),
    ("dcgm-health", make_dcgm("Internal error"), 0, [("overall", "", UNKNOWN)]),
    (
        "dcgm-health",
        DCGM_FAILURE,
        0,
        [("nvlink", "GPU 1", FAIL), ("driver", "GPU 1", UNKNOWN), ("memory", "GPU 0", WARN)],
    ),
    ("gcm", "", 0, []),
    ("gcm", "", 2, [("overall", "", FAIL)]),
    ("gcm", "", 3, [("overall", "", UNKNOWN)]),
    ("gcm", "OK - check zombie. none\n", 0, []),
    ("gcm", "WARNING - link flaps. eth0 | 'a'=1\n", 1, [("link_flaps", "", WARN)]),
    ("gcm", "CRITICAL - check zombie", None, [("check_zombie", "", FAIL)]),
    ("gcm", "OK - xid errors\n", 2, [("overall", "", FAIL)]),
    (
        "gcm",
        "WARNING - check did not exit normally\n",
        1,
        [("check_did_not_exit_normally", "", UNKNOWN)],
    ),
    ("nhc", "", 0, []),
    ("nhc", "", None, []),
    ("nhc", "", 1, [("failed", "", FAIL)]),
    ("nhc", NHC_FAILURE, 1, [("check_fs_mount", "", FAIL)]),
    ("nhc", "ERROR Health check failed:  Actual CPU core count (2) is bad.", 1,
        [("failed", "", FAIL)]),
    ("nhc", NHC_FAILURE + NHC_FAILURE.replace("_mount", "_used"), 2,
        [("check_fs_mount", "", FAIL), ("check_fs_used", "", FAIL)]),
    ("nhc", 'ERROR:  nhc:  Health check failed:  Script timed out while executing "check_x".', 142,
        [("timed_out", "", UNKNOWN)]),
    ("nvrx", {"fail_count": 0}, 0, []),
    ("nvrx", {"fail_count": 2, "failed_checks": ["bcm_healthcheck", "ib"]}, 1,
        [("bcm_healthcheck", "", FAIL), ("ib", "", FAIL)]),
    ("nvrx", {"fail_count": 1, "failed_checks": "odd"}, None, [("failed", "", FAIL)]),
    ("nvrx", {"success": True, "output": '{"fail_count": 0}'}, None, []),
    ("nvrx", {"exitCode": 1, "output": '{"fail_count": 1}'}, None, [("failed", "", FAIL)]),
    ("hyperpod", RESULT, 0, [("replace", "", FAIL)]),
    ("hyperpod", RESULT.replace("Failed:replace", "Failed:none"), 0, [("failed", "", FAIL)]),
    ("hyperpod", RESULT.replace("Failed:replace", "Skipped:none"), 1, [("skipped", "", UNKNOWN)]),
    ("hyperpod", "noise\n" + RESULT.replace("Failed:replace", "Passed:none"), 0, []),
    ("hyperpod", RESULT.replace("2-3:", "2-3.ec2.internal:"), 0,
        [("replace", "", FAIL)]),
    ("hyperpod", RESULT + RESULT.replace("2-3", "2-4").replace("replace", "reboot"), 0,
        [("replace", "", FAIL)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "status", "expected"), CASES)
def test_a_format_finds_what_its_tool_states(name, text, status, expected):
    assert list_codes(read(name, text, status)) == expected


def test_every_word_of_every_format_is_tried():
    """A word that nothing reads would be a promise in the table alone."""
    tried = " ".join(json.dumps(text) + f" {status}" for _, text, status, _ in CASES)
    words = {word for name in ("health-validation", "dcgm-health", "gcm", "hyperpod")
        for word in FORMATS[name].levels}  # fmt: skip
    assert [word for word in sorted(words - {"UNKNOWN"}) if word not in tried] == []


def test_what_a_tool_says_of_the_fault_is_kept():
    (memory,) = [one for one in read("dcgm-health", DCGM_FAILURE) if one.code == "memory"]
    assert (memory.detail, memory.evidence) == ("Memory system: Warning", "a page is pending")
    (result,) = read("hyperpod", RESULT)
    assert (result.detail, result.evidence) == (
        "Failed, replace", "memory: GPU 3: row remap failure"
    )  # fmt: skip
    (xid,) = read("health-validation", {"overall_severity": "CRITICAL", "a": [HV_COMPONENT]}, 1)
    assert (xid.detail, xid.evidence) == ("gpu_xid_79, gpu_xid_48", "GPU-1")
    (nhc,) = read("nhc", NHC_FAILURE, 1)
    assert (nhc.detail, nhc.evidence) == (
        "NHC's check check_fs_mount", "check_fs_mount:  /scratch not mounted"
    )  # fmt: skip
    (gcm,) = read("gcm", "WARNING - link flaps. eth0 flapped 3 times\n", 1)
    assert (gcm.detail, gcm.evidence) == ("link flaps", "eth0 flapped 3 times")
    (nvrx,) = read("nvrx", {"fail_count": 3, "failed_checks": ["ib"]})
    assert nvrx.evidence == "fail_count is 3"


@pytest.mark.parametrize(
    ("name", "text", "status", "says"),
    [
        ("health-validation", "", 2, "reached no verdict: it ended with exit code 2"),
        ("health-validation", "", 0, "prints nothing"),
        ("health-validation", "[1]", 0, "prints no JSON object but '[1]'"),
        ("health-validation", '{"overall_severity": 3}', 0, "without an overall_severity"),
        ("health-validation", '{"overall_severity": "PASS"}', 1, "contradicts itself: PASS"),
        ("dcgm-health", "Error: Health watches not enabled.", 1, "exit code 1: Error: Health"),
        ("dcgm-health", "Error: Health watches not enabled.", 0, "prints no JSON object but"),
        ("dcgm-health", "{}", 0, "JSON without a body"),
        ("dcgm-health", '{"body": {"Overall Health": {}}}', 0, "without an Overall Health"),
        ("gcm", "Traceback (most recent call last):", None, "prints no line of a check"),
        ("gcm", "OK - xid errors", 127, "ended with exit code 127"),
        ("nhc", "nhc: command not found", None, "prints no line of NHC's"),
        ("nhc", "Usage", 10, "did not run its checks"),
        ("nhc", "", 143, "did not run its checks"),
        ("nvrx", "{}", 0, "without a fail_count"),
        ("nvrx", '{"fail_count": true}', 0, "without a fail_count"),
        ("nvrx", '{"fail_count": 0}', 4, "contradicts itself"),
        ("nvrx", '{"output": "{\\"fail_count\\": 0}"}', None, "contradicts itself"),
        ("nvrx", '{"error": "no such file", "output": ""}', None, "could not run: no such file"),
        ("hyperpod", "", 0, "prints no HEALTH_CHECK_RESULT of the host ip-10-1-2-3"),
        ("hyperpod", RESULT.replace("2-3", "2-4"), 0, "prints no HEALTH_CHECK_RESULT"),
        ("hyperpod", RESULT.replace("Failed", "Fine"), 0, "of no known form: 'Fine:replace'"),
        ("hyperpod", RESULT.replace("Failed", "Passed"), 0, "no known form: 'Passed:replace'"),
        ("hyperpod", RESULT.replace("replace", "format"), 0, "no known form: 'Failed:format'"),
        *((name, "", -9, "was ended by signal 9") for name in FORMAT_NAMES),
    ],
)
def test_output_in_no_known_form_is_no_verdict(name, text, status, says):
    with pytest.raises(CheckResultUnknownError) as caught:
        read(name, text, status)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 256


WORDS = sorted({word for form in FORMATS.values() for word in form.levels})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.text(max_size=8)
        | st.sampled_from(
            ["body", "Overall Health", "value", "children", "Errors", "overflow", "GPU",
             "overall_severity", "max_severity", "category", "check_ids", "fail_count",
             "failed_checks", "output", "success", "error"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
LINES = st.lists(
    st.sampled_from([RESULT, NHC_FAILURE, "CRITICAL - a. b", "ERROR Health check failed: \x1b[2J"])
    | st.text(max_size=40),
    max_size=5,
).map("\n".join)


@given(
    st.sampled_from(FORMAT_NAMES), VALUES.map(json.dumps) | LINES, st.none() | st.integers(-9, 255)
)
def test_hostile_output_is_a_bounded_finding_or_no_verdict(name, text, status):
    try:
        found = read(name, text, status)
    except CheckResultUnknownError:
        return
    assert len(found) <= MAX_FINDINGS
    assert len({(one.code, one.device) for one in found}) == len(found)
    for one in found:
        assert one.verdict is not DeviceVerdict.OK
        assert one.code
        assert one.code.isascii()
        assert len(one.code) <= 64
        assert max(len(one.device), len(one.detail)) <= MAX_WORD
        assert all(char.isprintable() or ord(char) > 0x9F for char in one.detail + one.evidence)


@pytest.mark.parametrize("name", ["health-validation", "dcgm-health"])
@given(word=st.text())
def test_a_word_without_a_row_is_never_in_order(name, word):
    document = {"health-validation": {"overall_severity": word}, "dcgm-health": make_dcgm(word)}
    found = read(name, document[name], 0)
    expected = FORMATS[name].levels.get(word, UNKNOWN)
    assert [one.verdict for one in found] == ([] if expected is DeviceVerdict.OK else [expected])


def test_thousands_of_failures_are_the_worst_few():
    gpus = {f"gpu{n}": {"SM system": make_system("Warning")} for n in range(500)}
    gpus["gpu900"] = {"SM system": make_system("Failure")}
    found = read("dcgm-health", make_dcgm("Failure", **gpus))
    assert len(found) == MAX_FINDINGS
    assert list_codes(found)[0] == ("sm", "GPU 900", FAIL)


def test_a_deep_document_is_no_verdict():
    for name in ("health-validation", "dcgm-health", "nvrx"):
        with pytest.raises(CheckResultUnknownError):
            read(name, '{"a":' * 30000, 0)


def test_the_ranks_put_a_failure_above_what_is_unknown():
    ranks = [rank_verdict_severity(one) for one in (DeviceVerdict.OK, NOTE, WARN, UNKNOWN, FAIL)]
    assert ranks == sorted(ranks)


def test_the_command_and_the_page_name_the_same_formats():
    assert report_command.FORMAT_NAMES == FORMAT_NAMES == tuple(FORMATS)
    page = DOCS.read_text()
    for name, form in FORMATS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        cells = row.split("|")
        assert form.tool in cells[2]
        for word, verdict in form.levels.items():
            assert f"{word} → {verdict}" in cells[3], (name, word)
        assert ("never seen" in cells[4]) is not form.seen


def test_no_terminal_obeys_what_a_tool_printed():
    (found,) = read("gcm", "CRITICAL - a\x1b[2Jb. c\x07d\n", 2)
    assert (found.code, found.detail, found.evidence) == ("a_2Jb", "a [2Jb", "c d")
