"""NVRx's local checkpoints: each rank's own file on its own node's disk, copies on other nodes.

`<root>/[<session>/]<rank>/iter_0000100_7_local.pt` is rank 7's share of iteration 100, in the
directory of the rank that wrote it: rank 7 itself, or with replication another of its clique.
It is written as `..._local.dirty.pt`, exclusively, and renamed; nothing is synced, and nothing
marks an iteration as complete: the ranks agree on the newest of which they see each rank's file.

So an iteration is whole where, in what is visible from here, each rank has a file and every file of
the iteration is a complete archive. Every file, not one for each rank: NVRx takes a rank's own copy
where there is one, and does not look for another if that is bad. No name records the number of
ranks; Megatron's shares have it in their `args`, otherwise the caller must give it. Source:
nvidia-resiliency-ext 0.4.1, checkpointing/local.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain, islice
from pathlib import Path

from msgspec import Struct, field

from hpctl.checkpoints.files import (
    CheckpointCandidateListing,
    CheckpointClaim,
    IncompleteCheckpointError,
    Place,
    UnfinishedCheckpointSaveError,
    UnverifiableCheckpointError,
    list_directory_names,
    run_work_for_each_item,
)
from hpctl.checkpoints.formats import torch_files

FORMAT = "nvrx-local"
_FILE = re.compile(r"iter_(\d{7,18})_(\d{1,7})_local(\.dirty)?\.pt")
_PROBES = 8
_MAX_ARGS = 16 << 20
"""A larger pickle is not read for the number of ranks."""


class NvrxIteration(Struct):
    """The files of one iteration: rank to names below the root, and which ranks are still
    writing."""

    number: int
    files: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    dirty: set[int] = field(default_factory=set)


def detect_nvrx_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim the newest iteration in a directory of ranks' directories."""
    found = list_nvrx_checkpoint_claims(layout)
    return found[0] if found else None


def list_nvrx_checkpoint_claims(layout: CheckpointCandidateListing) -> list[CheckpointClaim]:
    """Return every iteration there, newest first. Empty where it is no such directory. Raises
    OSError."""
    path = layout.path
    if layout.names is None or not isinstance(path, Path):
        return []
    ranks = sorted((name for name in layout.names if name.isdecimal()), key=int)
    # A directory of checkpoints that are called 100, 200, ... is common, too.
    if not any(_list_rank_files(path, rank) for rank in islice(ranks, _PROBES)):
        return []
    iterations: dict[int, NvrxIteration] = {}
    for rank in ranks:
        for name, number, owner, dirty in _list_rank_files(path, rank):
            iteration = iterations.setdefault(number, NvrxIteration(number))
            if dirty:
                iteration.dirty.add(owner)
            else:
                iteration.files[owner].append(f"{rank}/{name}")
    newest = sorted(iterations.values(), key=lambda each: each.number, reverse=True)
    return [_make_nvrx_checkpoint_claim(path, each, layout.world_size) for each in newest]


def _make_nvrx_checkpoint_claim(
    path: Place, iteration: NvrxIteration, world_size: int | None
) -> CheckpointClaim:
    return CheckpointClaim(
        iteration.number,
        world_size,
        lambda deep: _verify_nvrx_iteration(path, iteration, world_size, deep),
    )


def _verify_nvrx_iteration(
    path: Place, iteration: NvrxIteration, world_size: int | None, deep: bool
) -> None:
    files = iteration.files
    names = list(chain.from_iterable(files[rank] for rank in sorted(files)))
    if not names:
        raise UnfinishedCheckpointSaveError(f"iteration {iteration.number} is still being written")
    size = world_size or _read_rank_count(path, names[0])
    if size is None:
        raise UnverifiableCheckpointError(
            f"iteration {iteration.number} has files of {_format_ranks(files)}, but no file"
            " says how many ranks saved it: give --world-size"
        )
    beyond = files.keys() - set(range(size))
    if beyond:
        # NVRx takes an iteration only where its ranks are exactly those of the run.
        raise IncompleteCheckpointError(
            f"iteration {iteration.number} also has files of {_format_ranks(beyond)}, but the job "
            f"has only {size} ranks: a run with more ranks saved this checkpoint"
        )
    missing = sorted(set(range(size)) - files.keys())
    if missing:
        writing = iteration.dirty & set(missing)
        more = f", {_format_ranks(writing)} still being written" if writing else ""
        raise UnfinishedCheckpointSaveError(
            f"iteration {iteration.number} lacks the files of {_format_ranks(missing)}"
            f" of {size}{more}"
        )
    run_work_for_each_item(
        path, names, lambda name: torch_files.verify_torch_save_file(path, name, deep=deep)
    )


def _read_rank_count(path: Place, name: str) -> int | None:
    """Return the number of ranks in Megatron's arguments, within the common part of a share."""
    try:
        common = torch_files.read_torch_file_fields(path, name, _MAX_ARGS).inner("common")
        args = common.inner("args") if common is not None else None
        size = args.integer("world_size") if args is not None else None
    except UnverifiableCheckpointError:
        return None
    if size is not None and not 0 < size <= 1_000_000:
        raise IncompleteCheckpointError(f"{name} has no valid number of ranks: {size}")
    return size


def _list_rank_files(path: Path, rank: str) -> list[tuple[str, int, int, bool]]:
    names = list_directory_names(path, rank) or ()
    return [
        (name, int(match[1]), int(match[2]), match[3] is not None)
        for name in sorted(names)
        if (match := _FILE.fullmatch(name))
    ]


def _format_ranks(ranks: Iterable[int]) -> str:
    """Return `rank 3`, `ranks 0-3, 7`."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and spans[-1][1] == rank - 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    listed = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans[:8])
    many = len(spans) > 1 or (spans and spans[0][0] != spans[0][1])
    return f"rank{'s' if many else ''} {listed}{', ...' if len(spans) > 8 else ''}"
