"""A checkpoint's files, on a file system or in an object store: bounded reads, and why they fail.

On a file system: one open, one fstat and reads of stated length. open(2) and not only stat(2): on
NFS it is the open that asks the server for the file's present size, where a stat may answer from a
cache.

In an object store a key is taken for a directory or a file, as far as the formats need it. Which
store it is, is not known here: `hpctl.sagemaker.objects` has S3, and the CLI brings the two
together.
Objects differ from files: one appears whole or not at all, a listing has size, time and tag of a
thousand of them in one request, and each read is a request of some 20 ms. So a candidate is listed
once, and everything but the contents comes from that snapshot. A directory is what the keys
suggest. An object named like one (`step-1/`, of no bytes) is none.

Beside the checkpoints stands when each start of the job began, by the file system's own clock.
Ranks that save side by side, and none of them last, leave complete files whichever start wrote
them. A checkpoint of which some files are older than a start and others newer is a mixture of two:
the second start saved the same step again and was killed within the save.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeAlias, TypeVar

from msgspec import Struct


class CheckpointDefect(str):
    """Why something is not a whole checkpoint, in one line for a person."""

    __slots__ = ()


class UnverifiedContent(str):
    """What of a checkpoint nothing proves that may be resumed from, in words for a person."""

    __slots__ = ()


class IncompleteCheckpointError(Exception):
    """Raised within a proof: what keeps a checkpoint from being whole, with the file's name."""


class FileMissingError(IncompleteCheckpointError):
    """A file is not there."""


class UnfinishedCheckpointSaveError(IncompleteCheckpointError):
    """What the writer writes last is not there: the save has not ended, or never did."""


class UnverifiableCheckpointError(IncompleteCheckpointError):
    """It may be whole, and nothing that hpctl reads proves it: it counts as unreadable."""


class FileTooLargeError(UnverifiableCheckpointError):
    """A file is larger than hpctl reads."""


MAX_ENTRIES = 100_000
"""Objects of one checkpoint that are listed, or entries of its directory that are looked at."""

THREADS = 16
"""Requests that are under way at once."""


class ObjectInfo(Protocol):
    """One object of a listing, or a common prefix: only a key that ends in a slash."""

    @property
    def key(self) -> str:
        """Return the whole key, from the bucket's root."""

    @property
    def size(self) -> int:
        """Return the size in bytes."""

    @property
    def modified_ns(self) -> int:
        """Return when it was put there. S3 rounds to seconds, and takes a multipart upload's
        begin."""

    @property
    def etag(self) -> str:
        """Changes with the content."""


class ObjectBucket(Protocol):
    """One bucket. Safe to use from several threads.

    Every method raises OSError where the store does not answer, with `strerror` for a person:
    FileNotFoundError for an object that no longer exists, ESTALE for one that is another
    by now, PermissionError where it may not be read.
    """

    @property
    def url(self) -> str:
        """Return `s3://bucket`."""

    def list(self, prefix: str, *, recursive: bool) -> Iterable[ObjectInfo]:
        """Objects whose key begins so; unless `recursive`, only as far as the next slash."""

    def read(self, listed: ObjectInfo, offset: int, length: int) -> tuple[bytes, int | None]:
        """Return at most `length` bytes of that very version, and the file time that the uploader
        noted with it (FSx for Lustre, DataSync, rclone), in ns since the epoch."""

    def read_original_mtime_ns(self, listed: ObjectInfo) -> int | None:
        """That file time alone."""

    def get_part_size(self, listed: ObjectInfo) -> int:
        """Return how long the stretches are whose digests the store keeps: all of them but the
        last. At least 1."""

    def matches(self, listed: ObjectInfo, digests: Sequence[bytes]) -> bool | None:
        """Return whether the stretches' MD5 digests are those of the store; None: it does not
        say."""


@dataclass(frozen=True)
class ObjectSnapshot:
    """All objects below a key at one time, by their keys."""

    listed: Mapping[str, ObjectInfo]

    @cached_property
    def _names_by_parent(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for key in self.listed:
            parent, name = _split_key(key)
            while name and name not in (known := found.setdefault(parent, set())):
                known.add(name)
                parent, name = _split_key(parent)
        return found

    def names(self, key: str) -> frozenset[str] | None:
        """Return what lies directly below a key; None where nothing does."""
        below = self._names_by_parent.get(key)
        return None if below is None else frozenset(below)


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A key as a place: the part of pathlib that the formats use. `key` has no outer slashes."""

    objects: ObjectBucket = field(compare=False, repr=False)
    key: str
    snapshot: ObjectSnapshot | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.objects.url}/{self.key}"

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(self.objects, _join_key(self.key, name), self.snapshot)

    @property
    def name(self) -> str:
        """Return the last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """Return the name's ending, with its dot."""
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        """Return the key without its last part. The bucket's root is its own parent."""
        return RemotePath(self.objects, _split_key(self.key)[0])

    def take_snapshot(self) -> RemotePath:
        """Return this place with a new snapshot: one request for each 1000 objects below it.

        Raises FileNotFoundError where there is nothing, IncompleteCheckpointError for more than
        MAX_ENTRIES.
        """
        inside = f"{self.key}/" if self.key else ""
        listed: dict[str, ObjectInfo] = {}
        marked = False
        for each in self.objects.list(inside, recursive=True):
            if len(listed) >= MAX_ENTRIES:
                raise IncompleteCheckpointError(
                    f"it has more than {MAX_ENTRIES} objects, more than hpctl reads"
                )
            if each.key.endswith("/"):
                marked = True
            else:
                listed[each.key] = each
        if not listed and not marked:
            found = (o for o in self.objects.list(self.key, recursive=False) if o.key == self.key)
            listed = {each.key: each for each in found}
        if not listed and not marked:
            raise FileNotFoundError(errno.ENOENT, "there is no object there", str(self))
        return RemotePath(self.objects, self.key, ObjectSnapshot(listed))

    def names(self) -> frozenset[str] | None:
        """Return what lies directly below, None for a single object. Raises as take_snapshot."""
        snapshot = self._snapshot()
        names = snapshot.names(self.key)
        return frozenset() if names is None and self.key not in snapshot.listed else names

    def below(self, name: str) -> frozenset[str] | None:
        """Return what lies directly below a sub-directory, None where nothing does. Raises as
        take_snapshot."""
        return self._snapshot().names(_join_key(self.key, name))

    def children(self) -> list[RemotePath]:
        """Places directly below, without their snapshots but for single objects. One request
        for each 1000; none at all is an empty list, as S3 knows no empty directories."""
        inside = f"{self.key}/" if self.key else ""
        found = []
        for each in self.objects.list(inside, recursive=False):
            if each.key.endswith("/"):
                if each.key != inside and (name := each.key.removeprefix(inside).strip("/")):
                    found.append(RemotePath(self.objects, _join_key(self.key, name)))
            else:
                found.append(RemotePath(self.objects, each.key, ObjectSnapshot({each.key: each})))
        return found

    def has(self, name: str) -> bool:
        """Return whether there is an object, or something below it. A request without a
        snapshot."""
        key = _join_key(self.key, name)
        if self.snapshot is not None:
            return key in self.snapshot.listed or self.snapshot.names(key) is not None
        return any(o.key.rstrip("/") == key for o in self.objects.list(key, recursive=False))

    def find(self, name: str) -> ObjectInfo | None:
        """Return what the snapshot says of an object, by its name below here, "" for this one
        itself."""
        key = _join_key(self.key, name) if name else self.key
        return self._snapshot().listed.get(key)

    def files(self) -> list[tuple[str, ObjectInfo]]:
        """Return all objects at any depth, by their names below here. Raises as take_snapshot."""
        inside = f"{self.key}/" if self.key else ""
        listed = self._snapshot().listed.items()
        return sorted(
            ((key.removeprefix(inside), each) for key, each in listed if key.startswith(inside)),
            key=lambda pair: pair[0],
        )

    def without_snapshot(self) -> RemotePath:
        """Return the same key, about which nothing is known."""
        return RemotePath(self.objects, self.key)

    def _snapshot(self) -> ObjectSnapshot:
        taken = self if self.snapshot is not None else self.take_snapshot()
        return taken.snapshot or ObjectSnapshot({})


class RemoteFile:
    """An object as a file: reads are ranged requests, each made once."""

    def __init__(self, name: str, objects: ObjectBucket, listed: ObjectInfo) -> None:
        self.name = name
        self.size = listed.size
        self._objects = objects
        self._listed = listed
        self._block, self._at = b"", 0
        self._asked = False
        self._noted_ns: int | None = None

    @property
    def modified_ns(self) -> int:
        """Return when the file was written: as the uploader noted it, else when it was uploaded."""
        if not self._asked:
            self._noted_ns, self._asked = self._objects.read_original_mtime_ns(self._listed), True
        return self._listed.modified_ns if self._noted_ns is None else self._noted_ns

    def ahead(self, offset: int, length: int) -> None:
        """Fetch now, in one request, what the next reads will want. Raises as read."""
        offset = max(0, offset)
        length = min(length, self.size - offset)
        if length > 0 and not (self._at <= offset and offset + length <= self._end):
            self._block, self._at = self._fetch_bytes(offset, length), offset

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes. Raises IncompleteCheckpointError where the object ends
        before, OSError."""
        if self._at <= offset and offset + length <= self._end:
            return self._block[offset - self._at : offset - self._at + length]
        if offset + length > self.size:
            raise IncompleteCheckpointError(f"{self.name} is cut off: it ends at byte {self.size}")
        return self._fetch_bytes(offset, length)

    @property
    def _end(self) -> int:
        return self._at + len(self._block)

    def _fetch_bytes(self, offset: int, length: int) -> bytes:
        if length <= 0:
            return b""
        try:
            raw, self._noted_ns = self._objects.read(self._listed, offset, length)
        except FileNotFoundError:
            raise IncompleteCheckpointError(
                f"{self.name} is missing: it was deleted while hpctl read the checkpoint"
            ) from None
        self._asked = True
        if len(raw) != length:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self.name)
        return raw


def _split_key(key: str) -> tuple[str, str]:
    parent, _, name = key.rpartition("/")
    return parent, name


def _join_key(key: str, name: str) -> str:
    return f"{key}/{name}" if key else name


T = TypeVar("T")
R = TypeVar("R")

Place: TypeAlias = Path | RemotePath
"""Where a checkpoint, or something that holds checkpoints, lies."""


class OpenFile(Protocol):
    """An open file: its name for people, and its size when it was opened."""

    @property
    def name(self) -> str:
        """Return the name within its checkpoint."""

    @property
    def size(self) -> int:
        """Return the size in bytes."""

    @property
    def modified_ns(self) -> int:
        """Return when it was last written, in ns since the epoch."""

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes. Raises IncompleteCheckpointError where the file ends
        before, OSError."""

    def ahead(self, offset: int, length: int) -> None:
        """A hint that these bytes are wanted next, where each read is a separate request."""


class LocalFile(Struct, frozen=True):
    """A file of a file system."""

    name: str
    descriptor: int
    size: int
    modified_ns: int

    def ahead(self, offset: int, length: int) -> None:
        """Do nothing: the kernel reads ahead."""

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes. Raises IncompleteCheckpointError where the file ends
        before, OSError."""
        parts = []
        while length > 0:
            part = os.pread(self.descriptor, length, offset)
            if not part:
                raise IncompleteCheckpointError(
                    f"{self.name} ends at byte {offset}: it is still being written, or is cut off"
                )
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def open_file(root: Place, name: str) -> Iterator[OpenFile]:
    """Open `root/name`, or `root` itself where the name is empty.

    Raises IncompleteCheckpointError where it is missing or no regular file, OSError where the
    storage fails.
    """
    if isinstance(root, RemotePath):
        listed = root.find(name)
        if listed is None:
            raise FileMissingError(f"{name or root.name} is missing")
        yield RemoteFile(name or root.name, root.objects, listed)
        return
    path = root / name if name else root
    shown = name or root.name
    _validate_file_name(name)
    try:
        # Without O_NONBLOCK a fifo of that name would block us without a limit.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise FileMissingError(f"{shown} is missing") from None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise IncompleteCheckpointError(f"{shown} is not a regular file")
        yield LocalFile(shown, descriptor, about.st_size, about.st_mtime_ns)
    finally:
        os.close(descriptor)


def read_small_file(root: Place, name: str, limit: int) -> bytes:
    """Return the whole of a small file. More than `limit` bytes is IncompleteCheckpointError: it is
    not read."""
    with open_file(root, name) as file:
        if file.size > limit:
            raise IncompleteCheckpointError(
                f"{file.name} has {file.size} bytes; a valid file of this kind has at most {limit} "
                "bytes"
            )
        return file.read(0, file.size)


MOST_JSON_PARTS = 6_000_000
"""Objects, lists, and values after others in one JSON file. Three bytes of a file can take 64 of
memory; the index of a model of a million tensors has 5 million parts."""


def parse_json_object(raw: bytes, name: str) -> dict[str, object]:
    """Return a JSON file's object. Raises IncompleteCheckpointError where its bytes are none,
    FileTooLargeError where it would take too much memory."""
    parts = sum(raw.count(mark) for mark in (b"{", b"[", b","))
    if parts > MOST_JSON_PARTS:
        raise FileTooLargeError(f"{name} has {parts} values: too many")
    if b"\0" in raw:
        raise IncompleteCheckpointError(
            f"{name} is not valid JSON: it is still being written, or is damaged"
        )
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        raise IncompleteCheckpointError(
            f"{name} is not valid JSON: it is still being written, or is damaged"
        ) from None
    if not isinstance(document, dict):
        raise IncompleteCheckpointError(f"{name} is not a JSON object")
    return document


def read_file_size(root: Place, name: str) -> int:
    """Return a file's size, without opening it. Raises IncompleteCheckpointError, OSError."""
    if isinstance(root, RemotePath):
        listed = root.find(name)
        if listed is None:
            raise FileMissingError(f"{name} is missing")
        return listed.size
    _validate_file_name(name)
    try:
        found = (root / name).lstat()
    except (FileNotFoundError, NotADirectoryError):
        raise FileMissingError(f"{name} is missing") from None
    if not stat.S_ISREG(found.st_mode):
        raise IncompleteCheckpointError(f"{name} is not a regular file")
    return found.st_size


def read_file_mtime_ns(root: Place, name: str) -> int:
    """Return when a file was last written, asked of the server by opening it. Raises as
    open_file."""
    with open_file(root, name) as file:
        return file.modified_ns


def has_checkpoint_entry(root: Place, name: str) -> bool:
    """Return whether something of that name is there. Raises OSError."""
    if isinstance(root, RemotePath):
        return root.has(name)
    _validate_file_name(name)
    try:
        (root / name).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_last_file_exists(root: Place, name: str) -> None:
    """Raise UnfinishedCheckpointSaveError where the file that a save writes last is not there.
    Raises OSError."""
    if not has_checkpoint_entry(root, name):
        raise UnfinishedCheckpointSaveError(
            f"{name} is missing: the save writes this file last, so it has not finished"
        )


def make_overwritten_file_error(name: str, since: str) -> IncompleteCheckpointError:
    """Return a file that is written before another is newer than that one."""
    return IncompleteCheckpointError(
        f"{name} is newer than {since}: a later save overwrote it, or it was copied without its "
        "modification times"
    )


def list_entry_names(root: Place) -> frozenset[str] | None:
    """Return the entries of a directory; None for a file. Raises IncompleteCheckpointError,
    OSError."""
    if isinstance(root, RemotePath):
        return root.names()
    names: set[str] = set()
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if len(names) >= MAX_ENTRIES:
                    raise IncompleteCheckpointError(
                        f"its directory has more than {MAX_ENTRIES} entries, more than hpctl reads"
                    )
                names.add(entry.name)
    except NotADirectoryError:
        return None
    return frozenset(names)


def list_directory_names(root: Place, name: str) -> frozenset[str] | None:
    """Return the entries of a sub-directory; None where there is none.

    Raises IncompleteCheckpointError, OSError.
    """
    if isinstance(root, RemotePath):
        return root.below(name)
    _validate_file_name(name)
    try:
        return list_entry_names(root / name)
    except FileNotFoundError:
        return None


def _validate_file_name(name: str) -> None:
    """Raise IncompleteCheckpointError for a name that no file can have, as a document may hold:
    half a surrogate pair, or a null character."""
    try:
        raw = os.fsencode(name)
    except UnicodeEncodeError:
        raw = b"\0"
    if b"\0" in raw:
        raise IncompleteCheckpointError(
            f"{name[:80]!r} is named in the checkpoint, but is not a valid name of a file"
        )


def run_work_for_each_item(root: Place, items: Iterable[T], work: Callable[[T], R]) -> list[R]:
    """Return the work's results in the items' order; what the first that fails raises, goes
    through.

    One after the other on a file system, whose answers mostly come from memory; up to THREADS
    at once where each of them waits for a request.
    """
    if not isinstance(root, RemotePath):
        return [work(item) for item in items]
    with ThreadPoolExecutor(THREADS) as pool:
        # Leaving the loop by an exception cancels all that have not begun.
        return list(pool.map(work, items))


_STEP = re.compile(r"(?:step|iter|iteration|checkpoint|ckpt)[-_=]?(\d{1,18})(?!\d)")
_TRAILING = re.compile(r"(?<!\d)(\d{1,18})(?:\.\w+)?$")


class CheckpointCandidateListing(Struct, frozen=True):
    """One candidate as a single listing shows it. `names` is None for a file."""

    path: Place
    names: frozenset[str] | None
    world_size: int | None = None
    """How many ranks there were, where a file or the user says so: not every format records it."""

    def has(self, name: str) -> bool:
        """Return whether the listing shows this name."""
        return self.names is not None and name in self.names


class CheckpointClaim(Struct, frozen=True):
    """What a candidate says of itself, before anything is proved.

    `step` is None where neither files nor name have it: such a one is older than all that do.
    `world_size` is None where the files do not record it.
    """

    step: int | None
    world_size: int | None
    prove: Callable[[bool], CheckpointDefect | UnverifiedContent | None]
    """`prove(deep)`: the first defect, what is unproven, or None where it is whole. Raises
    IncompleteCheckpointError, OSError."""
    digests: bool = True
    """Whether the format has checksums at all that `deep` could compare."""


class CheckpointFormat(Struct, frozen=True):
    """One way to lay out a checkpoint.

    `claim(layout)` is None where the candidate is none of this format's, a Defect where it is
    but says nothing usable. Raises IncompleteCheckpointError, OSError.
    """

    name: str
    claim: Callable[[CheckpointCandidateListing], CheckpointClaim | CheckpointDefect | None]


def list_checkpoint_candidate_entries(
    path: Place, world_size: int | None = None
) -> CheckpointCandidateListing:
    """List one candidate: a single scan, or a request for each 1000 objects of it, after which
    `Listing.path` holds the answers. Raises IncompleteCheckpointError, OSError."""
    if isinstance(path, RemotePath) and path.snapshot is None:
        try:
            path = path.take_snapshot()
        except FileNotFoundError:
            raise UnfinishedCheckpointSaveError(
                "its directory has become empty: its files were deleted while hpctl read it"
            ) from None
    try:
        return CheckpointCandidateListing(path, list_entry_names(path), world_size)
    except FileNotFoundError:
        # Removed since it was listed: a program that keeps the newest few does that meanwhile.
        raise UnfinishedCheckpointSaveError(
            "the checkpoint was deleted while hpctl read it"
        ) from None


def parse_step_from_name(name: str) -> int | None:
    """Return the step in a name: `iter_0000100`, `epoch=1-step=500.ckpt`, `global_step7`.

    Used for the order of candidates where no file records it, never for a proof.
    """
    found = _STEP.findall(name)
    if found:
        return int(found[-1])
    trailing = _TRAILING.search(name)
    return int(trailing[1]) if trailing else None


STARTS = ".hpctl-starts"
"""One line a start, in ns since the epoch, beside the checkpoints. A line `4 tasks` after it says
how many the job has, where that is known."""
_STARTS_BYTES = 64 << 10
"""Some 2,000 starts. What is older is dropped."""
_TASKS = re.compile(rb"(\d{1,7}) tasks")


class RecordedJobStart(Struct, frozen=True):
    """A start of a job: when, in ns since the epoch, and of how many tasks; 0 where unknown."""

    at_ns: int
    tasks: int = 0


def record_job_start(directory: Path, tasks: int = 0) -> None:
    """Record that a start of so many tasks begins, 0 where that is unknown. Never raises: a
    directory that cannot be written has no saves.

    The time is that which the file system gives the file itself, as it does to the checkpoints'.
    """
    with contextlib.suppress(OSError):
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(directory / STARTS, flags | os.O_NONBLOCK, 0o644)
        try:
            kept = os.read(handle, _STARTS_BYTES)
            if len(kept) == _STARTS_BYTES:
                os.truncate(handle, 0)
                os.write(handle, kept[-_STARTS_BYTES // 2 :].partition(b"\n")[2])
            os.utime(handle)
            line = b"%d\n" % os.fstat(handle).st_mtime_ns
            os.write(handle, line + b"%d tasks\n" % tasks if tasks else line)
        finally:
            os.close(handle)


TEMPORARY = ".tmp"
"""What has this in its name is not finished, whatever it holds: its writer still means to rename
it, so a path given out now could be gone when the job opens it."""


def find_untrusted_owner(path: Place) -> int | None:
    """Return the uid of an owner that has no business here: to load a checkpoint is to run its
    pickles, and in a directory where several may write any of them may claim the newest step."""
    if isinstance(path, RemotePath):
        return None
    with contextlib.suppress(FileNotFoundError):
        owner = path.stat().st_uid
        if owner not in (0, os.geteuid()) and owner != path.parent.stat().st_uid:
            return owner
    return None


def check_files_from_single_job_start(root: Path, files_ns: Iterable[int]) -> None:
    """Raise IncompleteCheckpointError where a start of the job lies between files of the checkpoint
    at `root`."""
    times = sorted(files_ns)
    for start in list_job_start_times(root.parent):
        if times and times[0] < start <= times[-1]:
            raise IncompleteCheckpointError(
                "some of its files are older than the job's restart: a save after the restart "
                "overwrote only a part"
            )


def list_job_start_times(directory: Path) -> list[int]:
    """Return when the job's starts began, in ns since the epoch, by the file system's clock; none
    where that cannot be read."""
    return [start.at_ns for start in read_recorded_job_starts(directory)]


def read_recorded_job_starts(directory: Path) -> list[RecordedJobStart]:
    """Return the starts that are noted; none where they cannot be read."""
    try:
        handle = os.open(directory / STARTS, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return []
    with open(handle, "rb") as file:
        lines = file.read(_STARTS_BYTES).split(b"\n")
    found: list[RecordedJobStart] = []
    for line in lines:
        if line.isdigit() and len(line) < 20:
            found.append(RecordedJobStart(int(line)))
        elif found and (match := _TASKS.fullmatch(line)):
            found[-1] = RecordedJobStart(found[-1].at_ns, int(match[1]))
    return found
