"""NVML's values beside nvidia-smi's, by what a real H200 answered to both."""

from tests.gpu.recordings import read_json, read_text
from tests.gpu.smi_fields import compare, count_verdicts


def test_the_values_of_a_real_card_agree() -> None:
    """Recordings: nvml-calls.json, smi-idle.xml."""
    gpu = read_json("nvml-calls.json")["snapshot"]["gpus"][0]
    rows = compare(gpu, gpu, read_text("smi-idle.xml"))
    assert count_verdicts(rows) == {
        "same": 31,
        "same (moved)": 1,
        "shown only": 2,
        "both none": 3,
        "smi has none": 6,
    }


def test_a_value_that_differs_is_named() -> None:
    """Recordings: nvml-calls.json, smi-idle.xml."""
    gpu = read_json("nvml-calls.json")["snapshot"]["gpus"][0]
    other = {**gpu, "remap": {**gpu["remap"], "uncorrectable": 1}, "vbios": None}
    rows = {row["field"]: row for row in compare(other, other, read_text("smi-idle.xml"))}
    assert rows["remap.uncorrectable"]["verdict"] == "DIFFERS"
    assert (rows["remap.uncorrectable"]["hpctl"], rows["remap.uncorrectable"]["smi"]) == (1, "0")
    assert rows["vbios"]["verdict"] == "hpctl has none"
