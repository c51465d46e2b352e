"""A small file system that any user may write to, and a user who fills it and goes on trying."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live import until

FILLER_UID = 65534
FILLER = """
import os
block, size = b"x" * 1048576, 1048576
while True:
    try:
        os.write(1, block[:size])
        size = min(2 * size, len(block))
    except OSError:
        size = max(1, size // 2)
"""
"""It writes half as much after each refusal, down to a byte, and twice as much after a success."""


@contextmanager
def small_disk(point: Path, mib: int) -> Iterator[Path]:
    """A tmpfs of that size at a new directory, world-writable as /tmp is. Skips where this user may
    not mount."""
    point.mkdir()
    options = f"size={mib}m,mode=1777"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)]
    made = subprocess.run(mount, check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr}")
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", str(point)], check=True)


def count_free_bytes(point: Path) -> int:
    found = os.statvfs(point)
    return found.f_bavail * found.f_frsize


@contextmanager
def filled_by_another_user(point: Path) -> Iterator[Path]:
    """A user's program fills the file system and takes each byte that becomes free; its file is
    deleted at the end."""
    file = point / "filler"
    with file.open("xb") as opened:
        os.fchown(opened.fileno(), FILLER_UID, FILLER_UID)
        program = subprocess.Popen(
            [os.path.realpath(sys.executable), "-I", "-c", FILLER],
            stdout=opened, user=FILLER_UID, group=FILLER_UID, extra_groups=[], cwd="/",
        )  # fmt: skip
    try:
        until(lambda: count_free_bytes(point) == 0, 60, f"{point} is full")
        yield file
    finally:
        program.kill()
        program.wait()
        file.unlink()
