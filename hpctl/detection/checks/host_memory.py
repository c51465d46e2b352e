"""Check `host.memory`: less than the instance type has, little left, in use without a job."""

import re

from msgspec import Struct
from msgspec.structs import replace

from hpctl.detection.check import (
    CheckedMachine,
    CheckFunctions,
    CheckResultUnknownError,
    DeviceAbsentError,
    Judged,
    Limits,
    make_fail_observation,
    make_warn_observation,
)
from hpctl.detection.checks.host_edac import EdacCounts, judge_edac_errors, read_edac_counts
from hpctl.detection.instance_shapes import get_instance_type_hardware
from hpctl.detection.procs import ProcessScanner

# Main memory: too little, almost none left, left in use, frequent corrected errors.

_LINE = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", re.MULTILINE)


class HostMemorySample(Struct, frozen=True):
    """MiB; `nominal_mib` is None for an instance type that is not in the table."""

    at: float
    total_mib: float
    available_mib: float
    nominal_mib: float | None
    errors: tuple[EdacCounts, ...] = ()
    jobs: bool | None = None
    """Whether Slurm runs a job here; None where it was not checked, because too little is in
    use."""

    @property
    def used_pct(self) -> float:
        """Return the share of memory that is not available, without caches, in percent."""
        return 100 * (1 - self.available_mib / self.total_mib) if self.total_mib else 0.0


_LOOK_PCT = 20.0
"""Memory in use above which all processes are searched for a job's."""


_scan = ProcessScanner()


def read_host_memory_sample(machine: CheckedMachine) -> HostMemorySample:
    """Read /proc/meminfo, and EDAC's counters where there are any. Raises CheckResultUnknownError,
    DeviceAbsentError."""
    found = {name: int(kib) / 1024 for name, kib in _LINE.findall(machine.text("/proc/meminfo"))}
    if len(found) < 2:
        raise CheckResultUnknownError("/proc/meminfo lacks MemTotal or MemAvailable")
    nominal = get_instance_type_hardware(machine.expected.instance_type).memory_gib
    try:
        errors = read_edac_counts(machine)
    except (DeviceAbsentError, CheckResultUnknownError):
        errors = ()
    seen = HostMemorySample(
        machine.monotonic(),
        found["MemTotal"],
        found["MemAvailable"],
        None if nominal is None else nominal * 1024.0,
        errors,
    )
    if seen.used_pct < _LOOK_PCT:
        return seen
    return replace(seen, jobs=_scan.is_slurm_step_running(machine))


def judge_host_memory_use(
    seen: HostMemorySample, before: HostMemorySample | None, limits: Limits
) -> Judged:
    """Return `short` against the instance type, `low` when almost none is left, `leftovers`,
    `ce-rate`."""
    if seen.nominal_mib is not None:
        percent = 100 * seen.total_mib / seen.nominal_mib
        if percent < limits["short_pct"]:
            detail = f"{seen.total_mib / 1024:.0f} of {seen.nominal_mib / 1024:.0f} GiB"
            yield make_fail_observation("short", "", detail)
    if seen.available_mib < limits["low_mib"]:
        yield make_warn_observation("low", "", f"{seen.available_mib:.0f} MiB available")
    if seen.jobs is False and seen.used_pct >= limits["idle_pct"]:
        yield make_warn_observation(
            "leftovers", "", f"{seen.used_pct:.0f} % of memory is in use, and no job runs"
        )
    if before is None or seen.at <= before.at:
        return
    earlier = {counts.controller: counts.corrected for counts in before.errors}
    minutes = (seen.at - before.at) / 60
    for counts in seen.errors:
        rate = (counts.corrected - earlier.get(counts.controller, counts.corrected)) / minutes
        if rate >= limits["corrected_per_min"]:
            yield make_warn_observation(
                "ce-rate", counts.controller, f"{rate:.0f} corrected memory errors a minute"
            )


CHECKS = {
    "host.edac": CheckFunctions(read_edac_counts, judge_edac_errors),
    "host.memory": CheckFunctions(read_host_memory_sample, judge_host_memory_use),
}
"""What the runner calls, by the check's name."""
