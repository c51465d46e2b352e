"""The script of the stand-in for a card whose answers were recorded: values and return codes.

Sources: nvml-calls.json (each call of a sweep with its return code, each field with its code and
type, the snapshot), compared-load.json (the values under load, which NVML gave beside nvidia-smi),
smi-idle.xml and smi-load.xml (what the snapshot leaves out), all of tests/gpu/recordings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

import msgspec

from hpctl.detection.nvml.snapshot import NvmlSnapshot
from tests.gpu.recordings import read_json, read_text

NOT_OF_A_GPU = frozenset({"nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetFieldValues"})
RENAMED = {
    "nvmlDeviceGetPciInfo": "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetComputeRunningProcesses": "nvmlDeviceGetComputeRunningProcesses_v3",
}
"""Calls whose newest version of the C library pynvml makes."""
MOVES = {
    "82": "memory_temperature_c",
    "94": "pcie.replays",
    "142": "remap.correctable",
    "143": "remap.uncorrectable",
    "230": "recovery_action",
    "269": "throttle.sw_thermal_ns",
    "270": "throttle.hw_thermal_ns",
    "271": "throttle.power_brake_ns",
}
"""Fields whose value under load is taken from compared-load.json."""
UNSIGNED_LONG_LONG = 3


def answers(state: str) -> dict[str, str]:
    """Return what the card answers, by the stand-in's keys of one GPU; `state`: idle or load."""
    recording = read_json("nvml-calls.json")
    gpu = dict(_flatten(msgspec.to_builtins(snapshot(state).gpus[0]), ""))
    values = {**_numbers(gpu), **_structs(gpu, state), **_others(recording["extra"])}
    found = dict(values)
    for label, call in recording["calls"].items():
        name = label.partition("(")[0]
        if name in NOT_OF_A_GPU:
            continue
        (code,) = call["codes"]
        key = _key(label)
        found[key] = values[key] if code == "0" else f"!{code}"
    for label, field in recording["fields"].items():
        number = label.partition("@")[0]
        found[f"field{number}"] = _field(field, gpu.get(MOVES.get(number, "")))
    return found


def snapshot(state: str) -> NvmlSnapshot:
    """Return the sweep that was recorded idle, under load with the values that moved."""
    values = read_json("nvml-calls.json")["snapshot"]
    if state == "load":
        for row in read_json("compared-load.json"):
            value = row["hpctl"]
            # Two values where it moved while nvidia-smi looked: the second is taken.
            if isinstance(value, list) and row["field"] != "processes":
                value = value[-1]
            *groups, name = row["field"].split(".")
            place = values["gpus"][0]
            for group in groups:
                place = place[group]
            place[name] = value
    return msgspec.convert(values, NvmlSnapshot)


def _flatten(values: Mapping[str, Any], before: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            found += _flatten(value, f"{before}{name}.")
        else:
            found.append((before + name, value))
    return found


def _key(label: str) -> str:
    """`nvmlDeviceGetClockInfo(1)` is `nvmlDeviceGetClockInfo@1` in a script."""
    name, _, selector = label.rstrip(")").partition("(")
    renamed = RENAMED.get(name, name)
    return f"{renamed}@{selector}" if selector and renamed == name else renamed


def _numbers(gpu: Mapping[str, Any]) -> dict[str, str]:
    plain = {
        "nvmlDeviceGetName": "name",
        "nvmlDeviceGetUUID": "uuid",
        "nvmlDeviceGetVbiosVersion": "vbios",
        "nvmlDeviceGetApplicationsClock@1": "sm_clock_application_mhz",
        "nvmlDeviceGetClockInfo@1": "sm_clock_mhz",
        "nvmlDeviceGetCurrPcieLinkGeneration": "pcie.generation",
        "nvmlDeviceGetCurrPcieLinkWidth": "pcie.width",
        "nvmlDeviceGetDefaultApplicationsClock@1": "sm_clock_default_mhz",
        "nvmlDeviceGetMarginTemperature": "temperature_margin_c",
        "nvmlDeviceGetMaxPcieLinkGeneration": "pcie.generation_max",
        "nvmlDeviceGetMaxPcieLinkWidth": "pcie.width_max",
        "nvmlDeviceGetPowerUsage": "power_mw",
        "nvmlDeviceGetTemperature@0": "temperature_c",
        "nvmlDeviceGetTemperatureThreshold@1": "temperature_slowdown_c",
        "nvmlDeviceGetTemperatureThreshold@2": "memory_temperature_max_c",
        "nvmlDeviceGetTotalEccErrors@0,0": "ecc.volatile_corrected",
        "nvmlDeviceGetTotalEccErrors@1,0": "ecc.volatile_uncorrected",
    }
    return {key: str(gpu[name]) for key, name in plain.items()}


def _structs(gpu: Mapping[str, Any], state: str) -> dict[str, str]:
    xml = ElementTree.fromstring(read_text(f"smi-{state}.xml")).find("gpu")
    assert xml is not None
    histogram = [
        _number(xml.findtext(f".//row_remapper_histogram_{name}"))
        for name in ("max", "high", "partial", "low", "none")
    ]
    sram = [int(gpu["ecc.sram_threshold_exceeded"]), *[0] * 11]
    fabric = [gpu[f"fabric.{name}"] for name in ("state", "status", "clique", "health_mask")]
    processes = [f"{one['pid']}:{one['used_bytes']}" for one in gpu["processes"]]
    return {
        "nvmlDeviceGetPciInfo_v3": f"0000{gpu['pci']}".upper(),
        "nvmlDeviceGetHandleByIndex_v2": "0",
        "nvmlDeviceValidateInforom": "0",
        "nvmlDeviceGetPersistenceMode": str(int(gpu["persistence"])),
        "nvmlDeviceGetMigMode": f"{int(gpu['mig'])} {int(gpu['mig'])}",
        "nvmlDeviceGetUtilizationRates": (
            f"{gpu['utilization']} {_number(xml.findtext('utilization/memory_util'))}"
        ),
        "nvmlDeviceGetRowRemapperHistogram": _words(histogram),
        "nvmlDeviceGetSramEccErrorStatus": _words(sram),
        "nvmlDeviceGetGpuFabricInfoV": _words([*fabric, 0, 0]),
        "nvmlDeviceGetComputeRunningProcesses_v3": _words(processes),
        "nvmlDeviceGetSerial": xml.findtext("serial") or "",
    }


def _others(extra: Mapping[str, Any]) -> dict[str, str]:
    """Calls that no sweep makes."""
    memory = extra["nvmlDeviceGetMemoryInfo()"]
    return {
        "nvmlDeviceGetSupportedEventTypes": str(extra["nvmlDeviceGetSupportedEventTypes()"]),
        "nvmlDeviceGetEnforcedPowerLimit": str(extra["nvmlDeviceGetEnforcedPowerLimit()"]),
        "nvmlDeviceGetPcieReplayCounter": str(extra["nvmlDeviceGetPcieReplayCounter()"]),
        "nvmlDeviceGetEccMode": _words(extra["nvmlDeviceGetEccMode()"]),
        "nvmlDeviceGetRemappedRows": _words(extra["nvmlDeviceGetRemappedRows()"]),
        "nvmlDeviceGetMemoryInfo": _words([memory[name] for name in ("total", "free", "used")]),
    }


def _field(field: Mapping[str, Any], now: int | None) -> str:
    if field["nvmlReturn"] != 0:
        return f"!{field['nvmlReturn']}"
    value = field["value"] if now is None else now
    return f"{value}ull" if field["valueType"] == UNSIGNED_LONG_LONG else str(value)


def _number(text: str | None) -> int:
    match = re.match(r"\d+", text or "")
    assert match is not None, f"no number: {text!r}"
    return int(match[0])


def _words(values: list[Any]) -> str:
    return " ".join(str(value) for value in values)
