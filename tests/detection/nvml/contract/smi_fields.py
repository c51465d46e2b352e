"""The fields that NVML and `nvidia-smi -q -x` both have, and how each says the same thing.

Sources of the places: `nvidia-smi -q -x` of driver 580.159.04 (smi-idle.xml and smi-load.xml of
tests/gpu/recordings) and, where two are given, of other drivers. The verdicts are the words of
compared-idle.json and compared-load.json there.
"""

import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any
from xml.etree.ElementTree import Element

from msgspec import Struct

from hpctl.detection.nvml.snapshot import GpuState

SAME, MOVED, DIFFERS = "same", "same (moved)", "DIFFERS"
AGREES = frozenset({SAME, MOVED})
OTHER_SCALE = "other scale"
"""nvidia-smi gives the margin to a threshold, NVML the temperature itself."""
NEITHER, ONLY_NVML, ONLY_SMI = "both none", "smi has none", "hpctl has none"

_NOTHING = frozenset(
    {
        "",
        "N/A",
        "[N/A]",
        "Not Supported",
        "Unknown Error",
        "Requested functionality has been deprecated",
    }
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_ACTIONS = {"none": 0, "gpu reset": 1, "reset": 1, "node reboot": 2, "reboot": 2, "drain p2p": 3,
            "drain and reset": 4}  # fmt: skip
_FABRIC_STATES = {"not supported": 0, "not started": 1, "in progress": 2, "completed": 3}
_FABRIC_STATUSES = {"success": 0}
_BOOLEANS = {"yes": True, "enabled": True, "no": False, "disabled": False}


def _text(text: str) -> str:
    return text


def _flag(text: str) -> bool | str:
    return _BOOLEANS.get(text.lower(), text)


def _number(text: str) -> float | str:
    match = _NUMBER.search(text)
    return float(match[0]) if match else text


def _thousands(text: str) -> float | str:
    """Watts as milliwatts, microseconds as nanoseconds."""
    number = _number(text)
    return number if isinstance(number, str) else 1000 * number


def _address(text: str) -> str:
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _action(text: str) -> int | str:
    return _ACTIONS.get(text.lower().removesuffix(" required"), text)


def _fabric_state(text: str) -> int | str:
    return _FABRIC_STATES.get(text.lower(), text)


def _fabric_status(text: str) -> int | str:
    return _FABRIC_STATUSES.get(text.lower(), text)


def _uuid(text: str) -> str:
    plain = text.replace("-", "").lower()
    return plain if plain.strip("0") else ""


class Field(Struct, frozen=True):
    """`name` in hpctl's snapshot of a GPU; `places` in the XML, of which the first that is there
    counts. `tolerance` is for what moves between two looks."""

    name: str
    places: tuple[str, ...]
    read: Callable[[str], Any]
    tolerance: float = 0.0
    scaled: str = ""
    """The place whose number is on another scale."""


class Row(Struct, frozen=True):
    """One field on both sides: `nvml` has the values of both sweeps."""

    field: str
    verdict: str
    nvml: list[Any]
    smi: Any
    text: str | None = None
    """What nvidia-smi prints, None where the document has no such place."""
    place: str | None = None

    def recording(self) -> dict[str, Any]:
        """Return the row as compared-idle.json has it: one value where it did not move."""
        before, after = self.nvml
        return {
            "field": self.field,
            "verdict": self.verdict,
            "hpctl": before if before == after else self.nvml,
            "smi": self.text,
            "smi_read": self.smi,
            "place": self.place,
        }


_LINK = "pci/pci_gpu_link_info"
_REASONS = ".//clocks_event_reasons_counters"
FIELDS = (
    Field("uuid", ("uuid",), _text),
    Field("name", ("product_name",), _text),
    Field("vbios", ("vbios_version",), _text),
    Field("pci", ("pci/pci_bus_id",), _address),
    Field("persistence", ("persistence_mode",), _flag),
    Field("mig", ("mig_mode/current_mig",), _flag),
    Field("recovery_action", ("gpu_recovery_action", ".//recovery_action"), _action),
    Field("utilization", ("utilization/gpu_util",), _number, 50),
    Field("sm_clock_mhz", ("clocks/sm_clock",), _number, 600),
    Field("sm_clock_application_mhz", ("applications_clocks/graphics_clock",), _number),
    Field("sm_clock_default_mhz", ("default_applications_clocks/graphics_clock",), _number),
    Field(
        "power_mw",
        ("gpu_power_readings/average_power_draw", "gpu_power_readings/power_draw"),
        _thousands,
        50_000,
    ),
    Field("temperature_c", ("temperature/gpu_temp",), _number, 5),
    Field("temperature_margin_c", ("temperature/gpu_temp_tlimit",), _number, 5),
    Field(
        "temperature_slowdown_c",
        ("temperature/gpu_temp_slow_threshold", "temperature/gpu_temp_slow_tlimit_threshold"),
        _number,
        scaled="temperature/gpu_temp_slow_tlimit_threshold",
    ),
    Field("memory_temperature_c", ("temperature/memory_temp",), _number, 5),
    Field(
        "memory_temperature_max_c",
        ("temperature/gpu_temp_max_mem_threshold", "temperature/gpu_temp_max_mem_tlimit_threshold"),
        _number,
        scaled="temperature/gpu_temp_max_mem_tlimit_threshold",
    ),
    Field(
        "throttle.sw_thermal_ns",
        (f"{_REASONS}_sw_therm_slowdown", f"{_REASONS}_sw_thermal_slowdown"),
        _thousands,
        1e9,
    ),
    Field(
        "throttle.hw_thermal_ns",
        (f"{_REASONS}_hw_therm_slowdown", f"{_REASONS}_hw_thermal_slowdown"),
        _thousands,
        1e9,
    ),
    Field("throttle.power_brake_ns", (f"{_REASONS}_hw_power_brake",), _thousands, 1e9),
    Field("remap.correctable", ("remapped_rows/remapped_row_corr",), _number),
    Field("remap.uncorrectable", ("remapped_rows/remapped_row_unc",), _number),
    Field("remap.pending", ("remapped_rows/remapped_row_pending",), _flag),
    Field("remap.failed", ("remapped_rows/remapped_row_failure",), _flag),
    Field("remap.banks_low", (".//row_remapper_histogram_low",), _number),
    Field("remap.banks_none", (".//row_remapper_histogram_none",), _number),
    Field("ecc.sram_threshold_exceeded", (".//sram_threshold_exceeded",), _flag),
    Field("ecc.retired_sbe", (".//multiple_single_bit_retirement/retired_count",), _number),
    Field("ecc.retired_dbe", (".//double_bit_retirement/retired_count",), _number),
    Field(
        "ecc.retired_pending",
        ("retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
        _flag,
    ),
    Field("pcie.generation", (f"{_LINK}/pcie_gen/current_link_gen",), _number, 4),
    Field("pcie.generation_max", (f"{_LINK}/pcie_gen/max_link_gen",), _number),
    Field("pcie.width", (f"{_LINK}/link_widths/current_link_width",), _number),
    Field("pcie.width_max", (f"{_LINK}/link_widths/max_link_width",), _number),
    Field("pcie.replays", ("pci/replay_counter",), _number, 10),
    Field("fabric.state", ("fabric/state",), _fabric_state),
    Field("fabric.status", ("fabric/status",), _fabric_status),
    Field("fabric.clique", ("fabric/cliqueId", "fabric/clique_id"), _number),
    Field("fabric.cluster_uuid", ("fabric/clusterUuid", "fabric/cluster_uuid"), _uuid),
)
_ECC = {
    "ecc.volatile_corrected": ("sram_correctable", "dram_correctable"),
    "ecc.volatile_uncorrected": (
        "sram_uncorrectable",
        "sram_uncorrectable_parity",
        "sram_uncorrectable_secded",
        "dram_uncorrectable",
    ),
}
"""NVML gives the sum of what nvidia-smi names one by one."""


def compare(before: GpuState, xml: Element, after: GpuState) -> list[Row]:
    """Hold a card's two sweeps against what nvidia-smi said of it in between."""
    rows = [_compare(field, before, xml, after) for field in FIELDS]
    for name, parts in _ECC.items():
        places = [f"ecc_errors/volatile/{part}" for part in parts]
        found = [place for place in places if (xml.findtext(place) or "").isdecimal()]
        smi = float(sum(int(xml.findtext(place) or 0) for place in found)) if found else None
        values = [_value(before, name), _value(after, name)]
        text = None if smi is None else f"{smi:.0f}"
        verdict = _verdict(values, smi, 0.0)
        rows.append(Row(name, verdict, values, smi, text, " + ".join(found) or None))
    return rows


def _compare(field: Field, before: GpuState, xml: Element, after: GpuState) -> Row:
    values = [_value(before, field.name), _value(after, field.name)]
    for place in field.places:
        text = xml.findtext(place)
        if text is None:
            continue
        text = text.strip()
        smi = None if text in _NOTHING else field.read(text)
        verdict = _verdict(values, smi, field.tolerance)
        if place == field.scaled and None not in (*values, smi):
            verdict = OTHER_SCALE
        return Row(field.name, verdict, values, smi, text, place)
    return Row(field.name, _verdict(values, None, field.tolerance), values, None)


def _value(gpu: GpuState, name: str) -> Any:
    if name.startswith("fabric.") and gpu.fabric is None:
        return None
    return attrgetter(name)(gpu)


def _verdict(values: list[Any], smi: Any, tolerance: float) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NEITHER if smi is None else ONLY_SMI
    if smi is None:
        return ONLY_NVML
    if smi in known:
        return SAME
    if isinstance(smi, str) or any(isinstance(value, str) for value in known):
        return DIFFERS
    return MOVED if min(known) - tolerance <= smi <= max(known) + tolerance else DIFFERS
