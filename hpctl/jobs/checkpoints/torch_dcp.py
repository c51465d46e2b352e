"""torch.distributed.checkpoint (torchtitan's and Megatron's torch_dist lie on it).

`.metadata` is written last, to a temporary name, synced and renamed; it says for every item
which `__R_S.distcp` holds it, from which byte, how many. So: each of those files is there and
long enough, and where its last item is one of torch.save's archives, that archive's end record
is in its place. A save over an old checkpoint leaves the old `.metadata` in place until it ends,
and may have the same sizes; only the time of the files tells. Source: torch 2.13,
torch/distributed/checkpoint/filesystem.py.
"""

from __future__ import annotations

import re

from hpctl.jobs.checkpoints import archives, storage_data
from hpctl.jobs.checkpoints.claim import Claim, Layout, NotWhole, Unfinished, step_in
from hpctl.jobs.checkpoints.files import File, Place, exists, for_each, opened
from hpctl.jobs.checkpoints.storage_data import Held

METADATA = ".metadata"
_DATA = re.compile(r"__\d+_\d+\.distcp")


def claim(layout: Layout) -> Claim | None:
    """A directory with `.metadata` or data files. The step is the name's: no file has it."""
    if layout.names is None or not looks_so(layout.names):
        return None
    path = layout.path

    def run(deep: bool) -> None:
        prove(path, deep=deep)

    return Claim(step_in(path.name), None, run)


def looks_so(names: frozenset[str]) -> bool:
    """Whether a listing looks like one of these, finished or not."""
    return METADATA in names or any(_DATA.fullmatch(name) for name in names)


def prove(directory: Place, *, deep: bool = False) -> None:
    """Raise NotWhole for the first thing that is wrong, OSError where the storage fails.

    I/O: `.metadata` once, then one open and one read of 22 bytes a data file; `deep` reads all.
    """
    if not exists(directory, METADATA):
        raise Unfinished(f"{METADATA} is missing: it is written last")
    with opened(directory, METADATA) as metadata:
        files = storage_data.read(metadata, keep=deep)
        written_ns = metadata.modified_ns

    def one(name: str) -> None:
        with opened(directory, name) as file:
            _fits(file, files[name], written_ns)
            if deep:
                _compare(file, files[name])

    for_each(directory, sorted(files), one)


def _fits(file: File, held: Held, written_ns: int) -> None:
    needed = held.end
    if file.size < needed:
        raise NotWhole(f"{file.name} has {file.size} of {needed} bytes")
    # torch.save's archives all have two members or more; a raw object may be of any size.
    archive = held.plain and held.length >= archives.END_BYTES
    if archive:
        file.ahead(needed - archives.END_BYTES, archives.END_BYTES)
    # No tolerance for clocks that differ: a save that begins a moment after the last one ended is
    # the same sight, and to call a mixture of two saves whole is the one thing not allowed.
    if file.modified_ns > written_ns:
        raise NotWhole(
            f"{file.name} is newer than {METADATA}: saved over, or copied without its times"
        )
    if not archive:
        return
    tail = file.read(needed - archives.END_BYTES, archives.END_BYTES)
    if archives.has_end(tail):
        return
    if not any(tail):
        raise NotWhole(f"{file.name} ends in zeros: its last bytes were never stored")
    if file.read(held.offset, 4) == b"PK\3\4":
        raise NotWhole(f"{file.name} has no zip end record where its last item ends")


def _compare(file: File, held: Held) -> None:
    for offset, length in held.items():
        if held.transformed or file.read(offset, min(4, length)) != b"PK\3\4":
            raise NotWhole(f"{file.name} holds an item without a digest to compare with")
        archives.read(file, offset, length).compare()
