"""One sweep of each card: its fields, its return codes, and what nvidia-smi says of the same."""

import re
import time
from operator import attrgetter

import msgspec
import pytest

from hpctl.detection.check import CheckResultUnknownError, DriverHungError
from hpctl.detection.kernel.xid import normalize_pci_address
from hpctl.detection.nvml.client import NvmlClient
from hpctl.detection.nvml.pauses import STOPPED
from hpctl.detection.nvml.snapshot import GpuState, NvmlSnapshot
from hpctl.nodes.gpu_reset import GpuReset
from tests.detection.nvml.contract.beds import PATIENCE_S
from tests.detection.nvml.contract.smi_fields import AGREES, DIFFERS, ONLY_SMI, OTHER_SCALE, compare
from tests.detection.nvml.halts import stopped

pytestmark = [pytest.mark.contract, pytest.mark.slow, pytest.mark.integration]

MIB = 1024 * 1024
TIMES_STOPPED, STOPPED_S = 3, 3.0

# NVML_ERROR_NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH: the device
# or the driver does not say. INVALID_ARGUMENT is what a sensor or link that is not there answers.
DOES_NOT_SAY = frozenset({2, 3, 4, 13, 25})

RANGES: dict[str, tuple[float, float]] = {
    "recovery_action": (0, 7),
    "utilization": (0, 100),
    "sm_clock_mhz": (1, 5_000),
    "sm_clock_application_mhz": (1, 5_000),
    "sm_clock_default_mhz": (1, 5_000),
    "power_mw": (1_000, 3_000_000),
    "temperature_c": (1, 120),
    "temperature_slowdown_c": (50, 130),
    "temperature_margin_c": (-50, 120),
    "memory_temperature_c": (0, 130),
    "memory_temperature_max_c": (0, 150),
    "throttle.sw_thermal_ns": (0, 2**63),
    "throttle.hw_thermal_ns": (0, 2**63),
    "throttle.power_brake_ns": (0, 2**63),
    "remap.correctable": (0, 10_000),
    "remap.uncorrectable": (0, 10_000),
    "remap.banks_low": (0, 10_000),
    "remap.banks_none": (0, 10_000),
    "ecc.volatile_uncorrected": (0, 2**63),
    "ecc.volatile_corrected": (0, 2**63),
    "pcie.generation": (1, 7),
    "pcie.generation_max": (1, 7),
    "pcie.width": (1, 16),
    "pcie.width_max": (1, 16),
    "pcie.replays": (0, 2**63),
}
"""What a value may be, in its own unit, where the card gives one."""
ALWAYS = (
    "temperature_c",
    "power_mw",
    "sm_clock_mhz",
    "utilization",
    "pcie.width",
    "pcie.generation",
)
"""What every data-centre card since Pascal gives."""


def test_every_card_has_its_identity(looks, elements):
    assert looks.after.error is None
    assert len(looks.after.gpus) == len(elements) > 0
    for index, gpu in enumerate(looks.after.gpus):
        assert gpu.error is None
        assert gpu.index == index
        assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", gpu.uuid)
        assert re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.0", gpu.pci)
        assert gpu.name.startswith(("NVIDIA ", "Tesla "))
        assert re.fullmatch(r"[0-9A-F]{2}(\.[0-9A-F]{2}){4}", gpu.vbios)


def test_every_value_is_plausible(looks):
    for gpu in looks.after.gpus:
        for name, (least, most) in RANGES.items():
            value = attrgetter(name)(gpu)
            assert value is None or least <= value <= most, f"{name}: {value}"
        assert [name for name in ALWAYS if attrgetter(name)(gpu) is None] == []
        assert gpu.pcie.generation <= gpu.pcie.generation_max
        assert gpu.pcie.width <= gpu.pcie.width_max
        assert gpu.fabric is None or 0 <= gpu.fabric.state <= 3
        assert [link.link for link in gpu.nvlinks] == list(range(len(gpu.nvlinks)))


def test_the_times_are_the_monotonic_clocks(looks):
    for snapshot in (looks.before, looks.after):
        assert 0 < snapshot.slow_at <= snapshot.at <= time.monotonic()
    assert looks.before.at < looks.after.at


def test_the_childs_words_are_a_snapshot(trace):
    # With the strict reading that the agent uses: names, types and none beside them.
    decoded = msgspec.json.decode(msgspec.json.encode(trace["snapshot"]), type=NvmlSnapshot)
    assert msgspec.to_builtins(decoded)["gpus"][0].keys() >= trace["snapshot"]["gpus"][0].keys()


def test_a_call_that_fails_only_leaves_its_value_out(trace):
    failed = {label: codes for label, codes in trace["calls"].items() if not codes.keys() <= {"0"}}
    assert {int(code) for codes in failed.values() for code in codes} <= DOES_NOT_SAY | {0}, failed
    assert not any("error" in gpu for gpu in trace["snapshot"]["gpus"])


def test_a_field_that_fails_only_leaves_its_value_out(trace):
    codes = {field["nvmlReturn"] for field in trace["fields"].values()}
    assert codes <= DOES_NOT_SAY | {0}, trace["fields"]
    # The trace keeps the last card's answers.
    ecc = trace["snapshot"]["gpus"][-1]["ecc"]
    for number, name in ((29, "retired_sbe"), (30, "retired_dbe"), (31, "retired_pending")):
        answered = trace["fields"][f"{number}@0"]["nvmlReturn"] == 0
        assert (ecc[name] is not None) == answered


def test_links_that_are_not_there_are_left_out(trace):
    for gpu in trace["snapshot"]["gpus"]:
        for link in gpu["nvlinks"]:
            codes = trace["calls"][f"nvmlDeviceGetNvLinkState({link['link']})"]
            assert link["active"] is not None or "0" not in codes


def test_nvidia_smi_says_the_same_of_every_field(looks, elements):
    for before, element, after in zip(looks.before.gpus, elements, looks.after.gpus, strict=True):
        assert normalize_pci_address(element.findtext("pci/pci_bus_id")) == after.pci
        rows = compare(before, element, after)
        assert [row for row in rows if row.verdict in (DIFFERS, ONLY_SMI)] == []
        assert sum(row.verdict in AGREES for row in rows) >= 20
        scaled = {row.field for row in rows if row.verdict == OTHER_SCALE}
        assert scaled <= {"temperature_slowdown_c", "memory_temperature_max_c"}


def test_the_processes_are_those_of_nvidia_smi(looks, elements):
    for before, element, after in zip(looks.before.gpus, elements, looks.after.gpus, strict=True):
        smi = {
            int(process.findtext("pid")): int(process.findtext("used_memory").split()[0])
            for process in element.findall("processes/process_info")
            if process.findtext("type") == "C" and process.findtext("used_memory") != "N/A"
        }
        first, second = used_bytes(before), used_bytes(after)
        # Who came or went in between is in only one of them.
        assert first.keys() & second.keys() <= smi.keys() <= first.keys() | second.keys()
        for pid, mib in smi.items():
            used = [sweep[pid] for sweep in (first, second) if pid in sweep]
            assert min(used) // MIB - 1 <= mib <= max(used) // MIB + 1


def used_bytes(gpu: GpuState) -> dict[int, int]:
    """By process; those whose memory NVML does not say are left out."""
    return {
        process.pid: process.used_bytes
        for process in gpu.processes or ()
        if process.used_bytes is not None
    }


def test_the_list_that_a_reset_reads_is_of_the_same_cards(bed, looks):
    listed = {gpu.uuid: gpu for gpu in GpuReset(bed.root, lambda: None).list_gpus()}
    assert listed.keys() == {gpu.uuid for gpu in looks.after.gpus}
    for gpu in looks.after.gpus:
        one = listed[gpu.uuid]
        assert (one.pci, one.persistent, one.mig) == (gpu.pci, gpu.persistence, bool(gpu.mig))
        assert one.capability >= 3.0


def test_the_table_shows_every_card(bed, looks):
    table = bed.run_smi()
    for gpu in looks.after.gpus:
        assert f"0000{gpu.pci}".upper() in table


def test_a_stopped_child_is_not_a_hung_driver(bed):
    with bed.client(every_s=0.05, deadline_s=1.0) as client:
        pid = client.child_pid()
        for _ in range(TIMES_STOPPED):
            with stopped(pid):
                said = watch(client, STOPPED_S)
            assert said == {STOPPED}
            assert client.wait(PATIENCE_S).error is None
            assert client.child_pid() == pid


def watch(client: NvmlClient, seconds: float) -> set[str]:
    """All that the client says while it cannot tell; the driver must not be blamed."""
    said, end = set(), time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            client.newest()
        except DriverHungError as error:
            pytest.fail(f"a stopped child is no hung driver: {error}")
        except CheckResultUnknownError as error:
            said.add(str(error))
        time.sleep(0.05)
    return said
