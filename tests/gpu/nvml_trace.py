"""Every NVML call of the agent's child, timed: the child's own classes, which note each call."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BESIDE = (
    ("nvmlDeviceGetMemoryInfo",),
    ("nvmlDeviceGetCurrentClocksEventReasons",),
    ("nvmlDeviceGetSupportedClocksEventReasons",),
    ("nvmlDeviceGetMaxClockInfo", 1),
    ("nvmlDeviceGetClockInfo", 0),
    ("nvmlDeviceGetClockInfo", 2),
    ("nvmlDeviceGetEnforcedPowerLimit",),
    ("nvmlDeviceGetPerformanceState",),
    ("nvmlDeviceGetPcieReplayCounter",),
    ("nvmlDeviceGetRemappedRows",),
    ("nvmlDeviceGetEccMode",),
    ("nvmlDeviceGetVirtualizationMode",),
    ("nvmlDeviceGetSupportedEventTypes",),
    ("nvmlDeviceGetTotalEnergyConsumption",),
    ("nvmlDeviceGetMinorNumber",),
    ("nvmlDeviceGetComputeRunningProcesses",),
    ("nvmlDeviceGetGraphicsRunningProcesses",),
    ("nvmlDeviceGetNumGpuCores",),
    ("nvmlDeviceGetComputeMode",),
)
"""What else the driver says of a GPU, which hpctl does not read: name and arguments."""


@dataclass
class Calls:
    """The calls by name and arguments: seconds of each, and return codes with their counts."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    codes: dict[str, dict[str, int]] = field(default_factory=dict)
    fields: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The newest answer of each field value, by `id@scope`."""

    def note(self, key: str, code: object, seconds: float) -> None:
        """Add one call."""
        self.seconds.setdefault(key, []).append(seconds)
        counts = self.codes.setdefault(key, {})
        counts[str(code)] = counts.get(str(code), 0) + 1

    def summary(self) -> dict[str, Any]:
        """Return times and codes of each call."""
        return {
            key: {**summarize(seconds), "codes": self.codes[key]}
            for key, seconds in self.seconds.items()
        }

    def errors(self) -> dict[str, dict[str, int]]:
        """Return the codes of the calls that ever failed."""
        return {key: codes for key, codes in self.codes.items() if set(codes) != {"0"}}


def summarize(seconds: Sequence[float]) -> dict[str, float]:
    """Return count, median, 95th percentile and extremes in milliseconds."""
    if not seconds:
        return {"n": 0}
    ordered = sorted(seconds)
    return {
        "n": len(ordered),
        "p50_ms": round(1000 * statistics.median(ordered), 3),
        "p95_ms": round(1000 * ordered[int(0.95 * (len(ordered) - 1))], 3),
        "max_ms": round(1000 * ordered[-1], 3),
        "min_ms": round(1000 * ordered[0], 3),
    }


def begin_nvml(driver: Any) -> None:
    """Start NVML as the agent's child does. Raises NvmlCallError."""
    from hpctl.detection.driver_files import find_nvml_library
    from hpctl.detection.nvml.child import start_nvml_session

    library = find_nvml_library(Path("/"), os.environ)
    start_nvml_session(driver, "" if library is None else str(library))


def begin_sweep() -> Any:
    """Return hpctl's Sweep over the real library, begun."""
    from hpctl.detection.nvml.child import AllGpusReader

    driver = noting_driver(Calls())
    begin_nvml(driver)
    return AllGpusReader(driver, slow_every_s=0.0)


def read_holders() -> dict[str, Any]:
    """Return the processes that hold GPU 0 and its used memory in MiB; NVML must have been begun.

    `used_mib` is None where the library does not say.
    """
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    try:
        used_mib = pynvml.nvmlDeviceGetMemoryInfo(handle).used >> 20
    except pynvml.NVMLError:
        used_mib = None
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return {"pids": sorted(process.pid for process in processes), "used_mib": used_mib}


def noting_driver(calls: Calls) -> Any:
    """Return hpctl's Driver over the real library, which notes every call in `calls`."""
    import pynvml

    from hpctl.detection.nvml import driver

    class NotingDriver(driver.NvmlDriver):
        def call(self, name: str, *arguments: object, **about: Any) -> Any:
            words = [str(word) for word in arguments if type(word) is int]
            is_short = about.get("gpu") is not None and 0 < len(words) < 3
            key = f"{name}({','.join(words)})" if is_short else name
            began = time.perf_counter()
            code: object = 0
            try:
                answer = super().call(name, *arguments, **about)
            except driver.NvmlCallError as failed:
                code = failed.code
                raise
            finally:
                calls.note(key, code, time.perf_counter() - began)
            if name == "nvmlDeviceGetFieldValues":
                _note_fields(calls, answer)
            return answer

    return NotingDriver(pynvml, driver.DriverCallsInFlight.create(), driver.SWEEP)


def _note_fields(calls: Calls, answer: Sequence[Any]) -> None:
    for value in answer:
        raw = value.value
        members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")
        number = getattr(raw, members[value.valueType], None) if value.valueType < 6 else None
        calls.fields[f"{value.fieldId}@{value.scopeId}"] = {
            "nvmlReturn": int(value.nvmlReturn),
            "valueType": int(value.valueType),
            "value": number if int(value.nvmlReturn) == 0 else None,
        }


def time_calls(work: Callable[[], object], count: int, limit_s: float) -> dict[str, float]:
    """Do some work `count` times or for `limit_s` seconds; return its times and processor time."""
    end = time.monotonic() + limit_s
    began_cpu = time.process_time()
    seconds: list[float] = []
    while len(seconds) < count and time.monotonic() < end:
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    cpu_ms = 1000 * (time.process_time() - began_cpu) / max(1, len(seconds))
    return {**summarize(seconds), "cpu_ms": round(cpu_ms, 3)}


def read_beside() -> dict[str, Any]:
    """Return what else the driver says of GPU 0; NVML must have been begun."""
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    found: dict[str, Any] = {}
    for name, *arguments in BESIDE:
        key = f"{name}({', '.join(map(str, arguments))})"
        try:
            answer = getattr(pynvml, name)(handle, *arguments)
        except Exception as error:  # noqa: BLE001  pynvml raises several unrelated classes
            found[key] = f"ERROR {error}"
            continue
        found[key] = _plain(answer)
    return found


def _plain(answer: Any) -> Any:
    if isinstance(answer, list):
        return [_plain(item) for item in answer]
    if hasattr(answer, "_fields_"):
        plain = {}
        for name, *_ in answer._fields_:
            with suppress(AttributeError):
                plain[name] = repr(getattr(answer, name))
        return plain
    return answer if isinstance(answer, int | float | str | bool) else repr(answer)
