"""Check `host.edac`: uncorrected memory errors."""

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    Judged,
    Limits,
    make_fail_observation,
)

# Uncorrected memory errors, as the kernel's EDAC drivers have counted them since boot.

FOLDER = "/sys/devices/system/edac/mc"


class EdacCounts(Struct, frozen=True):
    """One memory controller: uncorrected and corrected errors since boot."""

    controller: str
    uncorrected: int
    corrected: int


def read_edac_counts(machine: CheckedMachine) -> tuple[EdacCounts, ...]:
    """Read sysfs. Raises DeviceAbsentError where no EDAC driver has a controller (most virtual
    machines)."""
    try:
        places = sorted(p.name for p in machine.path(FOLDER).iterdir() if p.name[:2] == "mc")
    except OSError as error:
        raise DeviceAbsentError(f"no {FOLDER}") from error
    if not places:
        raise DeviceAbsentError("no memory controller is watched")
    return tuple(
        EdacCounts(
            name,
            _read_edac_error_count(machine, name, "ue_count"),
            _read_edac_error_count(machine, name, "ce_count"),
        )
        for name in places
    )


def _read_edac_error_count(machine: CheckedMachine, controller: str, name: str) -> int:
    text = machine.text(f"{FOLDER}/{controller}/{name}")
    try:
        return int(text)
    except ValueError as error:
        raise CheckResultUnknownError(f"{controller}/{name} holds {text[:32]!r}") from error


def judge_edac_errors(
    seen: tuple[EdacCounts, ...], before: tuple[EdacCounts, ...] | None, limits: Limits
) -> Judged:
    """Return `ue` for any uncorrected error. `host.memory` judges corrected ones, by their rate."""
    for counts in seen:
        if counts.uncorrected >= limits["uncorrected"]:
            detail = f"{counts.uncorrected} uncorrected memory errors since boot"
            yield make_fail_observation("ue", counts.controller, detail)
