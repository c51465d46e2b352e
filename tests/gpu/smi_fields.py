"""NVML's values as hpctl's agent holds them beside what `nvidia-smi -q -x` prints.

The tags are those of driver R580 (tests/gpu/recordings/h200-580.159/smi-idle.xml).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tests.gpu.context import Context

NOTHING = frozenset(
    {
        "",
        "N/A",
        "[N/A]",
        "Not Supported",
        "Requested functionality has been deprecated",
        "Unknown Error",
    }
)
"""Where nvidia-smi has no value."""
BOOLEANS = {"yes": True, "enabled": True, "no": False, "disabled": False}
ACTIONS = {"none": 0, "gpu reset": 1, "node reboot": 2, "drain p2p": 3, "drain and reset": 4}
"""nvmlDeviceGetFieldValues, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""
FABRIC_STATES = {"not supported": 0, "not started": 1, "in progress": 2, "completed": 3}
FABRIC_STATUSES = {"success": 0}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

Kind = Literal[
    "text",
    "boolean",
    "number",
    "milli",
    "micro",
    "address",
    "uuid",
    "action",
    "state",
    "status",
    "corrected",
    "uncorrected",
    "shown",
]


@dataclass(frozen=True)
class Row:
    """One field: hpctl's name, the tags (the first that is there counts), how to read the text,
    and by how much both may differ because time passes between the two readings."""

    field: str
    tags: tuple[str, ...]
    kind: Kind
    tolerance: float = 0


# The slowdown and memory limits of newer drivers' "tlimit" tags are margins, and hpctl's are
# temperatures: they are not compared.
ROWS = (
    Row("uuid", ("uuid",), "text"),
    Row("name", ("product_name",), "text"),
    Row("vbios", ("vbios_version",), "text"),
    Row("pci", ("pci/pci_bus_id",), "address"),
    Row("inforom_corrupt", ("inforom_version/img_version",), "shown"),
    Row("persistence", ("persistence_mode",), "boolean"),
    Row("mig", ("mig_mode/current_mig",), "boolean"),
    Row("recovery_action", (".//gpu_recovery_action", ".//recovery_action"), "action"),
    Row("utilization", ("utilization/gpu_util",), "number", 3),
    Row("sm_clock_mhz", ("clocks/sm_clock",), "number", 30),
    Row("sm_clock_application_mhz", ("applications_clocks/graphics_clock",), "number"),
    Row("sm_clock_default_mhz", ("default_applications_clocks/graphics_clock",), "number"),
    Row(
        "power_mw",
        (
            "gpu_power_readings/instant_power_draw",
            "gpu_power_readings/power_draw",
            "gpu_power_readings/average_power_draw",
        ),
        "milli",
        3000,
    ),
    Row("temperature_c", ("temperature/gpu_temp",), "number", 1),
    Row("temperature_margin_c", ("temperature/gpu_temp_tlimit",), "number", 1),
    Row("temperature_slowdown_c", ("temperature/gpu_temp_slow_threshold",), "number"),
    Row("memory_temperature_c", ("temperature/memory_temp",), "number", 1),
    Row("memory_temperature_max_c", ("temperature/gpu_temp_max_mem_threshold",), "number"),
    Row(
        "throttle.sw_thermal_ns",
        (
            ".//clocks_event_reasons_counters_sw_therm_slowdown",
            ".//clocks_event_reasons_counters_sw_thermal_slowdown",
        ),
        "micro",
    ),
    Row(
        "throttle.hw_thermal_ns",
        (
            ".//clocks_event_reasons_counters_hw_therm_slowdown",
            ".//clocks_event_reasons_counters_hw_thermal_slowdown",
        ),
        "micro",
    ),
    Row("throttle.power_brake_ns", (".//clocks_event_reasons_counters_hw_power_brake",), "micro"),
    Row("remap.correctable", ("remapped_rows/remapped_row_corr",), "number"),
    Row("remap.uncorrectable", ("remapped_rows/remapped_row_unc",), "number"),
    Row("remap.pending", ("remapped_rows/remapped_row_pending",), "boolean"),
    Row("remap.failed", ("remapped_rows/remapped_row_failure",), "boolean"),
    Row("remap.banks_low", (".//row_remapper_histogram_low",), "number"),
    Row("remap.banks_none", (".//row_remapper_histogram_none",), "number"),
    Row(
        "ecc.volatile_uncorrected",
        ("ecc_errors/volatile/sram_uncorrectable_parity", "ecc_errors/volatile/sram_uncorrectable"),
        "uncorrected",
    ),
    Row("ecc.volatile_corrected", ("ecc_errors/volatile/sram_correctable",), "corrected"),
    Row("ecc.sram_threshold_exceeded", (".//sram_threshold_exceeded",), "boolean"),
    Row(
        "ecc.retired_sbe", ("retired_pages/multiple_single_bit_retirement/retired_count",), "number"
    ),
    Row("ecc.retired_dbe", ("retired_pages/double_bit_retirement/retired_count",), "number"),
    Row(
        "ecc.retired_pending",
        ("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
        "boolean",
    ),
    Row("pcie.generation", ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",), "number"),
    Row("pcie.generation_max", ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",), "number"),
    Row("pcie.width", ("pci/pci_gpu_link_info/link_widths/current_link_width",), "number"),
    Row("pcie.width_max", ("pci/pci_gpu_link_info/link_widths/max_link_width",), "number"),
    Row("pcie.replays", ("pci/replay_counter",), "number"),
    Row("fabric.state", ("fabric/state",), "state"),
    Row("fabric.status", ("fabric/status",), "status"),
    Row("fabric.clique", ("fabric/cliqueId", "fabric/clique_id"), "number"),
    Row("fabric.cluster_uuid", ("fabric/clusterUuid", "fabric/cluster_uuid"), "uuid"),
    Row("fabric.health_mask", ("fabric/health/summary", "fabric/health/bandwidth"), "shown"),
)


def compare(before: Mapping[str, Any], after: Mapping[str, Any], xml: str) -> list[dict[str, Any]]:
    """Return a row for each field: hpctl's value, nvidia-smi's, and a verdict.

    `before` and `after` are one GPU of hpctl's snapshot, read before and after nvidia-smi. Raises
    ElementTree.ParseError or ValueError for a text that is no such document.
    """
    document = ElementTree.fromstring(xml[xml.index("<nvidia_smi_log") :])
    gpu = document.find("gpu")
    if gpu is None:
        raise ValueError("nvidia-smi lists no GPU")
    return [_compare_row(row, before, after, gpu) for row in ROWS]


def _compare_row(
    row: Row, before: Mapping[str, Any], after: Mapping[str, Any], gpu: ElementTree.Element
) -> dict[str, Any]:
    tag = next((tag for tag in row.tags if gpu.findtext(tag) is not None), None)
    text = None if tag is None else (gpu.findtext(tag) or "").strip()
    ours = [_look_up(before, row.field), _look_up(after, row.field)]
    theirs = read_value(row.kind, text, gpu)
    return {
        "field": row.field,
        "verdict": judge(row, ours, theirs),
        "hpctl": ours[0] if ours[0] == ours[1] else ours,
        "smi": text,
        "smi_read": theirs,
        "place": tag,
    }


def _look_up(gpu: Mapping[str, Any], field: str) -> Any:
    value: Any = gpu
    for word in field.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(word)
    return value


def read_value(kind: Kind, text: str | None, gpu: ElementTree.Element) -> Any:
    """Return nvidia-smi's text as hpctl would hold it, None where it has no value."""
    if kind in ("corrected", "uncorrected"):
        return _sum_ecc(kind, gpu)
    if text is None or text in NOTHING:
        return None
    words = text.lower()
    if kind == "boolean":
        return BOOLEANS.get(words, text)
    if kind == "action":
        return ACTIONS.get(words.replace(" required", ""), text)
    if kind == "state":
        return FABRIC_STATES.get(words, text)
    if kind == "status":
        return FABRIC_STATUSES.get(words, text)
    if kind == "address":
        domain, _, rest = words.partition(":")
        return f"{int(domain, 16):04x}:{rest}"
    if kind == "uuid":
        plain = words.replace("-", "")
        return plain if plain.strip("0") else ""
    number = NUMBER.search(text)
    if kind in ("text", "shown") or number is None:
        return text
    value = float(number[0]) * (1 if kind == "number" else 1000)
    return int(value) if value == int(value) else value


def _sum_ecc(kind: Kind, gpu: ElementTree.Element) -> int | None:
    names = {
        "corrected": ("sram_correctable", "dram_correctable"),
        "uncorrected": (
            "sram_uncorrectable_parity",
            "sram_uncorrectable_secded",
            "sram_uncorrectable",
            "dram_uncorrectable",
        ),
    }[kind]
    texts = [gpu.findtext(f"ecc_errors/volatile/{name}") or "" for name in names]
    counts = [int(text) for text in texts if text.strip().isdigit()]
    return sum(counts) if counts else None


def judge(row: Row, ours: Sequence[Any], theirs: Any) -> str:
    """Return what two readings of hpctl and one of nvidia-smi amount to."""
    if row.kind == "shown":
        return "shown only"
    if all(value is None for value in ours):
        return "both none" if theirs is None else "hpctl has none"
    if theirs is None:
        return "smi has none"
    if theirs in ours:
        return "same"
    numbers = [value for value in (*ours, theirs) if isinstance(value, int | float)]
    if len(numbers) == 3:
        low, high = min(ours) - row.tolerance, max(ours) + row.tolerance
        if low <= theirs <= high:
            return "same (moved)"
    return "DIFFERS"


def count_verdicts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many rows have each verdict."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["verdict"]] = counts.get(row["verdict"], 0) + 1
    return counts


def compare_with_smi(context: Context, sweep: Any, label: str) -> None:
    """Compare the first GPU's values with nvidia-smi's, read between two sweeps."""
    before = sweep.read()["gpus"][0]
    smi = context.run(["nvidia-smi", "-q", "-x"], 15)
    after = sweep.read()["gpus"][0]
    context.keep(f"smi-{label}.xml", smi.out)
    context.record("smi_took_s", smi.took_s)
    try:
        rows = compare(before, after, smi.out)
    except (ElementTree.ParseError, ValueError) as error:
        context.say(f"nvidia-smi -q -x cannot be read: {error}; {smi.err[-200:]}")
        return
    context.keep_json(f"compared-{label}.json", rows)
    differing = [row for row in rows if row["verdict"] in ("DIFFERS", "hpctl has none")]
    context.record("compared", count_verdicts(rows))
    context.say(f"fields beside nvidia-smi's ({label}): {count_verdicts(rows)}")
    for row in differing:
        context.say(f"{row['field']} {row['verdict']}: hpctl {row['hpctl']}, smi {row['smi']}")
