"""Orbax on one process: its CheckpointManager with its database, and zarr's files in place.

Each keeps its newest two, so that a kill also hits the removal of a step.
"""

import os

from tests.checkpoints.proof.library import DEVICE, Run

if DEVICE == "cpu":
    os.environ["JAX_PLATFORMS"] = "cpu"  # before the import, which reads it

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.path import atomicity

logging.getLogger("absl").setLevel(logging.ERROR)
# Nothing here may make an array yet: that starts JAX's threads, and none survives the fork.
TENSORS, LENGTH = 6, 60_000
CHUNK_BYTES = 100_000


def state(value: float) -> dict[str, Any]:
    arrays = {f"w{n}": jax.device_put(np.full(LENGTH, value, "float32")) for n in range(TENSORS)}
    return {"params": arrays, "stamp": np.float32(value)}


class Managed:
    """An asynchronous save of two items, the tree and JSON, which is renamed at its end."""

    ranks = 1
    handler: ClassVar[dict[str, Any]] = {"use_compression": False}
    options: ClassVar[dict[str, Any]] = {}

    def manager(self, root: Path) -> ocp.CheckpointManager:
        registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
        tree = ocp.PyTreeCheckpointHandler(**self.handler)
        registry.add("state", ocp.args.PyTreeSave, tree)
        registry.add("state", ocp.args.PyTreeRestore, tree)
        return ocp.CheckpointManager(
            root, handler_registry=registry,
            options=ocp.CheckpointManagerOptions(max_to_keep=2, **self.options),
        )  # fmt: skip

    def write(self, run: Run) -> None:
        manager = self.manager(run.root)
        for step in run.steps():
            saved = state(run.value(step))
            chunked = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES), saved)
            items = ocp.args.Composite(
                state=ocp.args.PyTreeSave(saved, save_args=chunked),
                data=ocp.args.JsonSave({"stamp": run.value(step)}),
            )
            with run.saving():
                manager.save(step, args=items, force=True)
                manager.wait_until_finished()

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        step = int(path.name)
        wanted = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), state(-1.0))
        with self.manager(path.parent) as manager:
            held = manager.restore(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.PyTreeRestore(restore_args=wanted), data=ocp.args.JsonRestore()
                ),
            )
        arrays = jax.tree.leaves(held["state"])
        found = {float(value) for array in arrays for value in np.unique(array)}
        return sorted(found | {held["data"]["stamp"]})


class InPlace(Managed):
    """zarr's files under the step's own name from the first, as Orbax does on object stores."""

    handler: ClassVar = {"use_ocdbt": False}
    options: ClassVar = {"temporary_path_class": atomicity.CommitFileTemporaryPath}
