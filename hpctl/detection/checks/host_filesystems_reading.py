"""Readings that the checks of this family share."""

import re

from msgspec import Struct

from hpctl.detection.check import CheckedMachine

# What is mounted, from /proc/self/mountinfo (proc_pid_mountinfo(5)), which no hung file system can
# block.

NETWORK = frozenset({"lustre", "nfs", "nfs4", "beegfs", "ceph", "cifs", "gpfs", "wekafs"})


LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs"})


_ESCAPE = re.compile(r"\\([0-7]{3})")


class MountInfoEntry(Struct, frozen=True):
    """One mount. `options` are this mount's own, `super_options` those of the file system.

    A service that systemd gives a read-only view has `ro` in the first and not in the second; a
    file system that the kernel took out of service after an error has it in the second.
    """

    point: str
    device: str
    kind: str
    source: str
    options: frozenset[str]
    super_options: frozenset[str]


def read_mountinfo_entries(machine: CheckedMachine) -> tuple[MountInfoEntry, ...]:
    """Return all mounts in this process's namespace, in the kernel's order. Raises
    CheckResultUnknownError, DeviceAbsentError."""
    found = []
    for line in machine.text("/proc/self/mountinfo").splitlines():
        columns = line.split(" ")
        try:
            dash = columns.index("-", 6)
            kind, source, options = columns[dash + 1 : dash + 4]
        except ValueError:
            continue
        found.append(
            MountInfoEntry(
                _unescape_mountinfo_path(columns[4]),
                columns[2],
                kind,
                _unescape_mountinfo_path(source),
                frozenset(columns[5].split(",")),
                frozenset(options.split(",")),
            )
        )
    return tuple(found)


def select_mounts_by_file_system_type(
    found: tuple[MountInfoEntry, ...], kinds: frozenset[str], most: int
) -> tuple[MountInfoEntry, ...]:
    """Return one mount for each file system of those kinds, without bind mounts and hidden ones."""
    on_top = {mount.point: mount for mount in found}
    chosen: dict[str, MountInfoEntry] = {}
    for mount in on_top.values():
        if mount.kind in kinds:
            chosen.setdefault(mount.device, mount)
    return tuple(chosen.values())[:most]


def _unescape_mountinfo_path(text: str) -> str:
    """Return a path without the octal escapes that the kernel writes for blanks and backslashes."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
