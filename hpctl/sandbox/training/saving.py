"""Sharded checkpoints in hpctl's generic manifest format, atomic, with fencing of attempts.

Every rank writes its slice into a directory that belongs to this attempt alone; rank 0 writes
the manifest last and renames the directory. rename(2) refuses a target that is a non-empty
directory, so of two attempts that reach the same step (a frozen node that thaws) one wins whole
and neither damages the other.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import numpy as np

from hpctl.jobs.checkpoints import manifest
from hpctl.jobs.checkpoints.files import Defect
from hpctl.jobs.checkpoints.hpctl_checkpoint import NAME, publish
from hpctl.jobs.checkpoints.manifest import ManifestFile
from hpctl.sandbox.training.group import Group
from hpctl.sandbox.training.model import Floats, State


class CannotResume(Exception):
    """The checkpoint that the job was told to start from cannot be used."""


def save(group: Group, directory: Path, state: State, meta: dict[str, str]) -> Path:
    """Write this step's checkpoint, all ranks together. Returns its directory.

    When it returns the checkpoint is on stable storage. Raises PeerLost, OSError.
    """
    final = directory / f"step-{state.step:08d}"
    mine = directory / f"{final.name}.tmp-{group.name}"
    mine.mkdir(exist_ok=True)
    rank, size = group.place.rank, group.place.size
    shard = mine / f"rank-{rank:05d}.npz"
    low, high = _slice(len(state.weights), rank, size)
    with shard.open("wb") as file:
        np.savez(
            file,
            weights=state.weights[low:high],
            mean=state.mean[low:high],
            square=state.square[low:high],
        )
        file.flush()
        os.fsync(file.fileno())
    files = group.gather(msgspec.json.encode(manifest.describe(shard, mine)))
    if rank == 0:
        described = [msgspec.json.decode(each, type=ManifestFile) for each in files]
        manifest.write(mine, step=state.step, world_size=size, files=described, meta=meta)
        publish(mine, final)
    group.broadcast(b"saved")
    return final


def load(directory: Path, meta: dict[str, str]) -> State:
    """The state that a checkpoint holds, from all its shards, whatever their number.

    Raises CannotResume where it is not whole, or is another model's, and OSError.
    """
    document = manifest.read(directory)
    if not isinstance(document, manifest.Manifest):
        raise CannotResume(f"{directory}: {document or 'no ' + NAME}")
    defect: Defect | None = manifest.verify(directory, document, deep=True)
    if defect is not None:
        raise CannotResume(f"{directory}: {defect}")
    if document.meta != meta:
        raise CannotResume(f"{directory} is of another model: {document.meta}, not {meta}")
    parts: dict[str, list[Floats]] = {"weights": [], "mean": [], "square": []}
    for file in sorted(document.files, key=lambda each: each.path):
        with np.load(directory / file.path) as shard:
            for name, pieces in parts.items():
                pieces.append(shard[name])
    whole = {name: np.concatenate(pieces) for name, pieces in parts.items()}
    return State(whole["weights"], whole["mean"], whole["square"], document.step)


def _slice(length: int, part: int, parts: int) -> tuple[int, int]:
    """The bounds of one of `parts` nearly equal slices."""
    return length * part // parts, length * (part + 1) // parts
