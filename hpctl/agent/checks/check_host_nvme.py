"""NVMe disks: the kernel's view of their controllers, and their own word on their health."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hpctl.agent.check import CannotTell, Functions, Limits, Machine, NotHere, Observation
from hpctl.agent.probe import Answer, Probes
from hpctl.core.model import Verdict

# --- host.nvme ----------
# NVMe controllers as the kernel sees them: their state, and their own temperature alarm.

FOLDER = "/sys/class/nvme"
_DEAD = frozenset({"dead", "deleting", "deleting (no IO)"})


@dataclass(frozen=True, slots=True)
class Controller:
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
    folder = machine.path(FOLDER)
    try:
        places = sorted(place for place in folder.iterdir() if _word(place / "state"))
    except OSError as error:
        raise NotHere(f"no {FOLDER}") from error
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
) -> Iterable[Observation]:
    """`dead`, `not-live` for a reset that does not end, `hot`."""
    for one in seen:
        detail = f"{one.model}: {one.state}".removeprefix(": ")
        if one.state in _DEAD:
            yield Observation("dead", one.name, Verdict.FAIL, detail)
        elif one.state != "live":
            yield Observation("not-live", one.name, Verdict.WARN, detail)
        elif one.hot:
            yield Observation("hot", one.name, Verdict.WARN, f"{one.model}: over its threshold")


# --- host.nvme.smart ----------
# What NVMe disks say of their own health (`critical_warning`), where nvme-cli is installed.
#
# It costs each disk an administration command, so it is asked for rarely and in a child.

COMMAND = ("nvme", "smart-log", "--output-format=json")
DEADLINE_S = 10.0
WAIT_S = 2.0
MOST = 32

# The bits of Critical Warning (NVM Express base specification, SMART / Health log page).
_SPARE, _HEAT, _WORN, _READ_ONLY, _BACKUP, _PMR = (1 << bit for bit in range(6))
WORDS = {
    _SPARE: "spare space below its threshold",
    _HEAT: "temperature beyond its threshold",
    _WORN: "reliability degraded by media or internal errors",
    _READ_ONLY: "media is read-only",
    _BACKUP: "backup of the volatile memory has failed",
    _PMR: "persistent memory region is read-only",
}


@dataclass(frozen=True, slots=True)
class Disk:
    """One controller's critical warning, as it stands in its log."""

    name: str
    warning: int


_probes = Probes(DEADLINE_S)


def gather_smart(machine: Machine) -> tuple[Disk, ...]:
    """Ask each controller. Raises NotHere without NVMe, nvme-cli or leave; CannotTell."""
    try:
        live = [
            place.name
            for place in sorted(machine.path(FOLDER).iterdir())
            if machine.text(f"{FOLDER}/{place.name}/state") == "live"
        ][:MOST]
    except OSError as error:
        raise NotHere(f"no {FOLDER}") from error
    if not live:
        raise NotHere("no live NVMe controller")
    said = _probes.ask({name: (*COMMAND, f"/dev/{name}") for name in live}, _probes.wait_s(WAIT_S))
    found = [
        Disk(name, warning)
        for name, answer in said.items()
        if isinstance(answer, Answer) and (warning := parse(answer)) is not None
    ]
    if not found and any(isinstance(a, Answer) and refused(a) for a in said.values()):
        # Not allowed, as in the shipped unit, is not blind: it would leave the node Unknown.
        raise NotHere("asking a disk for its health needs CAP_SYS_ADMIN")
    if not found:
        raise CannotTell("no NVMe controller told its health")
    return tuple(found)


def refused(answer: Answer) -> bool:
    """Whether the kernel did not let nvme-cli ask."""
    return any(word in answer.err for word in ("not permitted", "Permission denied"))


def parse(answer: Answer) -> int | None:
    """The warning in nvme-cli's JSON: a number, or in verbose builds an object with `value`."""
    try:
        warning = json.loads(answer.out)["critical_warning"]
        return int(warning["value"] if isinstance(warning, dict) else warning)
    except (ValueError, KeyError, TypeError):
        return None


def judge_smart(
    seen: tuple[Disk, ...], before: tuple[Disk, ...] | None, limits: Limits
) -> Iterable[Observation]:
    """`failing` for a disk that is ending, `hot` for its temperature alone."""
    for disk in seen:
        words = "; ".join(text for bit, text in WORDS.items() if disk.warning & bit)
        raw = f"critical_warning={disk.warning:#04x}"
        if disk.warning & (_SPARE | _WORN | _READ_ONLY | _BACKUP | _PMR):
            yield Observation("failing", disk.name, Verdict.FAIL, words, raw)
        elif disk.warning & _HEAT:
            yield Observation("hot", disk.name, Verdict.WARN, words, raw)


CHECKS = {
    "host.nvme": Functions(gather_nvme, judge_nvme),
    "host.nvme.smart": Functions(gather_smart, judge_smart),
}
"""What the runner calls, by the check's name."""
