"""The training loop, and its checkpoints in hpctl's generic manifest format.

Checkpoints are sharded and atomic, with fencing of attempts: every rank writes its slice into a
directory that belongs to this attempt alone; rank 0 writes the manifest last and renames the
directory. rename(2) refuses a target that is a non-empty directory, so of two attempts that reach
the same step (a frozen node that thaws) one wins whole and neither damages the other.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct

from hpctl.checkpoints.files import CheckpointDefect
from hpctl.checkpoints.formats import manifest
from hpctl.checkpoints.formats.manifest import ManifestFile
from hpctl.checkpoints.hpctl_checkpoint import NAME, publish_checkpoint
from hpctl.sandbox.training import model
from hpctl.sandbox.training.group import ProcessGroup, RankInfo, join_process_group
from hpctl.sandbox.training.model import Floats, TrainingProgressRecorder, TrainingState

VECTORS = ("weights", "mean", "square")
"""What of the state is cut into shards."""


class CheckpointResumeError(Exception):
    """The checkpoint that the job is to start from cannot be used."""


def save_checkpoint(
    group: ProcessGroup,
    directory: Path,
    state: TrainingState,
    meta: dict[str, str],
    *,
    shared: bool = True,
) -> Path:
    """Write this step's checkpoint, all ranks together. Returns its directory.

    When it returns the checkpoint is on stable storage. Where the directory is each node's own and
    not `shared`, no rank can rename the others' files: the manifest is what comes last. Raises
    TrainingPeerLostError, OSError.
    """
    final = directory / f"step-{state.step:08d}"
    mine = directory / f"{final.name}.tmp-{group.name}" if shared else final
    mine.mkdir(parents=True, exist_ok=True)
    rank, size = group.place.rank, group.place.size
    shard = mine / f"rank-{rank:05d}.npz"
    part = _make_rank_slice(len(state.weights), group.place)
    with shard.open("wb") as file:
        np.savez(file, **{name: getattr(state, name)[part] for name in VECTORS})
        file.flush()
        os.fsync(file.fileno())
    files = group.gather(msgspec.json.encode(manifest.make_file_manifest_entry(shard, mine)))
    if rank == 0:
        entries = [msgspec.json.decode(each, type=ManifestFile) for each in files]
        manifest.write_manifest(mine, step=state.step, world_size=size, files=entries, meta=meta)
        if shared:
            publish_checkpoint(mine, final)
    group.broadcast(b"saved")
    return final


def load_checkpoint(directory: Path, meta: dict[str, str]) -> TrainingState:
    """Return the state that a checkpoint holds, from all its shards, whatever their number.

    Raises CheckpointResumeError where it is not whole, or is another model's, and OSError.
    """
    document = manifest.read_manifest(directory)
    if not isinstance(document, manifest.Manifest):
        raise CheckpointResumeError(f"{directory}: {document or 'no ' + NAME}")
    defect: CheckpointDefect | None = manifest.verify_manifest_files(directory, document, deep=True)
    if defect is not None:
        raise CheckpointResumeError(f"{directory}: {defect}")
    if document.meta != meta:
        raise CheckpointResumeError(f"{directory} is of another model: {document.meta}, not {meta}")
    pieces: list[list[Floats]] = []
    for file in sorted(document.files, key=lambda each: each.path):
        with np.load(directory / file.path) as shard:
            pieces.append([shard[name] for name in VECTORS])
    weights, mean, square = map(np.concatenate, zip(*pieces, strict=True))
    return TrainingState(weights, mean, square, document.step)


def _make_rank_slice(length: int, place: RankInfo) -> slice:
    """This rank's one of nearly equal parts of a vector, or of a batch's rows."""
    return slice(length * place.rank // place.size, length * (place.rank + 1) // place.size)


class TrainingOptions(Struct, frozen=True):
    """What to train. `step_s` is the least wall time of a step, in seconds."""

    directory: Path
    resume_from: Path | None
    steps: int
    checkpoint_every: int
    batch: int
    step_s: float
    seed: int
    fast: Path | None = None
    """A directory on each node's own disk, for all checkpoints."""


def run_training(options: TrainingOptions, place: RankInfo, save_asked: Callable[[], bool]) -> None:
    """Train from the resume point to the last step, and leave `final.json` (rank 0).

    `save_asked()` is asked once a step; if it is true on any rank, all save after that step.
    Raises TrainingPeerLostError, CheckpointResumeError, OSError.
    """
    group = join_process_group(place, options.directory)
    try:
        _train_steps(options, group, save_asked)
    finally:
        group.close()


def _train_steps(
    options: TrainingOptions, group: ProcessGroup, save_asked: Callable[[], bool]
) -> None:
    data, vocabulary = model.load_corpus()
    shape = model.ModelShape(vocabulary)
    meta = {"model": repr(shape), "seed": str(options.seed), "batch": str(options.batch)}
    if options.resume_from is None:
        state = model.TrainingState.start(shape, options.seed)
    else:
        state = load_checkpoint(options.resume_from, meta)
    hosts = [each.decode() for each in group.gather(group.place.host.encode())]
    pen = None
    if group.place.rank == 0:
        pen = TrainingProgressRecorder(options.directory, group.name, state.step, hosts)

    shard = _make_rank_slice(options.batch, group.place)
    while state.step < options.steps:
        not_before = time.monotonic() + options.step_s
        windows, targets = model.make_training_batch(
            data, shape, options.seed, state.step + 1, options.batch
        )
        loss, gradient = model.compute_loss_and_gradient(
            state.weights, shape, windows[shard], targets[shard]
        )
        # Loss and the wish to save travel with the gradient: every rank must take the same turn.
        mine = np.concatenate([gradient, [loss, float(save_asked())]])
        total = group.all_reduce(mine, not_before)
        state.update(total[:-2] / options.batch)
        if pen is not None:
            pen.step(state.step, float(total[-2]) / options.batch)
        due = state.step % options.checkpoint_every == 0 or state.step == options.steps
        if due or total[-1] > 0:
            place = options.fast or options.directory
            save_checkpoint(group, place, state, meta, shared=options.fast is None)
    if pen is not None:
        pen.final(state.weights, state.step)
        pen.close()
