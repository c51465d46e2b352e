"""Disks: full ones, and NVMe by the kernel's view and by its own word on its health."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from hpctl.agent.check import CannotTell, Functions, Judged, Limits, Machine, NotHere, fail, warn
from hpctl.agent.probe import ProbeResult, Probes
from hpctl.agent.procs import Scan

# --- host.disk ----------
# Disks and /dev/shm that are full, by space or by inodes.
#
# What a job fills is the job's affair while it runs; what it leaves in /tmp and /dev/shm makes the
# next one fail. So these two are judged between jobs, and the system's own disks at any time.

SYSTEM = ("/", "/var")
SHM = "/dev/shm"  # noqa: S108 - looked at, not written
SCRATCH = ("/tmp", "/var/tmp", SHM)  # noqa: S108
_GIB = 2**30


class Disk(Struct, frozen=True):
    """One file system, in bytes and inodes, as `df` counts them (root's reserve is not free)."""

    point: str
    scratch: bool
    size: int
    used: int
    free: int
    inodes: int = 0
    inodes_used: int = 0

    @property
    def used_pct(self) -> float:
        """Of what ordinary users may use."""
        return 100 * self.used / max(self.used + self.free, 1)

    @property
    def inodes_pct(self) -> float:
        """0 where the file system makes inodes as it needs them."""
        return 100 * self.inodes_used / self.inodes if self.inodes else 0.0


class Sample(Struct, frozen=True):
    """The disks, and whether a Slurm step runs (None: nobody had to know)."""

    disks: tuple[Disk, ...]
    jobs: bool | None = None


_scan = Scan()


def gather_full(machine: Machine) -> Sample:
    """statvfs of each. All are local, so that none can hang. Raises CannotTell."""
    disks = tuple(_disks(machine))
    if not disks:
        raise CannotTell("no file system can be looked at")
    crowded = any(d.scratch and max(d.used_pct, d.inodes_pct) > 50 for d in disks)
    jobs = _scan.a_step_runs(machine) if crowded else None
    return Sample(disks, jobs)


def _disks(machine: Machine) -> Iterator[Disk]:
    known: set[int] = set()
    for point in (*SYSTEM, *SCRATCH):
        path = machine.path(point)
        try:
            device = os.stat(path).st_dev
            stat = os.statvfs(path)
        except OSError:
            continue
        if device in known or not stat.f_blocks:
            continue
        known.add(device)
        yield Disk(
            point,
            point in SCRATCH,
            stat.f_blocks * stat.f_frsize,
            (stat.f_blocks - stat.f_bfree) * stat.f_frsize,
            stat.f_bavail * stat.f_frsize,
            stat.f_files,
            stat.f_files - stat.f_ffree,
        )


def judge_full(seen: Sample, before: Sample | None, limits: Limits) -> Judged:
    """`full`, `inodes`, `leftovers` (full scratch between jobs), and `filling` before `full`."""
    for disk in seen.disks:
        if disk.scratch and seen.jobs:
            continue
        full = _full(disk, limits)
        inodes = disk.inodes_pct >= limits["full_pct"]
        what = f"{disk.used_pct:.0f} % used, {disk.free / _GIB:.1f} GiB free"
        if disk.scratch and (full or inodes):
            more = f", {disk.inodes_pct:.0f} % of inodes; no job runs"
            yield fail("leftovers", disk.point, what + more)
        elif full:
            yield fail("full", disk.point, what)
        elif inodes:
            yield fail("inodes", disk.point, f"{disk.inodes_pct:.0f} % of inodes used")
        elif _used_up(disk, limits["filling_pct"], limits["roomy_gib"]):
            yield warn("filling", disk.point, what)


def _full(disk: Disk, limits: Limits) -> bool:
    """By percent, unless what is left is plenty; or too little left on a disk that had room.

    /dev/shm is memory: what is left there is no measure of plenty.
    """
    bare = disk.free < limits["least_mib"] * 2**20 and disk.size >= 20 * limits["least_mib"] * 2**20
    return bare or _used_up(disk, limits["full_pct"], limits["roomy_gib"])


def _used_up(disk: Disk, percent: float, roomy_gib: float) -> bool:
    return disk.used_pct >= percent and (disk.point == SHM or disk.free < roomy_gib * _GIB)


# --- host.nvme ----------
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


class Health(Struct, frozen=True):
    """One controller's critical warning, as it stands in its log."""

    name: str
    warning: int


_probes = Probes(DEADLINE_S)


def gather_smart(machine: Machine) -> tuple[Health, ...]:
    """Ask each controller. Raises NotHere without NVMe, nvme-cli or leave; CannotTell."""
    try:
        live = [
            place.name
            for place in sorted(machine.path(NVME).iterdir())
            if machine.text(f"{NVME}/{place.name}/state") == "live"
        ][:MOST]
    except OSError as error:
        raise NotHere(f"no {NVME}") from error
    if not live:
        raise NotHere("no live NVMe controller")
    answers = _probes.ask(
        {name: (*COMMAND, f"/dev/{name}") for name in live}, _probes.wait_s(WAIT_S)
    )
    found = [
        Health(name, warning)
        for name, answer in answers.items()
        if isinstance(answer, ProbeResult) and (warning := parse_smart(answer)) is not None
    ]
    if not found and any(isinstance(a, ProbeResult) and refused(a) for a in answers.values()):
        # Not allowed, as in hpctl's own unit, is not blind: it would leave the node Unknown.
        raise NotHere("asking a disk for its health needs CAP_SYS_ADMIN")
    if not found:
        raise CannotTell("no NVMe controller reported its health")
    return tuple(found)


def refused(answer: ProbeResult) -> bool:
    """Whether the kernel did not let nvme-cli ask."""
    return any(word in answer.err for word in ("not permitted", "Permission denied"))


def parse_smart(answer: ProbeResult) -> int | None:
    """The warning in nvme-cli's JSON: a number, or in verbose builds an object with `value`."""
    try:
        warning = json.loads(answer.out)["critical_warning"]
        return int(warning["value"] if isinstance(warning, dict) else warning)
    except (ValueError, KeyError, TypeError):
        return None


def judge_smart(
    seen: tuple[Health, ...], before: tuple[Health, ...] | None, limits: Limits
) -> Judged:
    """`failing` for a disk that is ending, `hot` for its temperature alone."""
    for disk in seen:
        warnings = "; ".join(text for bit, text in WORDS.items() if disk.warning & bit)
        raw = f"critical_warning={disk.warning:#04x}"
        if disk.warning & (_SPARE | _WORN | _READ_ONLY | _BACKUP | _PMR):
            yield fail("failing", disk.name, warnings, raw)
        elif disk.warning & _HEAT:
            yield warn("hot", disk.name, warnings, raw)


CHECKS = {
    "host.disk": Functions(gather_full, judge_full),
    "host.nvme": Functions(gather_nvme, judge_nvme),
    "host.nvme.smart": Functions(gather_smart, judge_smart),
}
"""What the runner calls, by the check's name."""
