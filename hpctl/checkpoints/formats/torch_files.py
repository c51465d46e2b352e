"""Files that torch itself writes: zip archives of torch.save, single or in distributed checkpoints
(DCP).

An archive's directory and end record are written last, so that they prove all bytes before them:
every member must lie within the file, in front of the directory, without overlap. That does not
detect a byte that the storage lost; with `deep` each member's CRC-32 is compared. Format: PKWARE's
APPNOTE.TXT, 4.3. The older stream (no zip) is four pickles, a list of keys, and the storages of all
tensors in the order of their keys, each behind its number of items. The pickles record how many
items of which type there are, so that the exact size of the file is known. A `.pt`, `.pth` or
`.pth.tar` file that records its step or epoch is a checkpoint, and Lightning's `.ckpt`, which has
`global_step` at the top.

DCP (torchtitan's and Megatron's torch_dist lie on it): `.metadata` is written last, to a temporary
name, synced and renamed. It is a pickle of one big object, of which only `storage_data` matters:
for every item which `__R_S.distcp` holds it, from which byte, and its length. It is read as a
stream, in bounded memory. The proof is that each of those files is there and long enough, and where
its last item is one of torch.save's archives, that archive's end record is in its place. A save
over an old checkpoint leaves the old `.metadata` in place until it ends, and may have the same
sizes; only the times of the files show it. Source: torch 2.13,
torch/distributed/checkpoint/filesystem.py.
"""

from __future__ import annotations

import contextlib
import re
import struct
import zlib
from array import array
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from msgspec import Struct, field

from hpctl.checkpoints.files import (
    CheckpointCandidateListing,
    CheckpointClaim,
    FileTooLargeError,
    IncompleteCheckpointError,
    OpenFile,
    Place,
    UnfinishedCheckpointSaveError,
    UnverifiableCheckpointError,
    check_last_file_exists,
    has_checkpoint_entry,
    make_overwritten_file_error,
    open_file,
    parse_step_from_name,
    read_file_mtime_ns,
    run_work_for_each_item,
)
from hpctl.checkpoints.formats.pickle_reader import (
    RECALLED,
    PickledDictPairReceiver,
    PickledFields,
    PickleReader,
    StorageRef,
)

END_BYTES = 22
_RANK = re.compile(r"(?<![a-z])rank[-_=]?\d", re.IGNORECASE)
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_MEMBER = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_MAX_DIRECTORY = 64 << 20
_CHUNK = 8 << 20
_AHEAD = 16 << 10  # the directory of some 200 tensors
_OLD_STREAM = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_STREAM_PICKLES, _STREAM_OBJECT = 5, 3
"""The magic number, the version, the machine, the object, the keys; which one is the object."""


class ArchiveMember(Struct, frozen=True):
    """One file of an archive. `offset` is its local header's, from the archive's beginning."""

    name: str
    offset: int
    size: int
    crc: int
    stored: bool
    room: int
    """Bytes from its header to the end of its data, at least."""


class TorchZipArchive(Struct, frozen=True):
    """An archive within an open file, from `start` on, whose directory fits."""

    file: OpenFile
    start: int
    members: tuple[ArchiveMember, ...]

    def member(self, ending: str) -> ArchiveMember:
        """Return the member whose name ends so. Raises IncompleteCheckpointError."""
        for member in self.members:
            if member.name.endswith(ending):
                return member
        raise IncompleteCheckpointError(
            f"{self.file.name} does not contain the member {ending.lstrip('/')}"
        )

    def load_fields(self, fields: frozenset[str], limit: int | None = None) -> PickledFields:
        """Return some fields of the saved object, which is never executed.

        Raises FileTooLargeError where its pickle has more than `limit` bytes.
        """
        member = self.member("/data.pkl")
        if limit is not None and member.size > limit:
            raise FileTooLargeError(
                f"data.pkl in {self.file.name} has {member.size} bytes: too many"
            )
        top = self._read_top_pickled_object(member, fields)
        if not isinstance(top, dict):
            raise IncompleteCheckpointError(f"data.pkl in {self.file.name} contains no object")
        return PickledFields(
            _replace_tensors_with_integers(top, self._read_one_item_tensor_integer)
        )

    def step(self) -> int | None:
        """Return the step, where the saved object is one integer, a tensor of one, or contains
        it."""
        return self.numbers().step

    def numbers(self) -> RecordedStepAndRankCount:
        """Return the step, and the number of ranks where the saved object contains it."""
        top = self._read_top_pickled_object(self.member("/data.pkl"), FIELDS)
        if isinstance(top, StorageRef):
            return RecordedStepAndRankCount(self._read_one_item_tensor_integer(top))
        if isinstance(top, dict):
            return get_recorded_step_and_rank_count(
                PickledFields(
                    _replace_tensors_with_integers(top, self._read_one_item_tensor_integer)
                )
            )
        return RecordedStepAndRankCount(top if type(top) is int else None)

    def _read_top_pickled_object(self, member: ArchiveMember, fields: frozenset[str]) -> object:
        view = _FileSlice(
            self.file, f"data.pkl in {self.file.name}", self._find_data_offset(member), member.size
        )
        return PickleReader(view, fields).top()

    def _read_one_item_tensor_integer(self, storage: StorageRef) -> int | None:
        """Return the integer that a tensor of one item holds."""
        size = _INTEGERS.get(storage.kind)
        if storage.count != 1 or size is None:
            return None
        member = self.member(f"/data/{storage.key}")
        if member.size != size:
            raise IncompleteCheckpointError(
                f"{member.name} in {self.file.name} has {member.size} bytes, but needs {size}"
            )
        return _decode_integer(self.file.read(self._find_data_offset(member), size), storage.kind)

    def compare(self) -> None:
        """Read every byte and compare with the CRC-32 in the directory. Raises
        IncompleteCheckpointError."""
        for member in self.members:
            if member.crc == 0 and member.size:
                # torch.serialization.set_crc32_options(False) writes zeros.
                raise IncompleteCheckpointError(
                    f"{self.file.name} has no checksums, so hpctl cannot verify it"
                )
            at, crc, left = self._find_data_offset(member), 0, member.size
            while left:
                part = self.file.read(at, min(left, _CHUNK))
                crc, at, left = zlib.crc32(part, crc), at + len(part), left - len(part)
            if crc != member.crc:
                raise IncompleteCheckpointError(
                    f"{member.name} in {self.file.name} differs from its checksum (CRC-32): the "
                    "file is damaged"
                )

    def _find_data_offset(self, member: ArchiveMember) -> int:
        header = _LOCAL.unpack(self.file.read(self.start + member.offset, _LOCAL.size))
        if header[0] != b"PK\3\4" or not member.stored:
            raise IncompleteCheckpointError(
                f"{member.name} in {self.file.name} is damaged or compressed"
            )
        return self.start + member.offset + _LOCAL.size + int(header[9]) + int(header[10])


_INTEGERS = {
    "LongStorage": 8,
    "IntStorage": 4,
    "ShortStorage": 2,
    "CharStorage": 1,
    "ByteStorage": 1,
}
_ITEM_BYTES = {
    **_INTEGERS,
    **dict.fromkeys(("BoolStorage", "UntypedStorage", "QInt8Storage", "QUInt8Storage"), 1),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage"), 2),
    **dict.fromkeys(("FloatStorage", "QInt32Storage"), 4),
    **dict.fromkeys(("DoubleStorage", "ComplexFloatStorage"), 8),
    "ComplexDoubleStorage": 16,
}
"""Bytes of an item of each kind of storage. Those of later types are UntypedStorage."""


_MOST_NUMBERS, _DEEPEST = 64, 4


def _replace_tensors_with_integers(
    fields: dict[str, object], read: Callable[[StorageRef], int | None]
) -> dict[str, object]:
    """Return the fields, with the integer in place of each tensor of one item, for the first 64 of
    them."""
    found = dict(fields)
    left = [_MOST_NUMBERS]

    def replace_tensors_in_fields(holder: dict[str, object], depth: int) -> None:
        for key, value in holder.items():
            if isinstance(value, StorageRef) and left[0]:
                left[0] -= 1
                holder[key] = read(value)
            elif isinstance(value, dict) and depth < _DEEPEST:
                replace_tensors_in_fields(value, depth + 1)

    replace_tensors_in_fields(found, 1)
    return found


def _decode_integer(raw: bytes, kind: str) -> int:
    return int.from_bytes(raw, "little", signed=kind != "ByteStorage")


class LegacyTorchFile(Struct, frozen=True):
    """A file in torch.save's older format, whose size follows from its storages.

    `numbers` are the integers of its tensors of one item, by the keys of their storages.
    """

    fields: dict[str, object]
    numbers: dict[str, int]

    def load_fields(self) -> PickledFields:
        """Return the FIELDS of the saved object, which is never executed."""
        found = _replace_tensors_with_integers(
            self.fields, lambda storage: self.numbers.get(storage.key)
        )
        return PickledFields(found)


def open_file_from_offset(file: OpenFile, start: int) -> OpenFile:
    """Return the rest of a file, as a file."""
    return _FileSlice(file, file.name, start, file.size - start)


def is_legacy_torch_file(file: OpenFile) -> bool:
    """Return whether a file begins as torch.save's older format."""
    return file.size >= len(_OLD_STREAM) and file.read(0, len(_OLD_STREAM)) == _OLD_STREAM


def verify_and_read_legacy_torch_file(file: OpenFile) -> LegacyTorchFile:
    """Prove that a file in the older format has all of its bytes. Raises IncompleteCheckpointError,
    OSError.

    I/O: its pickles, and eight bytes of each storage.
    """
    storages: dict[str, StorageRef] = {}
    at, found = 0, None
    for number in range(_STREAM_PICKLES):
        reader = PickleReader(open_file_from_offset(file, at), FIELDS, storages=storages)
        top = reader.top()
        at += reader.end
        found = top if number == _STREAM_OBJECT else found
    if not isinstance(found, dict):
        raise IncompleteCheckpointError(f"{file.name} contains no object")
    numbers: dict[str, int] = {}
    for key, storage in sorted(storages.items()):
        size = _ITEM_BYTES.get(storage.kind)
        if size is None:
            raise UnverifiableCheckpointError(
                f"{file.name} contains data of the type {storage.kind:.40}, whose size hpctl does "
                "not know"
            )
        if at + 8 + size * storage.count > file.size:
            raise IncompleteCheckpointError(
                f"{file.name} ends before its last tensor: it is still being written, or is cut off"
            )
        if int.from_bytes(file.read(at, 8), "little") != storage.count:
            raise IncompleteCheckpointError(
                f"{file.name} is damaged: a tensor's size differs from the size in its pickle"
            )
        if storage.count == 1 and storage.kind in _INTEGERS:
            numbers[key] = _decode_integer(file.read(at + 8, size), storage.kind)
        at += 8 + size * storage.count
    if at != file.size:
        raise IncompleteCheckpointError(
            f"{file.name} has {file.size} bytes, but its tensors end at byte {at}: the file is "
            "damaged"
        )
    return LegacyTorchFile(found, numbers)


class _FileSlice(Struct, frozen=True):
    """A stretch of a file, as a file."""

    file: OpenFile
    name: str
    start: int
    size: int

    @property
    def modified_ns(self) -> int:
        return self.file.modified_ns

    def ahead(self, offset: int, length: int) -> None:
        self.file.ahead(self.start + offset, length)

    def read(self, offset: int, length: int) -> bytes:
        return self.file.read(self.start + offset, length)


def verify_and_read_torch_zip_archive(
    file: OpenFile, start: int = 0, length: int | None = None
) -> TorchZipArchive:
    """Prove that an archive's end and directory fit its bytes: three or four reads.

    It fills `length` bytes of the file from `start` on (all of it by default). Raises
    IncompleteCheckpointError.
    """
    length = file.size - start if length is None else length
    file.ahead(start + max(0, length - _AHEAD), min(length, _AHEAD))
    at, size, count = _read_zip_end_record(file, start, length)
    members = _read_zip_archive_members(file, start, at, size)
    if len(members) != count:
        raise IncompleteCheckpointError(
            f"{file.name}: its zip directory lists {len(members)} members, not {count}: the file "
            "is damaged"
        )
    reached = 0
    for member in sorted(members, key=lambda m: m.offset):
        if member.offset < reached:
            raise IncompleteCheckpointError(
                f"{file.name}: it is damaged: members of its zip archive overlap"
            )
        reached = member.offset + member.room
    if reached > at:
        raise IncompleteCheckpointError(
            f"{file.name}: it is damaged: members of its zip archive reach beyond its data"
        )
    if file.read(start, 4) != b"PK\3\4":
        raise IncompleteCheckpointError(
            f"{file.name} does not begin as a zip archive does: the file is damaged"
        )
    return TorchZipArchive(file, start, tuple(members))


def is_zip_end_record(tail: bytes) -> bool:
    """Return whether these last bytes of an archive (END_BYTES of them) are its end record."""
    return len(tail) == END_BYTES and tail[:4] == b"PK\5\6" and tail[-2:] == b"\0\0"


def _read_zip_end_record(file: OpenFile, start: int, length: int) -> tuple[int, int, int]:
    """Return offset, size and count of members of the directory, from one or two end records."""
    if length < END_BYTES:
        raise IncompleteCheckpointError(
            f"{file.name} has only {length} bytes: it is still being written, or is cut off"
        )
    tail = file.read(start + max(0, length - 98), min(98, length))
    if not is_zip_end_record(tail[-END_BYTES:]):
        raise IncompleteCheckpointError(
            f"{file.name} has no zip end record: it is still being written, or is cut off"
        )
    end = _END.unpack(tail[-END_BYTES:])
    count, size, at, expected = int(end[4]), int(end[5]), int(end[6]), length - END_BYTES
    if len(tail) == 98 and tail[56:60] == b"PK\6\7" and tail[:4] == b"PK\6\6":
        record = _END64.unpack(tail[:56])
        count, size, at = int(record[7]), int(record[8]), int(record[9])
        expected = length - 98
        if int(_LOCATOR.unpack(tail[56:76])[2]) != expected:
            raise IncompleteCheckpointError(
                f"{file.name}: it is damaged: its two zip end records differ"
            )
    if at + size != expected:
        raise IncompleteCheckpointError(
            f"{file.name}: it is damaged: its zip end record does not match its size"
        )
    return at, size, count


def _read_zip_archive_members(
    file: OpenFile, start: int, at: int, size: int
) -> list[ArchiveMember]:
    if size > _MAX_DIRECTORY:
        raise IncompleteCheckpointError(
            f"{file.name}: its zip directory has {size} bytes, more than hpctl reads"
        )
    raw, found, here = file.read(start + at, size), [], 0
    while here < size:
        if raw[here : here + 4] != b"PK\1\2" or here + _MEMBER.size > size:
            raise IncompleteCheckpointError(
                f"{file.name} is damaged: its zip directory cannot be read"
            )
        row = _MEMBER.unpack_from(raw, here)
        names, extras, comments = int(row[10]), int(row[11]), int(row[12])
        after = here + _MEMBER.size
        name = raw[after : after + names].decode("utf-8", "replace")
        extra = raw[after + names : after + names + extras]
        packed, unpacked, offset = _read_zip64_sizes(
            file, extra, int(row[8]), int(row[9]), int(row[16])
        )
        room = _LOCAL.size + names + packed
        stored = row[4] == 0 and packed == unpacked
        found.append(ArchiveMember(name, offset, unpacked, int(row[7]), stored, room))
        here = after + names + extras + comments
    return found


def _read_zip64_sizes(
    file: OpenFile, extra: bytes, packed: int, size: int, at: int
) -> tuple[int, int, int]:
    """Return sizes and offset, from the zip64 extra field where the 32-bit ones are full."""
    if 0xFFFFFFFF not in (packed, size, at):
        return packed, size, at
    here = 0
    while here + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, here)
        body = extra[here + 4 : here + 4 + length]
        here += 4 + length
        if kind != 1 or len(body) < 8 * [size, packed, at].count(0xFFFFFFFF):
            continue
        wide = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
        size = next(wide) if size == 0xFFFFFFFF else size
        packed = next(wide) if packed == 0xFFFFFFFF else packed
        at = next(wide) if at == 0xFFFFFFFF else at
        return packed, size, at
    raise IncompleteCheckpointError(
        f"{file.name}: it is damaged: its zip directory lacks 64-bit sizes"
    )


SUFFIXES = (".ckpt", ".pt", ".pth", ".pth.tar")
_QUICK_BYTES = 8 << 20
_STEPS = (
    "global_step",
    "global_steps",
    "step",
    "steps",
    "iteration",
    "iter_num",
    "iter",
    "it",
    "train_step",
    "current_step",
    "num_steps",
    "num_updates",
)
"""The names under which a saved dict records its step, the most specific first."""
_EPOCHS = ("epoch", "current_epoch")
"""The same for a program that counts only epochs."""
_HOLDERS = (
    "trainer",
    "trainer_state",
    "train_state",
    "training_state",
    "state",
    "progress",
    "counters",
    "meta",
    "metadata",
)
"""Dicts of a saved dict that may record its step."""
FIELDS = frozenset(
    {
        *_STEPS,
        *_EPOCHS,
        *_HOLDERS,
        *("optimizer", "save_only_model"),
        *("dp_world_size", "mp_world_size", "world_size", "args", "common"),
        *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
        *("expert_model_parallel_size", "use_distributed_optimizer", "no_save_optim"),
        *("pytorch-lightning_version", "lr_schedulers"),
        *("timestamp", "Timestamp", "batch"),
    }
)
"""The fields of a saved object that any format reads."""


def verify_torch_save_file(root: Place, name: str, *, deep: bool = False) -> int:
    """Prove a file of torch.save. Raises IncompleteCheckpointError where it is not complete. Three
    or four reads.

    Returns when it was last written, in ns since the epoch. `deep` compares the checksums of an
    archive.
    """
    with open_file(root, name) as file:
        if is_legacy_torch_file(file):
            verify_and_read_legacy_torch_file(file)
            return file.modified_ns
        archive = verify_and_read_torch_zip_archive(file)
        archive.member("/data.pkl")
        if deep:
            archive.compare()
        return file.modified_ns


def read_torch_file_fields(root: Place, name: str, limit: int | None = None) -> PickledFields:
    """Return the FIELDS of the saved object, which is never executed. Raises
    IncompleteCheckpointError (FileTooLargeError), OSError.

    Takes a tenth of a second of one core for each MB of its pickle, which does not contain the
    tensors.
    """
    with open_file(root, name) as file:
        return read_open_torch_file_fields(file, limit)


def read_open_torch_file_fields(file: OpenFile, limit: int | None = None) -> PickledFields:
    """Return the same of an open file."""
    if is_legacy_torch_file(file):
        return verify_and_read_legacy_torch_file(file).load_fields()
    return verify_and_read_torch_zip_archive(file).load_fields(FIELDS, limit)


def find_training_step_in_fields(saved: PickledFields) -> int | None:
    """Return the step that a saved dict records, itself or in one of the dicts that often do; where
    Composer keeps it; otherwise the epoch."""
    holders = [saved, *_list_nested_step_fields(saved)]
    for names in (_STEPS, _EPOCHS):
        for holder in holders:
            step = _find_first_integer_field(holder, names)
            if step is not None:
                return step
        batch = _find_composer_batch(saved)
        if batch is not None:
            return batch
    return None


class RecordedStepAndRankCount(Struct, frozen=True):
    """The values that a file records of its checkpoint; None where it does not."""

    step: int | None = None
    ranks: int | None = None


def get_recorded_step_and_rank_count(saved: PickledFields) -> RecordedStepAndRankCount:
    """Return the step and the number of ranks that a saved dict records."""
    ranks = saved.integer("world_size")
    return RecordedStepAndRankCount(
        find_training_step_in_fields(saved), ranks if ranks is not None and ranks > 0 else None
    )


def _list_nested_step_fields(saved: PickledFields) -> Iterator[PickledFields]:
    for name in _HOLDERS:
        with contextlib.suppress(UnverifiableCheckpointError):
            inner = saved.inner(name)
            if inner is not None:
                yield inner


def _find_first_integer_field(saved: PickledFields, names: tuple[str, ...]) -> int | None:
    for name in names:
        number = saved.integer(name)
        if number is not None and number >= 0:
            return number
    return None


def _find_composer_batch(saved: PickledFields) -> int | None:
    with contextlib.suppress(UnverifiableCheckpointError):
        inner: PickledFields | None = saved
        for name in ("state", "timestamp", "Timestamp"):
            inner = inner and inner.inner(name)
        return inner.integer("batch") if inner else None
    return None


def is_single_rank_file(name: str) -> bool:
    """Return whether a file's name shows which rank wrote it: such a file is a part of a
    checkpoint."""
    return _RANK.search(name) is not None


def detect_torch_save_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim a file of torch.save whose content records a step: others may be anything."""
    path = layout.path
    if layout.names is not None or not path.name.endswith(SUFFIXES[1:]):
        return None
    begun = stream = False
    try:
        with open_file(path, "") as file:
            stream = is_legacy_torch_file(file)
            head = file.read(0, min(4, file.size))
            begun = stream or b"PK\3\4".startswith(head) or not any(head)
            saved = read_open_torch_file_fields(file)
            step = find_training_step_in_fields(saved)
    except IncompleteCheckpointError:
        # Saved over in place, and truncated: what was there before is lost, which must be reported.
        if parse_step_from_name(path.name) is None and not begun:
            return None
        raise
    if step is None:
        return None
    if is_single_rank_file(path.name) and _find_composer_batch(saved) is None:
        # Composer's rank 0 saves all, under its name.
        raise UnfinishedCheckpointSaveError(
            "this is the file of one rank: name the checkpoint's directory instead"
        )
    return CheckpointClaim(
        step, None, lambda deep: _verify_finished_torch_file(path, deep), digests=not stream
    )


def detect_lightning_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim a `.ckpt` file, or a `.ckpt` directory of the sharded strategies (`meta.pt` last)."""
    path = layout.path
    if path.suffix != ".ckpt":
        return None
    if layout.names is None:

        def verify_lightning_file(deep: bool) -> None:
            _verify_finished_torch_file(path, deep)
            check_lightning_file_has_training_state(path, "")

        return CheckpointClaim(_read_checkpoint_step(path), None, verify_lightning_file)
    if not has_dcp_files(layout.names):
        return None

    def verify_sharded_directory(deep: bool) -> None:
        check_no_unfinished_marker(path)
        check_last_file_exists(path, "meta.pt")
        verify_torch_save_file(path, "meta.pt", deep=deep)
        check_lightning_file_has_training_state(path, "meta.pt")
        verify_dcp_directory(path, deep=deep)
        if read_file_mtime_ns(path, "meta.pt") < read_file_mtime_ns(path, METADATA):
            raise IncompleteCheckpointError(
                "meta.pt is older than .metadata: a newer save overwrote a part of the checkpoint "
                "and did not finish"
            )

    return CheckpointClaim(parse_step_from_name(path.name), None, verify_sharded_directory)


def check_lightning_file_has_training_state(root: Place, name: str) -> None:
    """Raise IncompleteCheckpointError where Lightning saved only the weights (`save_weights_only`).

    Its fit() ends with a KeyError on such a file, and a job that resumes from it would fail each
    time. Lightning writes `lr_schedulers` in all other cases, even as an empty list.
    """
    saved = read_torch_file_fields(root, name)
    if saved.get("pytorch-lightning_version") and saved.get("lr_schedulers") is None:
        raise IncompleteCheckpointError(
            f"{name or root.name} has only model weights, from which Lightning cannot resume"
        )


def check_no_unfinished_marker(path: Place) -> None:
    """Raise IncompleteCheckpointError where NeMo's `-unfinished` marker lies next to a checkpoint.

    Source: NeMo, nemo/lightning/pytorch/callbacks/model_checkpoint.py.
    """
    marker = path.name.removesuffix(".nemo").removesuffix(".ckpt") + "-unfinished"
    if has_checkpoint_entry(path.parent, marker):
        raise UnfinishedCheckpointSaveError(
            f"the marker file {marker} still exists: the save has not finished"
        )


def _read_checkpoint_step(path: Place) -> int | None:
    named = parse_step_from_name(path.name)
    try:
        # The step is only needed to order the files, and a large pickle takes seconds to read.
        step = find_training_step_in_fields(
            read_torch_file_fields(path, "", None if named is None else _QUICK_BYTES)
        )
    except FileTooLargeError:
        step = None
    return named if step is None else step


def _verify_finished_torch_file(path: Place, deep: bool) -> None:
    check_no_unfinished_marker(path)
    verify_torch_save_file(path, "", deep=deep)


_KEY = "storage_data"
_FQN = "fqn"
_ITEM = ("relative_path", "offset", "length")
_STEP_ITEMS = (*_STEPS, *_HOLDERS, *_EPOCHS)
_FIELDS = frozenset({_KEY, "relative_path", "offset", "length", "transform_descriptors"})


class DcpDataFileItems(Struct):
    """The content of one data file: its last item, and the places of all items, if kept."""

    offset: int
    length: int
    plain: bool
    """Whether the item is stored as it is: torch's archives are, unless they are compressed."""
    places: array[int] = field(default_factory=lambda: array("q"))
    transformed: bool = False

    @property
    def end(self) -> int:
        """Return the least length of the file, in bytes."""
        return self.offset + self.length

    def items(self) -> Iterator[tuple[int, int]]:
        """Return offset and length of each item, in the metadata's order."""
        pairs = iter(self.places)
        return zip(pairs, pairs, strict=True)


class _DcpDataItemReceiver(PickledDictPairReceiver):
    """The receiver of `storage_data` while it is read."""

    def __init__(self, name: str, keep: bool, wants_keys: bool) -> None:
        self.name, self.keep, self.wants_keys = name, keep, wants_keys
        self.held: dict[str, DcpDataFileItems] = {}
        self.steps: dict[str, tuple[str, int, int]] = {}

    def note(self, keys: list[object], values: list[object]) -> None:
        """Keep the places of the items that may hold the step."""
        for key, state in zip(keys, values, strict=True):
            name = key.get(_FQN) if isinstance(key, dict) else None
            if not isinstance(name, str) or not isinstance(state, dict):
                continue
            if name.rpartition(".")[2] in _STEP_ITEMS and len(self.steps) < _MOST_NUMBERS:
                path, at, length = (state.get(key) for key in _ITEM)
                if type(path) is str and type(at) is int and type(length) is int:
                    self.steps[name] = (path, at, length)

    def add(self, values: list[object]) -> None:
        """Take the values of some entries. Raises IncompleteCheckpointError,
        UnverifiableCheckpointError."""
        name, files = self.name, self.held
        for state in values:
            if not isinstance(state, dict):
                if state is RECALLED:
                    raise UnverifiableCheckpointError(
                        f"{name} lists an entry twice, which hpctl cannot interpret"
                    )
                raise IncompleteCheckpointError(f"{name} has an entry without the name of its file")
            path, offset = state.get("relative_path"), state.get("offset")
            length = state.get("length")
            if type(path) is not str or type(offset) is not int or type(length) is not int:
                raise IncompleteCheckpointError(
                    f"{name} has an entry without its file, offset and length"
                )
            if offset < 0 or length < 0:
                raise IncompleteCheckpointError(f"{name}: it gives the file {path} a negative size")
            plain = state.get("transform_descriptors") is None
            held = files.get(path)
            if held is None:
                _check_data_file_path(path, name)
                files[path] = held = DcpDataFileItems(offset, length, plain)
            elif offset + length > held.offset + held.length:
                held.offset, held.length, held.plain = offset, length, plain
            held.transformed = held.transformed or not plain
            if self.keep:
                held.places.extend((offset, length))


def list_dcp_data_files(file: OpenFile, *, keep: bool = False) -> dict[str, DcpDataFileItems]:
    """Return the data files by name; with `keep` the place of each item in them. Raises
    IncompleteCheckpointError, OSError.

    Never executes anything. Raises UnverifiableCheckpointError for metadata that torch does not
    write.
    """
    return _read_dcp_data_items(file, keep=keep, fields=_FIELDS).held


def _read_dcp_data_items(
    file: OpenFile, *, keep: bool, fields: frozenset[str]
) -> _DcpDataItemReceiver:
    top = PickleReader(
        file, fields, _KEY, lambda: _DcpDataItemReceiver(file.name, keep, _FQN in fields)
    ).top()
    found = top.get(_KEY) if isinstance(top, dict) else None
    if found is RECALLED:
        raise UnverifiableCheckpointError(
            f"{file.name} keeps its list of entries in another place, which hpctl cannot read"
        )
    if not isinstance(found, _DcpDataItemReceiver) or not found.held:
        raise IncompleteCheckpointError(f"{file.name} lists no data files")
    return found


def _check_data_file_path(path: str, name: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise IncompleteCheckpointError(
            f"{name} names {path[:80]!r}, which is outside the checkpoint"
        )


METADATA = ".metadata"
_DATA = re.compile(r"__\d+_\d+\.distcp")


def detect_dcp_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim a directory with `.metadata` or data files. The step is the name's: no file has it."""
    if layout.names is None or not has_dcp_files(layout.names):
        return None
    path = layout.path
    step = parse_step_from_name(path.name)
    if step is None and METADATA in layout.names:
        step = _read_dcp_step(path)
    return CheckpointClaim(step, None, lambda deep: verify_dcp_directory(path, deep=deep))


def _read_dcp_step(directory: Place) -> int | None:
    """Return the step that one of its items holds; None where none is known."""
    try:
        with open_file(directory, METADATA) as metadata:
            items = _read_dcp_data_items(metadata, keep=False, fields=_FIELDS | {_FQN}).steps
        for name in sorted(
            items, key=lambda each: _get_step_field_name_priority(each.rpartition(".")[2])
        ):
            path, at, length = items[name]
            with open_file(directory, path) as file:
                step = verify_and_read_torch_zip_archive(file, at, length).step()
            if step is not None and step >= 0:
                return step
    except IncompleteCheckpointError:
        pass  # the proof reports it
    return None


def _get_step_field_name_priority(name: str) -> int:
    """Return the rank of a name: the most specific is first."""
    return _STEP_ITEMS.index(name)


def has_dcp_files(names: frozenset[str]) -> bool:
    """Return whether a listing looks like one of these, finished or not."""
    return METADATA in names or any(_DATA.fullmatch(name) for name in names)


def verify_dcp_directory(directory: Place, *, deep: bool = False) -> None:
    """Raise IncompleteCheckpointError for the first thing that is wrong, OSError where the storage
    fails.

    I/O: `.metadata` once, then one open and one read of 22 bytes a data file; `deep` reads all.
    """
    check_last_file_exists(directory, METADATA)
    with open_file(directory, METADATA) as metadata:
        files = list_dcp_data_files(metadata, keep=deep)
        written_ns = metadata.modified_ns

    def verify_data_file(name: str) -> None:
        with open_file(directory, name) as file:
            _check_dcp_data_file(file, files[name], written_ns)
            if deep:
                _compare_dcp_item_checksums(file, files[name])

    run_work_for_each_item(directory, sorted(files), verify_data_file)


def _check_dcp_data_file(file: OpenFile, held: DcpDataFileItems, written_ns: int) -> None:
    needed = held.end
    if file.size < needed:
        raise IncompleteCheckpointError(
            f"{file.name} is cut off: it has {file.size} of {needed} bytes"
        )
    # torch.save's archives all have two members or more; a raw object may be of any size.
    archive = held.plain and held.length >= END_BYTES
    if archive:
        file.ahead(needed - END_BYTES, END_BYTES)
    # No tolerance for clocks that differ: a save that begins a moment after the last one ended
    # looks the same, and a mixture of two saves must never count as complete.
    if file.modified_ns > written_ns:
        raise make_overwritten_file_error(file.name, METADATA)
    if not archive:
        return
    tail = file.read(needed - END_BYTES, END_BYTES)
    if is_zip_end_record(tail):
        return
    if not any(tail):
        raise IncompleteCheckpointError(
            f"{file.name} ends in zeros: its last bytes were never written to disk"
        )
    if file.read(held.offset, 4) == b"PK\3\4":
        raise IncompleteCheckpointError(
            f"{file.name} has no zip end record after its last item: the file is damaged"
        )


def _compare_dcp_item_checksums(file: OpenFile, held: DcpDataFileItems) -> None:
    for offset, length in held.items():
        if held.transformed or file.read(offset, min(4, length)) != b"PK\3\4":
            raise IncompleteCheckpointError(
                f"{file.name} has an item without a checksum, so hpctl cannot verify it"
            )
        verify_and_read_torch_zip_archive(file, offset, length).compare()
