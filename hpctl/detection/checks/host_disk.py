"""Check `host.disk`: /, /var, /tmp, /var/tmp, /dev/shm and scratch: full by space or inodes."""

import os
from collections.abc import Iterator

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    Judged,
    Limits,
    make_fail_observation,
    make_warn_observation,
)
from hpctl.detection.procs import ProcessScanner

# Disks and /dev/shm that are full, by space or by inodes.
#
# What a job fills concerns only the job while it runs; what it leaves in /tmp and /dev/shm makes
# the next one fail. So these two are judged between jobs, and the system's own disks at any time.

SYSTEM = ("/", "/var")


SHM = "/dev/shm"  # noqa: S108 - read, not written


SCRATCH = ("/tmp", "/var/tmp", SHM)  # noqa: S108


_GIB = 2**30


class FileSystemUsage(Struct, frozen=True):
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
        """Return the used share of what ordinary users may use, in percent."""
        return 100 * self.used / max(self.used + self.free, 1)

    @property
    def used_inodes_pct(self) -> float:
        """Return the used share of inodes; 0 where the file system makes inodes as it needs
        them."""
        return 100 * self.inodes_used / self.inodes if self.inodes else 0.0


class DiskSpaceSample(Struct, frozen=True):
    """The disks, and whether a Slurm step runs (None: not checked, because it did not matter)."""

    disks: tuple[FileSystemUsage, ...]
    jobs: bool | None = None


_scan = ProcessScanner()


def collect_disk_space_sample(machine: CheckedMachine) -> DiskSpaceSample:
    """Call statvfs for each. All are local, so that none can hang. Raises
    CheckResultUnknownError."""
    disks = tuple(_measure_local_disk_usage(machine))
    if not disks:
        raise CheckResultUnknownError("no file system can be looked at")
    crowded = any(d.scratch and max(d.used_pct, d.used_inodes_pct) > 50 for d in disks)
    jobs = _scan.is_slurm_step_running(machine) if crowded else None
    return DiskSpaceSample(disks, jobs)


def _measure_local_disk_usage(machine: CheckedMachine) -> Iterator[FileSystemUsage]:
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
        yield FileSystemUsage(
            point,
            point in SCRATCH,
            stat.f_blocks * stat.f_frsize,
            (stat.f_blocks - stat.f_bfree) * stat.f_frsize,
            stat.f_bavail * stat.f_frsize,
            stat.f_files,
            stat.f_files - stat.f_ffree,
        )


def judge_disk_space(
    seen: DiskSpaceSample, before: DiskSpaceSample | None, limits: Limits
) -> Judged:
    """Return `full`, `inodes`, `leftovers` (full scratch between jobs), and `filling` before
    `full`."""
    for disk in seen.disks:
        if disk.scratch and seen.jobs:
            continue
        full = _is_disk_full(disk, limits)
        inodes = disk.used_inodes_pct >= limits["full_pct"]
        what = f"{disk.used_pct:.0f} % used, {disk.free / _GIB:.1f} GiB free"
        if disk.scratch and (full or inodes):
            more = f", {disk.used_inodes_pct:.0f} % of inodes; no job runs"
            yield make_fail_observation("leftovers", disk.point, what + more)
        elif full:
            yield make_fail_observation("full", disk.point, what)
        elif inodes:
            yield make_fail_observation(
                "inodes", disk.point, f"{disk.used_inodes_pct:.0f} % of inodes used"
            )
        elif _is_disk_usage_above_limit(disk, limits["filling_pct"], limits["roomy_gib"]):
            yield make_warn_observation("filling", disk.point, what)


def _is_disk_full(disk: FileSystemUsage, limits: Limits) -> bool:
    """Return whether a disk is full by percent, unless much space is left; or has too little left
    where it had more.

    /dev/shm is memory: what is left there does not count as much space.
    """
    bare = disk.free < limits["least_mib"] * 2**20 and disk.size >= 20 * limits["least_mib"] * 2**20
    return bare or _is_disk_usage_above_limit(disk, limits["full_pct"], limits["roomy_gib"])


def _is_disk_usage_above_limit(disk: FileSystemUsage, percent: float, roomy_gib: float) -> bool:
    return disk.used_pct >= percent and (disk.point == SHM or disk.free < roomy_gib * _GIB)
