"""torchtune's `epoch_N`: a model in HF's layout, and next to it `recipe_state/recipe_state.pt`.

The recipe's state (optimizer, seed, epochs done) is one file for all epochs, which each save
overwrites at its end. So training can continue only from the epoch that it is of, and from none
while it is written. The last epoch has none: that training has ended. What is saved asynchronously
is torch DCP's. Source: torchtune 0.6.1, torchtune/training/checkpointing/_checkpointer.py.
"""

import re

from hpctl.checkpoints.files import (
    CheckpointCandidateListing,
    CheckpointClaim,
    IncompleteCheckpointError,
    Place,
    UnfinishedCheckpointSaveError,
    has_checkpoint_entry,
    make_overwritten_file_error,
    open_file,
    read_file_mtime_ns,
    run_work_for_each_item,
)
from hpctl.checkpoints.formats import hf_trainer, torch_files

STATE_DIRECTORY = "recipe_state"
_STATE = f"{STATE_DIRECTORY}/recipe_state.pt"
_FIELD = "epochs_run"
_NAME = re.compile(r"epoch_(\d{1,18})")
_SHARD = re.compile(r"model-\d{5}-of-(\d{5})\.(?:bin|safetensors)")
_OTHERS = re.compile(
    r"adapter_model\.(pt|bin|safetensors)|(model\.safetensors|pytorch_model\.bin)\.index\.json"
)


def detect_torchtune_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim a directory of that name with torchtune's model files. The step is the epoch."""
    match, path = _NAME.fullmatch(layout.path.name), layout.path
    if match is None or layout.names is None:
        return None
    shards = {name: int(found[1]) for name in layout.names if (found := _SHARD.fullmatch(name))}
    others = [name for name in layout.names if _OTHERS.fullmatch(name)]
    if (not shards and not others) or not has_checkpoint_entry(path.parent, STATE_DIRECTORY):
        return None
    epoch, of = int(match[1]), max(shards.values(), default=0)

    def verify_epoch(deep: bool) -> None:
        if len(shards) < of:
            raise IncompleteCheckpointError(f"only {len(shards)} of {of} model files exist")
        _verify_torchtune_epoch_files(path, epoch, sorted([*shards, *others]), deep)

    return CheckpointClaim(epoch, None, verify_epoch)


def _verify_torchtune_epoch_files(path: Place, epoch: int, names: list[str], deep: bool) -> None:
    with open_file(path.parent, _STATE) as file:
        archive = torch_files.verify_and_read_torch_zip_archive(file)
        done = archive.load_fields(frozenset({_FIELD})).integer(_FIELD)
        written_ns = file.modified_ns
        if deep:
            archive.compare()
    if done is None:
        raise IncompleteCheckpointError(f"{_STATE} has no {_FIELD}")
    if done <= epoch:
        raise UnfinishedCheckpointSaveError(
            f"{_STATE} is from epoch {done - 1}: a save is still running, or the training is "
            "complete"
        )
    if done > epoch + 1:
        raise IncompleteCheckpointError(
            f"{_STATE} is from epoch {done - 1}, but torchtune can resume only from a later epoch"
        )

    def verify_shard_file(name: str) -> None:
        hf_trainer.verify_model_file(path, name)
        if read_file_mtime_ns(path, name) > written_ns:
            raise make_overwritten_file_error(name, _STATE)

    run_work_for_each_item(path, names, verify_shard_file)
