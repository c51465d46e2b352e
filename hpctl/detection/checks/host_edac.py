"""Check `host.edac`: uncorrected memory errors."""

from msgspec import Struct

from hpctl.detection.check import CannotTell, Judged, Limits, Machine, NotHere, fail

# Uncorrected memory errors, as the kernel's EDAC drivers have counted them since boot.

FOLDER = "/sys/devices/system/edac/mc"


class Counts(Struct, frozen=True):
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
) -> Judged:
    """`ue` for any uncorrected error. Corrected ones are `host.memory`'s, by their rate."""
    for counts in seen:
        if counts.uncorrected >= limits["uncorrected"]:
            detail = f"{counts.uncorrected} uncorrected memory errors since boot"
            yield fail("ue", counts.controller, detail)
