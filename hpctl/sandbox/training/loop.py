"""The training loop of one rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpctl.sandbox.training import model, saving
from hpctl.sandbox.training.group import Group, Place, join
from hpctl.sandbox.training.record import Recorder


@dataclass(frozen=True, slots=True)
class Options:
    """What to train. `step_s` is the least wall time of a step, in seconds."""

    directory: Path
    resume_from: Path | None
    steps: int
    checkpoint_every: int
    batch: int
    step_s: float
    seed: int


def train(options: Options, place: Place, save_asked: Callable[[], bool]) -> None:
    """Train from the resume point to the last step, and leave `final.json` (rank 0).

    `save_asked()` is asked once a step; if it is true on any rank, all save after that step.
    Raises PeerLost, CannotResume, OSError.
    """
    group = join(place, options.directory)
    try:
        _train(options, group, save_asked)
    finally:
        group.close()


def _train(options: Options, group: Group, save_asked: Callable[[], bool]) -> None:
    data, vocabulary = model.corpus()
    shape = model.Shape(vocabulary)
    meta = {"model": repr(shape), "seed": str(options.seed), "batch": str(options.batch)}
    if options.resume_from is None:
        state = model.State.start(shape, options.seed)
    else:
        state = saving.load(options.resume_from, meta)
    hosts = [each.decode() for each in group.gather(group.place.host.encode())]
    pen = None
    if group.place.rank == 0:
        pen = Recorder(options.directory, group.name, state.step, hosts)

    shard = _rows(options.batch, group.place)
    while state.step < options.steps:
        not_before = time.monotonic() + options.step_s
        windows, targets = model.batch(data, shape, options.seed, state.step + 1, options.batch)
        loss, gradient = model.loss_and_gradient(
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
            saving.save(group, options.directory, state, meta)
    if pen is not None:
        pen.final(state.weights, state.step)
        pen.close()


def _rows(batch: int, place: Place) -> slice:
    """This rank's rows of the batch."""
    return slice(batch * place.rank // place.size, batch * (place.rank + 1) // place.size)
