"""Flax's `checkpoint_N`, or a `.msgpack` file: one map of MessagePack, arrays as its extensions.

Every value records its length, so that the file must end where its last value does. The bytes of
arrays are passed over, never read. The step is that of the name, else the map's. Sources: msgpack's
specification; google/flax, flax/serialization.py.
"""

from __future__ import annotations

import re

from hpctl.checkpoints.files import (
    CheckpointCandidateListing,
    CheckpointClaim,
    IncompleteCheckpointError,
    OpenFile,
    Place,
    open_file,
    parse_step_from_name,
)

NAME = re.compile(r"checkpoint_\d{1,18}|.+\.msgpack")
_MOST_VALUES = 1_000_000
_DEEPEST = 64
_LONGEST_KEY = 256
_ARRAY = 1
_STEPS = (b"step", b"global_step", b"iteration")
_FIXED = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 0),
    0xCA: 4,
    0xCB: 8,
    0xCC: 1,
    0xCD: 2,
    0xCE: 4,
    0xCF: 8,
    0xD0: 1,
    0xD1: 2,
    0xD2: 4,
    0xD3: 8,
}
"""Codes to the bytes of their value: nil, booleans, floats, integers."""
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""Codes to the bytes of their length: binary, text."""
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""Codes to the bytes of their count, and values an item: arrays, maps."""


def detect_flax_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim a file of that name that begins as a map."""
    path = layout.path
    if layout.names is not None or NAME.fullmatch(path.name) is None:
        return None
    with open_file(path, "") as file:
        head = file.read(0, min(1, file.size))
    if not any(head):
        raise IncompleteCheckpointError(f"{path.name} is empty: its data was never written to disk")
    is_map = head[0] & 0xF0 == 0x80 or head[0] in (0xDE, 0xDF)
    if not is_map:
        return None
    step = parse_step_from_name(path.name)
    if step is None:
        try:
            step = verify_msgpack_file(path)
        except IncompleteCheckpointError:
            step = None  # the proof reports it
    return CheckpointClaim(step, None, lambda _: _verify_flax_checkpoint(path), digests=False)


def _verify_flax_checkpoint(path: Place) -> None:
    verify_msgpack_file(path)


def verify_msgpack_file(path: Place) -> int | None:
    """Raise IncompleteCheckpointError where the file does not end with its last value. Return the
    step in it."""
    with open_file(path, "") as file:
        walk = _MsgpackFileValidator(file)
        walk.value(0)
        if walk.at != file.size:
            raise IncompleteCheckpointError(
                f"{file.name} has {file.size} bytes, but its contents need {walk.at}: the file is "
                "damaged"
            )
        return walk.step


class _MsgpackFileValidator:
    """A walk over the values of one file. `at` is the next one's offset."""

    def __init__(self, file: OpenFile) -> None:
        self.at = 0
        self.step: int | None = None
        self._file = file
        self._left = _MOST_VALUES

    def value(self, depth: int, key: bytes = b"") -> None:
        """Pass over one value. Raises IncompleteCheckpointError."""
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            raise IncompleteCheckpointError(
                f"{self._file.name} is not a valid Flax checkpoint: its contents are nested too "
                "deeply or are too long"
            )
        code = self._read_big_endian_integer(1)
        if code <= 0x7F or code >= 0xE0:
            self._record_training_step(key, depth, code if code <= 0x7F else None)
        elif code in _FIXED:
            size = _FIXED[code]
            unsigned = 0xCC <= code <= 0xCF
            number = self._read_big_endian_integer(size) if unsigned else None
            self._record_training_step(key, depth, number)
            self._skip_bytes(0 if unsigned else size)
        elif 0xA0 <= code <= 0xBF:
            self._skip_bytes(code & 0x1F)
        elif code in _BYTES:
            self._skip_bytes(self._read_big_endian_integer(_BYTES[code]))
        elif code in _EXTENSIONS:
            self._skip_extension(self._read_big_endian_integer(_EXTENSIONS[code]))
        elif code in _FIXED_EXTENSIONS:
            self._skip_extension(_FIXED_EXTENSIONS[code])
        else:
            self._skip_container(code, depth)

    def _skip_container(self, code: int, depth: int) -> None:
        if code & 0xF0 == 0x80:
            count, is_map = code & 0x0F, True
        elif code & 0xF0 == 0x90:
            count, is_map = code & 0x0F, False
        elif code in _CONTAINERS:
            width, values = _CONTAINERS[code]
            count, is_map = self._read_big_endian_integer(width), values == 2
        else:
            raise IncompleteCheckpointError(f"{self._file.name} is damaged at byte {self.at - 1}")
        for _ in range(count):
            key = self._read_key() if is_map else b""
            self.value(depth + 1, key)

    def _read_key(self) -> bytes:
        code = self._read_big_endian_integer(1)
        size = code & 0x1F if 0xA0 <= code <= 0xBF else 0
        if code in (0xD9, 0xDA):
            size = self._read_big_endian_integer(_BYTES[code])
        if (not 0xA0 <= code <= 0xBF and code not in (0xD9, 0xDA)) or size > _LONGEST_KEY:
            raise IncompleteCheckpointError(
                f"{self._file.name} is damaged: the key at byte {self.at} is not text"
            )
        key = self._file.read(self.at, size)
        self.at += size
        return key

    def _skip_extension(self, size: int) -> None:
        kind = self._read_big_endian_integer(1)
        # An array is packed as its shape, type and bytes.
        if kind == _ARRAY and self._file.read(self.at, 1) != b"\x93":
            raise IncompleteCheckpointError(
                f"{self._file.name} is damaged: there is no valid array at byte {self.at}"
            )
        self._skip_bytes(size)

    def _record_training_step(self, key: bytes, depth: int, number: int | None) -> None:
        if key in _STEPS and depth == 1 and self.step is None:
            self.step = number

    def _read_big_endian_integer(self, size: int) -> int:
        raw = self._file.read(self.at, size)
        self.at += size
        return int.from_bytes(raw, "big")

    def _skip_bytes(self, size: int) -> None:
        self.at += size
        if self.at > self._file.size:
            raise IncompleteCheckpointError(
                f"{self._file.name} is cut off: it ends at byte {self._file.size}"
            )
