"""Marks: which checkpoints no run resumes from, although they are complete.

A mark is a small JSON file in `.hpctl-marks` of a checkpoint directory, written by the owner of the
job. It names a range of steps, and it is bound to a time: what is saved later under the same step
is another checkpoint. A mark of a job that goes back applies to what was written before the next
start of the job, because the run that it ends may save while it ends; any other applies to what was
written before the mark. Both times are file times of the file system. Of several marks the newest
that covers a checkpoint decides, and a clean mark takes earlier ones back. Nothing is deleted.

A file of another owner, damaged or too large is not a mark: this is reported, and the search
continues without it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from hpctl.checkpoints.files import MAX_ENTRIES, Place, RemotePath, list_job_start_times
from hpctl.checkpoints.formats import nvrx
from hpctl.checkpoints.hpctl_checkpoint import MARKS
from hpctl.toolkit.bounds import make_printable

MOST_MARKS = 1000
"""Marks of one directory that are read, the newest by name."""
MOST_BYTES = 16 << 10
"""Bytes of one mark."""
MOST_TEXT = 500
"""Characters of a mark's reason, and of its writer's name, that are shown."""
_SKIP = re.compile(r"\d{1,18}:\d{1,18}")


class CheckpointMark(Struct, frozen=True, omit_defaults=True):
    """The content of one file. `first` and `last` are steps, both included; without `last` all
    later ones are meant. `until_start`: what is written before the job's next start is meant, too.
    `since_ns`: only what was written from then on. `skip`: the batches that a run leaves out after
    going back, `20:22`; "" for none, None where the mark does not give them."""

    poisoned: bool
    first: int
    by: str
    at: datetime
    last: int | None = None
    why: str = ""
    until_start: bool = False
    since_ns: int | None = None
    skip: str | None = None


class CheckpointMarkFile(Struct, frozen=True):
    """A mark, the file it is in, and the time in ns up to which it applies; None: no end yet."""

    mark: CheckpointMark
    path: str
    until_ns: int | None

    def covers(self, step: int, written_ns: int) -> bool:
        """Return whether the mark applies to a checkpoint of this step, written then."""
        since_ns = self.mark.since_ns
        if not self.names(step) or (since_ns is not None and written_ns < since_ns):
            return False
        return self.until_ns is None or written_ns <= self.until_ns

    def names(self, step: int) -> bool:
        """Return whether the step is in the range."""
        last = self.mark.last
        return self.mark.first <= step and (last is None or step <= last)

    @property
    def text(self) -> str:
        """Return `marked as poisoned by alice, 2026-11-28 06:41 UTC: loss is NaN`."""
        why = f": {self.mark.why}" if self.mark.why else ""
        at = f"{self.mark.at:%Y-%m-%d %H:%M} UTC"
        return f"marked as poisoned by {self.mark.by}, {at}{why}"


class CheckpointMarks(Struct, frozen=True):
    """The marks of some directories, the oldest first, and why others have no effect."""

    placed: tuple[CheckpointMarkFile, ...] = ()
    flaws: tuple[str, ...] = ()

    def has_mark_for_step(self, step: int | None) -> bool:
        """Return whether a mark names the step, whenever it was written."""
        return step is not None and any(each.names(step) for each in self.placed)

    def find(self, step: int | None, written_ns: int) -> CheckpointMarkFile | None:
        """Return the mark by which a checkpoint is passed over; None where it is not."""
        if step is None:
            return None
        covering = [each for each in self.placed if each.covers(step, written_ns)]
        return covering[-1] if covering and covering[-1].mark.poisoned else None

    def find_skipped_batches(self, step: int | None) -> str:
        """Return the batches to leave out in a run that resumes from a step; "" for none."""
        skips = [each.mark.skip for each in self.placed if each.mark.skip is not None]
        skip = skips[-1] if skips else ""
        end = int(skip.partition(":")[2] or 0)
        return skip if step is None or step < end else ""


NO_MARKS = CheckpointMarks()


def read_checkpoint_marks(directories: Iterable[Place]) -> CheckpointMarks:
    """Return the marks in directories; objects have none. Does not raise: a mark that cannot be
    read has no effect."""
    found: list[tuple[int, CheckpointMarkFile]] = []
    flaws: list[str] = []
    for directory in directories:
        if not isinstance(directory, RemotePath):
            _read_directory_marks(directory, found, flaws)
    found.sort(key=lambda pair: (pair[0], pair[1].path))
    return CheckpointMarks(tuple(placed for _, placed in found), tuple(flaws))


def _read_directory_marks(
    directory: Path, found: list[tuple[int, CheckpointMarkFile]], flaws: list[str]
) -> None:
    place = directory / MARKS
    try:
        owners, names = _list_trusted_owners_and_mark_names(directory)
    except (FileNotFoundError, NotADirectoryError):
        return
    except (_InvalidMarkError, OSError) as error:
        flaws.append(f"the marks in {place} have no effect: {_describe_mark_read_error(error)}")
        return
    if names[:-MOST_MARKS]:
        flaws.append(f"{place} has more than {MOST_MARKS} marks: the oldest have no effect")
    starts = sorted(list_job_start_times(directory))
    for name in names[-MOST_MARKS:]:
        try:
            made_ns, mark = _read_mark(place / name, owners)
        except FileNotFoundError:
            continue
        except (_InvalidMarkError, OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            flaws.append(
                f"the mark {place / name} has no effect: {_describe_mark_read_error(error)}"
            )
            continue
        until_ns: int | None = made_ns
        if mark.until_start:
            until_ns = next((start for start in starts if start > made_ns), None)
        found.append((made_ns, CheckpointMarkFile(mark, str(place / name), until_ns)))


def _list_trusted_owners_and_mark_names(directory: Path) -> tuple[set[int], list[str]]:
    """Return whose marks count, and their names in order. Raises OSError, and an error with the
    reason where none do."""
    place = directory / MARKS
    status = os.lstat(place)
    owners = find_trusted_mark_owners(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise _InvalidMarkError("it is not a directory")
    if status.st_uid not in owners:
        raise _InvalidMarkError(f"user {status.st_uid} owns it")
    return owners, sorted(_list_mark_names(place))


class _InvalidMarkError(Exception):
    """The error of a file that is not a mark."""


def _describe_mark_read_error(error: Exception) -> str:
    strerror = error.strerror if isinstance(error, OSError) else None
    return make_printable(str(strerror or error))[:MOST_TEXT]


def find_trusted_mark_owners(directory: Path) -> set[int]:
    """Return the owners whose marks count: as for checkpoints, the user's own, root's and the
    directory's owner's."""
    return {0, os.geteuid(), directory.stat().st_uid}


def _list_mark_names(place: Path) -> Iterator[str]:
    with os.scandir(place) as entries:
        for count, entry in enumerate(entries):
            if count >= MAX_ENTRIES:
                raise _InvalidMarkError(f"it has more than {MAX_ENTRIES} entries")
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                yield entry.name


def _read_mark(path: Path, owners: set[int]) -> tuple[int, CheckpointMark]:
    """Return when a mark was written, and its content. Raises OSError, MsgspecError and
    _InvalidMarkError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _InvalidMarkError("it is not a regular file")
        if status.st_uid not in owners:
            raise _InvalidMarkError(f"user {status.st_uid} owns it")
        if status.st_size > MOST_BYTES:
            raise _InvalidMarkError(f"it has {status.st_size} bytes; at most {MOST_BYTES} are read")
        mark = msgspec.json.decode(file.read(MOST_BYTES), type=CheckpointMark)
    if mark.skip and not _SKIP.fullmatch(mark.skip):
        raise _InvalidMarkError("its `skip` is no range of batches")
    by, why = make_printable(mark.by)[:MOST_TEXT], make_printable(mark.why)[:MOST_TEXT]
    return status.st_mtime_ns, msgspec.structs.replace(mark, by=by, why=why)


def write_checkpoint_mark_file(directory: Path, mark: CheckpointMark) -> Path:
    """Write a mark, completely or not at all, and return its file. Raises OSError.

    Root may write for a user, who can replace each directory at any time: the one that was checked
    is the one that is written to.
    """
    place = directory / MARKS
    with contextlib.suppress(FileExistsError):
        place.mkdir()
    steps = f"{mark.first}" if mark.last == mark.first else f"{mark.first}-{mark.last or 'on'}"
    kind = "poisoned" if mark.poisoned else "clean"
    name = f"{mark.at:%Y%m%dT%H%M%S.%f}-{steps}-{kind}-{os.getpid()}.json"
    held = _open_marks_directory(place, directory)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(f".{name}.tmp", flags, 0o644, dir_fd=held), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(mark), indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.rename(f".{name}.tmp", name, src_dir_fd=held, dst_dir_fd=held)
    finally:
        os.close(held)
    return place / name


def _open_marks_directory(place: Path, directory: Path) -> int:
    """Return a descriptor of a directory of marks whose owner is trusted. Raises OSError."""
    why = PermissionError(1, "it is not a directory of the owner's", str(place))
    try:
        held = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise why from None
    if os.fstat(held).st_uid not in find_trusted_mark_owners(directory):
        os.close(held)
        raise why
    return held


def read_median_write_time(path: Place, format_name: str, step: int | None) -> int:
    """Return when a checkpoint was written, in ns: the time by which half of its bytes were.

    A file that is added later does not change this time, nor one that a save over it leaves. Raises
    OSError.
    """
    return find_median_write_time(_list_checkpoint_file_sizes_and_times(path, format_name, step))


def find_median_write_time(files: Iterable[tuple[int, int]]) -> int:
    """Return the time by which half of all bytes were written, of sizes and times in ns."""
    ordered = sorted((time_ns, max(1, size)) for size, time_ns in files)
    half, passed = sum(size for _, size in ordered) / 2, 0
    for time_ns, size in ordered:
        passed += size
        if passed >= half:
            return time_ns
    return 0


def _list_checkpoint_file_sizes_and_times(
    path: Place, format_name: str, step: int | None
) -> Iterator[tuple[int, int]]:
    if isinstance(path, RemotePath):
        found = [listed for listed in (path.find(""),) if listed is not None]
        found += [listed for _, listed in path.files()]
        yield from ((listed.size, listed.modified_ns) for listed in found)
        return
    status = path.stat()
    if not stat.S_ISDIR(status.st_mode):
        yield status.st_size, status.st_mtime_ns
        return
    # NVRx's directory holds the files of all iterations.
    part = f"iter_{step:07d}_" if format_name == nvrx.FORMAT and step is not None else ""
    yield from _scan_sizes_and_times(path, part)


def _scan_sizes_and_times(path: Path, part: str) -> Iterator[tuple[int, int]]:
    waiting: Sequence[Path] | list[Path] = [path]
    left = MAX_ENTRIES
    while waiting:
        directory, waiting = waiting[0], waiting[1:]
        with os.scandir(directory) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return
                if entry.is_dir(follow_symlinks=False):
                    waiting = [*waiting, directory / entry.name]
                elif part in entry.name:
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        yield status.st_size, status.st_mtime_ns
