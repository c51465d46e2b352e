"""hpctl's generic manifest: the file that lists the files of a complete checkpoint.

`manifest.json` lies in the checkpoint's own directory and is written after every file that it names
is on stable storage. The format is in docs/checkpoints.md. It carries a checksum of itself, so that
a damaged manifest proves nothing.

Nothing here raises for a bad manifest or a missing file: what is wrong is a returned value, because
a directory that is still being written is common. OSError passes through where the storage itself
fails (EIO, ESTALE, EACCES): that does not show that a file is bad.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePosixPath

import msgspec

from hpctl.checkpoints import hpctl_checkpoint
from hpctl.checkpoints.files import (
    CheckpointDefect,
    FileMissingError,
    IncompleteCheckpointError,
    Place,
    open_file,
    read_file_size,
    run_work_for_each_item,
)
from hpctl.checkpoints.hpctl_checkpoint import FORMAT, NAME, VERSION
from hpctl.toolkit.compat import UTC

MAX_BYTES = 16 << 20
"""A manifest of 100 000 files has about 12 MB. More is refused unread: I/O here is bounded."""

_CHUNK = 8 << 20


class ForeignManifestDefect(CheckpointDefect):
    """A file with the manifest's name of another program: it describes no checkpoint."""

    __slots__ = ()


class ManifestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One file of a checkpoint: path relative to its directory, size in bytes, SHA-256 in hex."""

    path: str
    size: int
    sha256: str | None = None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the file. `step` is the number of optimiser steps done, `created_at` UTC.

    `meta` are strings of the framework, which hpctl stores and never interprets.
    """

    format: str
    version: int
    step: int
    world_size: int
    created_at: datetime
    files: tuple[ManifestFile, ...]
    meta: dict[str, str] = {}


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of `manifest.json`: the document with its checksum, as indented JSON."""
    return hpctl_checkpoint.encode_manifest_document(msgspec.to_builtins(manifest))


def decode_manifest(raw: bytes) -> Manifest | CheckpointDefect:
    """Return the manifest in these bytes, or what is wrong with them."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return CheckpointDefect(f"{NAME} is not JSON ({_shorten_decode_error_message(error)})")
    if not isinstance(document, dict):
        return ForeignManifestDefect(f"{NAME} is not a JSON object")
    if document.get("format") != FORMAT:
        # An empty object has no owner: it may be ours, and damaged.
        kind = ForeignManifestDefect if document else CheckpointDefect
        return kind(f"{NAME} is not of the format {FORMAT!r}")
    if document.get("version") != VERSION:
        version = repr(document.get("version"))[:40]
        return CheckpointDefect(f"{NAME} has version {version}; this hpctl reads {VERSION}")
    checksum = document.pop("checksum", None)
    if checksum != hpctl_checkpoint.compute_manifest_checksum(document):
        return CheckpointDefect(f"{NAME} does not match its own checksum")
    try:
        manifest = msgspec.convert(document, Manifest)
    except msgspec.ValidationError as error:
        return CheckpointDefect(f"{NAME}: {_shorten_decode_error_message(error)}")
    return _find_manifest_field_defect(manifest) or manifest


def read_manifest(directory: Place) -> Manifest | CheckpointDefect | None:
    """Return the manifest of one checkpoint directory; None where there is none (yet).

    Raises OSError where the storage does not answer. Reads at most MAX_BYTES.
    """
    try:
        with open_file(directory, NAME) as file:
            if file.size > MAX_BYTES:
                return CheckpointDefect(f"{NAME} is larger than {MAX_BYTES >> 20} MiB")
            raw = file.read(0, file.size)
    except FileMissingError:
        return None
    except IncompleteCheckpointError as defect:
        return CheckpointDefect(str(defect))
    return decode_manifest(raw)


def verify_manifest_files(
    directory: Place, manifest: Manifest, *, deep: bool = False
) -> CheckpointDefect | None:
    """Return the first thing that keeps a checkpoint from being whole, or None.

    Sizes are always compared: one lstat a file, or only the listing of an object store. With `deep`
    every byte is read and compared with its digest, and a file without a digest is a defect. Raises
    OSError where the storage does not answer.
    """

    def compare_file(file: ManifestFile) -> None:
        size = read_file_size(directory, file.path)
        if size != file.size:
            raise IncompleteCheckpointError(
                f"{file.path} is cut off: it has {size} of {file.size} bytes"
            )
        if deep and file.sha256 is None:
            raise IncompleteCheckpointError(
                f"{file.path} has no checksum in the checkpoint's manifest, so hpctl cannot "
                "verify it"
            )
        if deep and _digest_file(directory, file.path) != file.sha256:
            raise IncompleteCheckpointError(
                f"{file.path} differs from its checksum: the file is damaged"
            )

    try:
        run_work_for_each_item(directory, manifest.files, compare_file)
    except IncompleteCheckpointError as defect:
        return CheckpointDefect(str(defect))
    return None


def make_file_manifest_entry(path: Path, relative_to: Path) -> ManifestFile:
    """Return the manifest's entry for a file, which is synced and read once."""
    name = path.relative_to(relative_to).as_posix()
    return msgspec.convert(hpctl_checkpoint.make_manifest_entry(name, path), ManifestFile)


def write_manifest(
    directory: Path,
    *,
    step: int,
    world_size: int,
    files: Sequence[ManifestFile],
    meta: Mapping[str, str] | None = None,
) -> Manifest:
    """Write the manifest into a directory, last of all, and sync it and the directory.

    The caller has synced every file in `files`, and no other process writes there. Raises
    ValueError for a manifest that `decode` would not take, OSError.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    manifest = Manifest(FORMAT, VERSION, step, world_size, now, tuple(files), dict(meta or {}))
    defect = _find_manifest_field_defect(manifest)
    if defect is not None:
        raise ValueError(str(defect))
    hpctl_checkpoint.write_file_atomically(directory / NAME, encode_manifest(manifest))
    return manifest


def _digest_file(root: Place, name: str) -> str:
    sha = hashlib.sha256()
    with open_file(root, name) as file:
        for at in range(0, file.size, _CHUNK):
            sha.update(file.read(at, min(_CHUNK, file.size - at)))
    return sha.hexdigest()


def _find_manifest_field_defect(manifest: Manifest) -> CheckpointDefect | None:
    """Return what is wrong beyond the types. An empty list of files proves nothing, so it is
    refused."""
    if manifest.step < 0 or manifest.world_size < 1:
        return CheckpointDefect(f"{NAME}: step and world_size cannot be negative")
    if manifest.created_at.tzinfo is None:
        return CheckpointDefect(f"{NAME}: created_at has no time zone")
    if not manifest.files:
        return CheckpointDefect(f"{NAME} names no files")
    return _find_path_defect(file for file in manifest.files)


def _find_path_defect(files: Iterable[ManifestFile]) -> CheckpointDefect | None:
    seen: set[str] = set()
    for file in files:
        parts = PurePosixPath(file.path).parts
        if not parts or file.path.startswith("/") or ".." in parts or "\0" in file.path:
            return CheckpointDefect(f"{NAME}: {file.path!r} does not lie inside the checkpoint")
        if file.path in seen:
            return CheckpointDefect(f"{NAME}: {file.path!r} is named twice")
        if file.size < 0:
            return CheckpointDefect(f"{NAME}: {file.path!r} has a negative size")
        seen.add(file.path)
    return None


def _shorten_decode_error_message(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
