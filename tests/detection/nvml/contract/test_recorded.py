"""The stand-ins answer as the H200 did: nvml-calls.json, compared-idle.json, compared-load.json."""

from xml.etree import ElementTree

import pytest

from hpctl.detection.nvml.snapshot import GpuState
from tests.detection.nvml.contract.beds import RECORDED, Bed, look, make_bed
from tests.detection.nvml.contract.smi_fields import AGREES, DIFFERS, OTHER_SCALE, Row, compare
from tests.gpu.recordings import read_json, read_text
from tests.stubs.nvml.recorded import snapshot

pytestmark = [pytest.mark.contract, pytest.mark.slow, pytest.mark.integration]


@pytest.fixture(scope="module", params=RECORDED)
def bed(request, tmp_path_factory) -> Bed:
    return make_bed(request.param, tmp_path_factory.mktemp("card"))


@pytest.fixture(scope="module")
def gpu(bed: Bed) -> GpuState:
    return look(bed).after.gpus[0]


def test_each_call_answers_with_its_code_and_each_field_with_its_type(bed):
    trace, recording = bed.trace(), read_json("nvml-calls.json")
    assert {label: set(codes) for label, codes in trace["calls"].items()} == {
        label: set(call["codes"]) for label, call in recording["calls"].items()
    }
    assert trace["fields"].keys() == recording["fields"].keys()
    for label, field in recording["fields"].items():
        seen = trace["fields"][label]
        assert seen["nvmlReturn"] == field["nvmlReturn"], label
        if field["nvmlReturn"] == 0:
            assert seen["valueType"] == field["valueType"], label


def test_the_child_reads_the_recorded_values(bed, gpu):
    assert gpu == snapshot(bed.recorded).gpus[0]


def test_nvidia_smi_prints_the_recording(bed):
    assert bed.run_smi("-q", "-x") == read_text(f"smi-{bed.recorded}.xml")
    assert bed.run_smi() == read_text("smi-plain-load.txt")


def test_the_two_agree_as_they_did(bed, gpu):
    element = ElementTree.fromstring(bed.run_smi("-q", "-x")).find("gpu")
    verdicts = {row.field: row.verdict for row in compare(gpu, element, gpu)}
    recorded = {row["field"]: row["verdict"] for row in read_json(f"compared-{bed.recorded}.json")}
    for field, verdict in verdicts.items():
        if field == "power_mw":
            # The recording compares the instant power of nvidia-smi; NVML gives the average.
            assert verdict in AGREES
        elif recorded[field] in AGREES:
            # The stand-in gives one value, where the card's moved between two sweeps.
            assert verdict in AGREES, field
        elif recorded[field] == DIFFERS:
            # The recording takes margins and temperatures for the same.
            assert verdict == OTHER_SCALE, field
        else:
            assert verdict == recorded[field], field
    # 33 of 35, of which `error` is no field of nvidia-smi; the two others are two scales of one.
    assert sum(verdict in AGREES for verdict in verdicts.values()) == 32
    assert list(verdicts.values()).count(OTHER_SCALE) == 2


def test_a_row_is_written_as_it_was_recorded(bed, gpu):
    """Recordings: compared-idle.json, compared-load.json."""
    element = ElementTree.fromstring(bed.run_smi("-q", "-x")).find("gpu")
    rows = {row.field: row.recording() for row in compare(gpu, element, gpu)}
    recorded = {row["field"]: row for row in read_json(f"compared-{bed.recorded}.json")}
    for field in ("uuid", "pci", "persistence", "mig", "pcie.width", "fabric.state"):
        assert rows[field] == {key: recorded[field][key] for key in rows[field]}


@pytest.mark.parametrize(
    ("field", "value"),
    [("pcie.replays", 4711), ("ecc.volatile_uncorrected", 1), ("recovery_action", 2)],
)
def test_a_difference_is_seen(bed, gpu, field, value):
    element = ElementTree.fromstring(bed.run_smi("-q", "-x")).find("gpu")
    places = {
        "pcie.replays": "pci/replay_counter",
        "ecc.volatile_uncorrected": "ecc_errors/volatile/dram_uncorrectable",
        "recovery_action": "gpu_recovery_action",
    }
    element.find(places[field]).text = {"recovery_action": "Node Reboot"}.get(field, str(value))
    differing: list[Row] = [r for r in compare(gpu, element, gpu) if r.verdict == DIFFERS]
    assert [(row.field, row.smi) for row in differing] == [(field, value)]
