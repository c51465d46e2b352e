"""Main memory: too little, hardly any left, left in use, corrected and uncorrected errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hpctl.agent.check import CannotTell, Functions, Limits, Machine, NotHere, Observation
from hpctl.agent.checks.check_host_disk import STEP
from hpctl.agent.procs import Scan
from hpctl.core.model import Verdict

# --- host.edac ----------
# Uncorrected memory errors, as the kernel's EDAC drivers have counted them since boot.

FOLDER = "/sys/devices/system/edac/mc"


@dataclass(frozen=True, slots=True)
class Counts:
    """One memory controller: uncorrected and corrected errors since boot."""

    controller: str
    uncorrected: int
    corrected: int


def gather_edac(machine: Machine) -> tuple[Counts, ...]:
    """Read sysfs. Raises NotHere where no EDAC driver has a controller (most virtual machines)."""
    try:
        places = sorted(p.name for p in machine.path(FOLDER).iterdir() if p.name[:2] == "mc")
    except OSError as error:
        raise NotHere(f"no {FOLDER}") from error
    if not places:
        raise NotHere("no memory controller is watched")
    return tuple(
        Counts(name, _number(machine, name, "ue_count"), _number(machine, name, "ce_count"))
        for name in places
    )


def _number(machine: Machine, controller: str, name: str) -> int:
    text = machine.text(f"{FOLDER}/{controller}/{name}")
    try:
        return int(text)
    except ValueError as error:
        raise CannotTell(f"{controller}/{name} holds {text[:32]!r}") from error


def judge_edac(
    seen: tuple[Counts, ...], before: tuple[Counts, ...] | None, limits: Limits
) -> Iterable[Observation]:
    """`ue` for any uncorrected error. Corrected ones are `host.memory`'s, by their rate."""
    for counts in seen:
        if counts.uncorrected >= limits["uncorrected"]:
            detail = f"{counts.uncorrected} uncorrected memory errors since boot"
            yield Observation("ue", counts.controller, Verdict.FAIL, detail)


# --- host.memory ----------
# Main memory: too little, hardly any left, left in use, corrected errors in a stream.

# GiB as Amazon EC2 lists them for each instance type.
NOMINAL_GIB = {
    "g5.48xlarge": 768,
    "g6.48xlarge": 768,
    "g6e.48xlarge": 1536,
    "p4d.24xlarge": 1152,
    "p4de.24xlarge": 1152,
    "p5.48xlarge": 2048,
    "p5e.48xlarge": 2048,
    "p5en.48xlarge": 2048,
    "p6-b200.48xlarge": 2048,
    "trn1.32xlarge": 512,
    "trn1n.32xlarge": 512,
    "trn2.48xlarge": 2048,
}
_LINE = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """MiB; `nominal_mib` is None for an instance type that is not in the table."""

    at: float
    total_mib: float
    available_mib: float
    nominal_mib: float | None
    errors: tuple[Counts, ...] = ()
    jobs: bool | None = None
    """Whether Slurm runs a job here; None where nobody looked, for too little is in use."""

    @property
    def used_pct(self) -> float:
        """Of all memory what cannot be had, caches not counted."""
        return 100 * (1 - self.available_mib / self.total_mib) if self.total_mib else 0.0


_LOOK_PCT = 20.0
"""Memory in use from which on it is worth a look at all processes for a job's."""
_scan = Scan()


def gather_memory(machine: Machine) -> Sample:
    """/proc/meminfo, and EDAC's counters where there are any. Raises CannotTell, NotHere."""
    found = {name: int(kib) / 1024 for name, kib in _LINE.findall(machine.text("/proc/meminfo"))}
    if len(found) < 2:
        raise CannotTell("/proc/meminfo lacks MemTotal or MemAvailable")
    nominal = NOMINAL_GIB.get(machine.expected.instance_type.removeprefix("ml."))
    try:
        errors = gather_edac(machine)
    except (NotHere, CannotTell):
        errors = ()
    seen = Sample(
        machine.monotonic(),
        found["MemTotal"],
        found["MemAvailable"],
        None if nominal is None else nominal * 1024.0,
        errors,
    )
    if seen.used_pct < _LOOK_PCT:
        return seen
    return replace(seen, jobs=any(task.comm == STEP for task in _scan.tasks(machine)))


def judge_memory(seen: Sample, before: Sample | None, limits: Limits) -> Iterable[Observation]:
    """`short` against the instance type, `low` when almost none is left, `leftovers`, `ce-rate`."""
    if seen.nominal_mib is not None:
        percent = 100 * seen.total_mib / seen.nominal_mib
        if percent < limits["short_pct"]:
            detail = f"{seen.total_mib / 1024:.0f} of {seen.nominal_mib / 1024:.0f} GiB"
            yield Observation("short", verdict=Verdict.FAIL, detail=detail)
    if seen.available_mib < limits["low_mib"]:
        detail = f"{seen.available_mib:.0f} MiB available"
        yield Observation("low", verdict=Verdict.WARN, detail=detail)
    if seen.jobs is False and seen.used_pct >= limits["idle_pct"]:
        detail = f"{seen.used_pct:.0f} % of memory is in use, and no job runs"
        yield Observation("leftovers", verdict=Verdict.WARN, detail=detail)
    if before is None or seen.at <= before.at:
        return
    earlier = {counts.controller: counts.corrected for counts in before.errors}
    minutes = (seen.at - before.at) / 60
    for counts in seen.errors:
        rate = (counts.corrected - earlier.get(counts.controller, counts.corrected)) / minutes
        if rate >= limits["corrected_per_min"]:
            detail = f"{rate:.0f} corrected memory errors a minute"
            yield Observation("ce-rate", counts.controller, Verdict.WARN, detail)


CHECKS = {
    "host.edac": Functions(gather_edac, judge_edac),
    "host.memory": Functions(gather_memory, judge_memory),
}
"""What the runner calls, by the check's name."""
