"""Check `host.nvme`: NVMe controllers that are dead, in a reset that does not end, or too hot."""

from pathlib import Path

from msgspec import Struct

from hpctl.detection.check import Judged, Limits, Machine, NotHere, fail, warn

# NVMe controllers as the kernel sees them: their state, and their own temperature alarm.

NVME = "/sys/class/nvme"


_DEAD = frozenset({"dead", "deleting", "deleting (no IO)"})


class Controller(Struct, frozen=True):
    """One controller on PCIe: the driver's word for its state; `hot` by its own threshold."""

    name: str
    model: str
    state: str
    hot: bool = False


def gather_nvme(machine: Machine) -> tuple[Controller, ...]:
    """Read sysfs, which never waits for the device but for its temperature, where it has one.

    Raises NotHere where there is no NVMe. Controllers reached over a network are left out:
    that they connect anew is no fault of this machine.
    """
    folder = machine.path(NVME)
    try:
        places = sorted(place for place in folder.iterdir() if _word(place / "state"))
    except OSError as error:
        raise NotHere(f"no {NVME}") from error
    found = tuple(
        Controller(place.name, _word(place / "model"), state, state == "live" and _hot(place))
        for place in places
        if _word(place / "transport") in ("pcie", "") and (state := _word(place / "state"))
    )
    if not found:
        raise NotHere("no NVMe controller")
    return found


def _hot(place: Path) -> bool:
    """Its alarm; asking costs the device a command, and only some have the file."""
    return any(_word(path) == "1" for path in place.glob("hwmon*/temp1_alarm"))


def _word(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def judge_nvme(
    seen: tuple[Controller, ...], before: tuple[Controller, ...] | None, limits: Limits
) -> Judged:
    """`dead`, `not-live` for a reset that does not end, `hot`."""
    for one in seen:
        detail = f"{one.model}: {one.state}".removeprefix(": ")
        if one.state in _DEAD:
            yield fail("dead", one.name, detail)
        elif one.state != "live":
            yield warn("not-live", one.name, detail)
        elif one.hot:
            yield warn("hot", one.name, f"{one.model}: over its threshold")
