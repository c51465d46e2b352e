"""Check `host.nvme`: NVMe controllers that are dead, in a reset that does not end, or too hot."""

from pathlib import Path

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    DeviceAbsentError,
    Judged,
    Limits,
    make_fail_observation,
    make_warn_observation,
)

# NVMe controllers as the kernel sees them: their state, and their own temperature alarm.

NVME = "/sys/class/nvme"


_DEAD = frozenset({"dead", "deleting", "deleting (no IO)"})


class NvmeController(Struct, frozen=True):
    """One controller on PCIe: the driver's name of its state; `hot` by its own threshold."""

    name: str
    model: str
    state: str
    hot: bool = False


def read_nvme_controllers(machine: CheckedMachine) -> tuple[NvmeController, ...]:
    """Read sysfs, which never waits for the device except for its temperature, where it has one.

    Raises DeviceAbsentError where there is no NVMe. Controllers reached over a network are left
    out: a reconnect is not a fault of this machine.
    """
    folder = machine.path(NVME)
    try:
        places = sorted(place for place in folder.iterdir() if _read_sysfs_value(place / "state"))
    except OSError as error:
        raise DeviceAbsentError(f"no {NVME}") from error
    found = tuple(
        NvmeController(
            place.name,
            _read_sysfs_value(place / "model"),
            state,
            state == "live" and _is_nvme_temperature_alarm_on(place),
        )
        for place in places
        if _read_sysfs_value(place / "transport") in ("pcie", "")
        and (state := _read_sysfs_value(place / "state"))
    )
    if not found:
        raise DeviceAbsentError("no NVMe controller")
    return found


def _is_nvme_temperature_alarm_on(place: Path) -> bool:
    """Return whether the alarm is on. Reading it costs the device a command, and only some have the
    file."""
    return any(_read_sysfs_value(path) == "1" for path in place.glob("hwmon*/temp1_alarm"))


def _read_sysfs_value(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def judge_nvme_controllers(
    seen: tuple[NvmeController, ...], before: tuple[NvmeController, ...] | None, limits: Limits
) -> Judged:
    """Return `dead`, `not-live` for a reset that does not end, `hot`."""
    for one in seen:
        detail = f"{one.model}: {one.state}".removeprefix(": ")
        if one.state in _DEAD:
            yield make_fail_observation("dead", one.name, detail)
        elif one.state != "live":
            yield make_warn_observation("not-live", one.name, detail)
        elif one.hot:
            yield make_warn_observation("hot", one.name, f"{one.model}: over its threshold")
