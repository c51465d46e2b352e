"""The cgroups of a container, for a command: cgroup v2 alone, and "0::/" in /proc/PID/cgroup.

Two things make a container on a current kernel different from a machine that boots with cgroup v1:
what is mounted on /sys/fs/cgroup, and what /proc/PID/cgroup lists. A mount and a cgroup namespace
give the first, a preloaded library the second. Needs root, a C compiler and cgroup v2 in the
kernel.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.clusters.lifecycle.booted import cgroups
from tests.process import run_text

SOURCE = Path(__file__).with_name("proc_cgroup.c")

JOIN = """
echo $$ >"$1/cgroup.procs"
shift
exec "$@"
"""

# Where the root is that of a chroot, it is no mount of which the propagation can be changed.
MOUNT = """
mount --make-rprivate / 2>/dev/null || mount --make-rprivate /sys
mount -t cgroup2 none /sys/fs/cgroup
export LD_PRELOAD="$1"
shift
exec "$@"
"""
_EMPTY_S = 20.0


class Container:
    """Runs commands below a cgroup of their own, which they see as the root of all cgroups."""

    def __init__(self, cgroup: Path, library: Path) -> None:
        self._cgroup, self._library = cgroup, library

    def command(self, arguments: list[str]) -> list[str]:
        """Return the command line that runs `arguments` in the container."""
        spaces = ["unshare", "--mount", "--propagation", "unchanged", "--cgroup"]
        inner = ["sh", "-ec", MOUNT, "sh", str(self._library), *arguments]
        return ["sh", "-ec", JOIN, "sh", str(self._cgroup), *spaces, *inner]


@contextlib.contextmanager
def container(scratch: Path) -> Iterator[Container]:
    """Make a container; on leaving, every process in it is killed. `scratch` takes the library."""
    library = scratch / "proc_cgroup.so"
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-U_FORTIFY_SOURCE"]
    args = ["cc", *flags, "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(args, check=True, timeout=60)
    with cgroup_tree(scratch) as tree:
        own = tree / f"hpctl-{os.getpid()}-container"
        own.mkdir()
        try:
            yield Container(own, library)
        finally:
            (own / "cgroup.kill").write_text("1")
            remove(own)


@contextlib.contextmanager
def cgroup_tree(scratch: Path) -> Iterator[Path]:
    """Give the directory where the kernel's cgroup v2 is mounted; mount it where it is not."""
    found = cgroups()
    if found is not None:
        yield found
        return
    place = scratch / "cgroup2"
    place.mkdir()
    run_text(["mount", "-t", "cgroup2", "none", str(place)], check=True)
    try:
        yield place
    finally:
        run_text(["umount", str(place)], check=True)


def remove(cgroup: Path) -> None:
    """Remove a cgroup and those below it once their processes have ended."""
    deadline = time.monotonic() + _EMPTY_S
    while True:
        try:
            for place in sorted(cgroup.rglob("*/"), reverse=True):
                place.rmdir()
            cgroup.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
