"""When a job's starts began, by the clock of the file system that holds its checkpoints.

Ranks that save side by side, and none of them last, leave complete files whichever start wrote
them. A checkpoint of which some files are older than a start and others newer is a mixture of two:
the second start saved the same step again and was killed within the save.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from hpctl.jobs.checkpoints.files import NotWhole

NAME = ".hpctl-starts"
"""One line a start, in ns since the epoch, beside the checkpoints."""
_MAX_BYTES = 64 << 10
"""Some 3,000 starts. What is older is dropped."""


def note(directory: Path) -> None:
    """Record that a start begins. Never raises: a directory that cannot be written has no saves.

    The time is that which the file system gives the file itself, as it does to the checkpoints'.
    """
    with contextlib.suppress(OSError):
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(directory / NAME, flags | os.O_NONBLOCK, 0o644)
        try:
            kept = os.read(handle, _MAX_BYTES)
            if len(kept) == _MAX_BYTES:
                os.truncate(handle, 0)
                os.write(handle, kept[-_MAX_BYTES // 2 :].partition(b"\n")[2])
            os.utime(handle)
            os.write(handle, b"%d\n" % os.fstat(handle).st_mtime_ns)
        finally:
            os.close(handle)


def one_start(root: Path, files_ns: Iterable[int]) -> None:
    """Raise NotWhole where a start of the job lies between files of the checkpoint at `root`."""
    times = sorted(files_ns)
    for start in _noted(root.parent):
        if times and times[0] < start <= times[-1]:
            raise NotWhole("some of its files are from before a restart of the job: saved over")


def _noted(directory: Path) -> list[int]:
    try:
        handle = os.open(directory / NAME, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return []
    with open(handle, "rb") as file:
        lines = file.read(_MAX_BYTES).split(b"\n")
    return [int(line) for line in lines if line.isdigit() and len(line) < 20]
