"""Read from one file of a checkpoint: its container, its step, whether it is truncated.

Archives (zip), torch.save's older stream, plain pickles, safetensors and numpy's arrays record
their length. JSON is complete where it parses. Any other file counts as being written while it
changes from one look to the next, and as truncated where it ends in zeros.
"""

from __future__ import annotations

import ast
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from hpctl.checkpoints.files import (
    IncompleteCheckpointError,
    OpenFile,
    open_file,
    parse_json_object,
)
from hpctl.checkpoints.formats import hf_trainer, torch_files
from hpctl.checkpoints.formats.pickle_reader import PickleReader

YOUNG_S = 60.0
"""A file that changed within this time may still be written."""
LOOK_AGAIN_S = 2.0
_MAX_JSON = 64 << 20
_TAIL = 4096
_MOST_PICKLES = 1000
_NPY = b"\x93NUMPY"


class CheckpointFileSummary(Struct, frozen=True):
    """One file. `is_proved`: its container shows that all of its bytes are there. `ranks` is the
    number of ranks that it records."""

    is_proved: bool
    step: int | None
    size: int
    modified_ns: int
    ranks: int | None = None


def inspect_checkpoint_file(path: Path, *, deep: bool) -> CheckpointFileSummary:
    """Return what a file is. Raises IncompleteCheckpointError where it is truncated or damaged,
    OSError.

    `deep` compares the checksums of an archive.
    """
    with open_file(path, "") as file:
        if file.size == 0:
            raise IncompleteCheckpointError(f"{file.name} is empty")
        is_proved, said = _inspect_file_container_format(path, file, deep)
        return CheckpointFileSummary(is_proved, said.step, file.size, file.modified_ns, said.ranks)


def check_unverified_files_unchanged(files: Sequence[tuple[Path, CheckpointFileSummary]]) -> None:
    """Look again at files of which nothing is proved and that changed lately.

    Raises IncompleteCheckpointError where one has changed. Blocks for LOOK_AGAIN_S at most.
    """
    now_ns = time.time_ns()
    young = [pair for pair in files if abs(now_ns - pair[1].modified_ns) < YOUNG_S * 1e9]
    if not young:
        return
    time.sleep(LOOK_AGAIN_S)
    for path, content in young:
        about = os.stat(path)
        if (about.st_size, about.st_mtime_ns) != (content.size, content.modified_ns):
            raise IncompleteCheckpointError(f"{path.name} is still being written")


def _inspect_file_container_format(
    path: Path, file: OpenFile, deep: bool
) -> tuple[bool, torch_files.RecordedStepAndRankCount]:
    """Return whether the container is proved, and what it records."""
    nothing = torch_files.RecordedStepAndRankCount()
    head = file.read(0, min(8, file.size))
    if head[:4] == b"PK\3\4" or file.name.endswith((*torch_files.SUFFIXES, ".npz")):
        return True, _verify_torch_zip_archive(file, deep)
    if head[:1] == b"\x80" and head[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        _verify_pickle_sequence(file)
        return True, nothing
    if file.name.endswith(".safetensors"):
        hf_trainer.verify_safetensors_file(path, "")
        return True, nothing
    if head[:6] == _NPY:
        return _verify_numpy_file_size(file), nothing
    if file.name.endswith(".json") and file.size <= _MAX_JSON:
        parse_json_object(file.read(0, file.size), file.name)
        return True, nothing
    tail = file.read(max(0, file.size - _TAIL), min(_TAIL, file.size))
    if not any(tail):
        raise IncompleteCheckpointError(
            f"{file.name} ends in zeros: its last bytes were never written to disk"
        )
    return False, nothing


def _verify_torch_zip_archive(file: OpenFile, deep: bool) -> torch_files.RecordedStepAndRankCount:
    nothing = torch_files.RecordedStepAndRankCount()
    if torch_files.is_legacy_torch_file(file):
        return torch_files.get_recorded_step_and_rank_count(
            torch_files.verify_and_read_legacy_torch_file(file).load_fields()
        )
    if file.read(0, min(2, file.size)) in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        _verify_pickle_sequence(file)
        return nothing
    archive = torch_files.verify_and_read_torch_zip_archive(file)
    if deep:
        archive.compare()
    if not any(member.name.endswith("/data.pkl") for member in archive.members):
        return nothing
    return archive.numbers()


def _verify_pickle_sequence(file: OpenFile) -> None:
    """Read one pickle after the other, to the file's end."""
    at = 0
    for _ in range(_MOST_PICKLES):
        reader = PickleReader(torch_files.open_file_from_offset(file, at), frozenset())
        reader.top()
        at += reader.end
        if at == file.size:
            return
    raise IncompleteCheckpointError(
        f"{file.name} has extra bytes after its last pickle: the file is damaged"
    )


def _verify_numpy_file_size(file: OpenFile) -> bool:
    """Compare the size of numpy's array with its header. False for a type of no fixed size."""
    wide = 2 if file.read(6, 1) == b"\1" else 4
    length = int.from_bytes(file.read(8, wide), "little")
    header = file.read(8 + wide, min(length, 1 << 16)).decode("latin-1")
    try:
        about = ast.literal_eval(header.strip())
        kind, shape = about["descr"], about["shape"]
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        raise IncompleteCheckpointError(
            f"{file.name} has no valid header of a NumPy array: the file is damaged"
        ) from None
    match = re.fullmatch(r"[<>|=][a-zA-Z](\d{1,6})", kind) if isinstance(kind, str) else None
    if match is None or not all(type(each) is int and each >= 0 for each in shape):
        return False
    count = 1
    for each in shape:
        count *= each
    needed = 8 + wide + length + count * int(match[1]) * (4 if kind[1] == "U" else 1)
    if file.size < needed:
        raise IncompleteCheckpointError(
            f"{file.name} is cut off: it has {file.size} of {needed} bytes"
        )
    return True
