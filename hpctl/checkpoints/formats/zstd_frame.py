"""A file that is one zstd frame, followed by the lengths of its blocks: nothing is decompressed.

A zstd frame does not record its length, but each of its blocks does. So a truncation, and bytes
behind the end, are found by reading three bytes for each block of at most 128 KiB. Damage within a
block is not found. Source: RFC 8878, section 3.1.1.
"""

from hpctl.checkpoints.files import IncompleteCheckpointError, OpenFile

_MAGIC = bytes.fromhex("28b52ffd")
_CHECKSUM, _SINGLE_SEGMENT = 0x04, 0x20
_DICTIONARY_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_RLE, _RESERVED = 1, 3


def validate_zstd_blocks(file: OpenFile, most: int) -> int:
    """Follow the blocks to the end of the frame, which must be the end of the file.

    Returns the number of blocks that were followed, at most `most`: of a frame with more of them
    nothing is known. Raises IncompleteCheckpointError where the frame ends before or behind the end
    of the file, OSError.
    """
    begin = file.read(0, len(_MAGIC) + 1)
    if not begin.startswith(_MAGIC):
        raise IncompleteCheckpointError(
            f"{file.name} does not begin as compressed data does: the file is damaged"
        )
    descriptor = begin[-1]
    at = len(begin) + _compute_zstd_header_size(descriptor)
    for count in range(1, most + 1):
        header = int.from_bytes(file.read(at, 3), "little")
        is_last, kind, length = header & 1, header >> 1 & 3, header >> 3
        if kind == _RESERVED:
            raise IncompleteCheckpointError(
                f"{file.name} has an unknown kind of block at byte {at}: the file is damaged"
            )
        at += 3 + (1 if kind == _RLE else length)
        if is_last and descriptor & _CHECKSUM:
            at += 4
        if at > file.size:
            raise IncompleteCheckpointError(
                f"{file.name} is cut off: it has {file.size} bytes, but a block ends at byte {at}"
            )
        if is_last and at < file.size:
            raise IncompleteCheckpointError(
                f"{file.name} is damaged: its data ends at byte {at} of {file.size} bytes"
            )
        if is_last:
            return count
    return most


def _compute_zstd_header_size(descriptor: int) -> int:
    """Return the number of bytes of the frame's header behind its descriptor."""
    single = bool(descriptor & _SINGLE_SEGMENT)
    window = 0 if single else 1
    content = _CONTENT_SIZE_BYTES[descriptor >> 6] or (1 if single else 0)
    return window + _DICTIONARY_BYTES[descriptor & 3] + content
