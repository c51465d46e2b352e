"""Copy a checkpoint from an object store into a directory: complete under its name, or not at all.

It is copied below a temporary name that every search passes over, compared with the store's
digests, synced, proved by its format's own rules, and renamed. What exists under that name,
incomplete or of an older step, is renamed, never deleted. Only what a killed fetch left under its
temporary name is removed.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain, count
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from hpctl.checkpoints.files import (
    IncompleteCheckpointError,
    ObjectInfo,
    RemotePath,
    run_work_for_each_item,
)
from hpctl.checkpoints.hpctl_checkpoint import sync_directory
from hpctl.checkpoints.search import (
    CompleteCheckpoint,
    SkippedCheckpoint,
    detect_checkpoint_candidate,
    format_storage_error,
    verify_checkpoint_candidate,
)
from hpctl.toolkit.compat import UTC

PIECE = 8 << 20
"""Bytes of one request; THREADS of them are in memory at once."""

RENAMED = ".hpctl-aside-"
_TEMPORARY = ".hpctl-fetch.tmp-"
_LOCK = "lock"


class _ObjectPartWithDigest(Struct, frozen=True):
    """A stretch of one object with its own digest."""

    name: str
    listed: ObjectInfo
    offset: int
    length: int


def fetch_checkpoint(
    found: CompleteCheckpoint,
    into: Path,
    *,
    deep: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> CompleteCheckpoint | SkippedCheckpoint:
    """Copy a checkpoint of an object store to `into/<its name>`; return the copy, or why there is
    none.

    `progress(bytes, of_bytes)` is called from several threads. Does not raise the storage's errors:
    a copy that failed leaves an older checkpoint as the best one.
    """
    if not isinstance(found.path, RemotePath):
        return found
    try:
        return _fetch_checkpoint_to_directory(
            found, found.path.take_snapshot(), into, deep, progress or (lambda *_: None)
        )
    except OSError as error:
        return SkippedCheckpoint(
            found.path, f"not fetched: {format_storage_error(error)}", unreadable=True
        )
    except IncompleteCheckpointError as defect:
        return SkippedCheckpoint(found.path, f"not fetched: {defect}", format=found.format)


def _fetch_checkpoint_to_directory(
    found: CompleteCheckpoint,
    source: RemotePath,
    into: Path,
    deep: bool,
    progress: Callable[[int, int], None],
) -> CompleteCheckpoint | SkippedCheckpoint:
    objects = _list_objects(source)
    total = sum(listed.size for _, listed in objects)
    free = shutil.disk_usage(into).free
    if free < total:
        raise OSError(f"{into} has {free >> 20} MiB free, and {source} needs {total >> 20}")
    with _make_temporary_directory(into) as room:
        copy = room / source.name
        _download_checkpoint_objects(source, objects, copy, lambda done: progress(done, total))
        candidate = detect_checkpoint_candidate(copy)
        row = (
            candidate
            if isinstance(candidate, SkippedCheckpoint)
            else verify_checkpoint_candidate(candidate, deep=deep)
        )
        if isinstance(row, SkippedCheckpoint):
            raise IncompleteCheckpointError(
                f"hpctl's copy of the checkpoint from S3 is incomplete: {row.why}"
            )
        if (row.step, row.format) != (found.step, found.format):
            raise IncompleteCheckpointError(
                "another checkpoint replaced it in S3 while hpctl copied it"
            )
        place = into / source.name
        if os.path.lexists(place):
            place.rename(find_unused_checkpoint_path(place))
        copy.rename(place)
        sync_directory(into)
    return replace(row, path=place, origin=found.path)


def _download_checkpoint_objects(
    source: RemotePath,
    objects: list[tuple[str, ObjectInfo]],
    copy: Path,
    progress: Callable[[int], None],
) -> None:
    for name, listed in objects:
        path = copy / name if name else copy
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.truncate(listed.size)
    sizes = run_work_for_each_item(
        source, objects, lambda pair: source.objects.get_part_size(pair[1])
    )
    parts = []
    for (name, listed), size in zip(objects, sizes, strict=True):
        for at in range(0, listed.size, size):
            parts.append(_ObjectPartWithDigest(name, listed, at, min(size, listed.size - at)))
    brought = run_work_for_each_item(
        source, parts, lambda part: _download_object_part(source, part, copy, progress)
    )
    digests: dict[str, list[bytes]] = {name: [] for name, _ in objects}
    # Formats compare the times of their files: the copy keeps those that the uploader noted. The
    # times of the upload have been judged where they mean something; here all get the newest.
    uploaded_ns = max(listed.modified_ns for _, listed in objects)
    when = {name: uploaded_ns for name, _ in objects}
    for part, (digest, noted_ns) in zip(parts, brought, strict=True):
        digests[part.name].append(digest)
        when[part.name] = when[part.name] if noted_ns is None else noted_ns

    def verify_and_sync_file(pair: tuple[str, ObjectInfo]) -> None:
        name, listed = pair
        if source.objects.matches(listed, digests[name]) is False:
            raise IncompleteCheckpointError(
                f"{name or source.name} differs from its checksum in the object store"
            )
        path = copy / name if name else copy
        os.utime(path, ns=(when[name], when[name]))
        with path.open("rb") as file:
            os.fsync(file.fileno())

    run_work_for_each_item(source, objects, verify_and_sync_file)
    for directory, _, _ in os.walk(copy):
        sync_directory(Path(directory))


def _download_object_part(
    source: RemotePath, part: _ObjectPartWithDigest, copy: Path, progress: Callable[[int], None]
) -> tuple[bytes, int | None]:
    # Not for secrecy: it is the digest that S3 keeps.
    digest, noted_ns = hashlib.md5(usedforsecurity=False), None
    with (copy / part.name if part.name else copy).open("r+b") as out:
        out.seek(part.offset)
        for at in range(part.offset, part.offset + part.length, PIECE):
            length = min(PIECE, part.offset + part.length - at)
            raw, noted_ns = source.objects.read(part.listed, at, length)
            if len(raw) != length:
                raise IncompleteCheckpointError(
                    f"{part.name or source.name} changed in S3 while hpctl copied it"
                )
            digest.update(raw)
            out.write(raw)
            progress(length)
    return digest.digest(), noted_ns


def _list_objects(source: RemotePath) -> list[tuple[str, ObjectInfo]]:
    alone = source.find("")
    if alone is not None:
        return [("", alone)]
    found = source.files()
    for name, _ in found:
        parts = PurePosixPath(name).parts
        if "\0" in name or ".." in parts or "/".join(parts) != name:
            raise IncompleteCheckpointError(
                f"{name!r} is an object's name in S3 that cannot be used as a file's name"
            )
    return found


@contextmanager
def _make_temporary_directory(into: Path) -> Iterator[Path]:
    """Yield a temporary directory below `into`; remove it at the end, with what other fetches left
    behind."""
    for left in into.glob(f"{_TEMPORARY}*"):
        with suppress(OSError), (left / _LOCK).open("r+b") as lock:
            # The process that holds it is still at work, perhaps on another node.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
    room = into / f"{_TEMPORARY}{os.uname().nodename}-{os.getpid()}"
    room.mkdir()
    try:
        with (room / _LOCK).open("xb") as lock:
            with suppress(OSError):  # a file system without locks: nothing removes our copy
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield room
    finally:
        shutil.rmtree(room, ignore_errors=True)


def find_unused_checkpoint_path(path: Path) -> Path:
    """Return a free name for a checkpoint that is in the way."""
    when = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    first = f"{path.name}{RENAMED}{when}"
    others = (f"{first}-{number}" for number in count(2))
    candidates = map(path.with_name, chain([first], others))
    return next(free for free in candidates if not os.path.lexists(free))
