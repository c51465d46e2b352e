"""Accelerate's `save_state`: models, optimizers, schedulers and, last of rank 0, its random states.

Objects that the program registered come after those, and each rank writes its own random states
without waiting for the others. No file records how many there are: a save needs what the save
before it has. The step is that of the directory's name (`step_120`, `epoch_3`; with automatic names
the number of the save). Source: huggingface/accelerate 1.15, src/accelerate/checkpointing.py.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from hpctl.checkpoints.files import (
    CheckpointCandidateListing,
    CheckpointClaim,
    IncompleteCheckpointError,
    Place,
    UnfinishedCheckpointSaveError,
    UnverifiedContent,
    make_overwritten_file_error,
    parse_step_from_name,
    read_file_mtime_ns,
    run_work_for_each_item,
)
from hpctl.checkpoints.formats import deepspeed, hf_trainer, torch_files

_FIRST = "random_states_0.pkl"
_RANDOM = re.compile(r"random_states_(\d+)\.pkl")
_MODEL = re.compile(
    r"(?:model|pytorch_model)(?:_\d+)?\.(?:safetensors|bin)|pytorch_model_fsdp\.bin"
)
_INDEX = re.compile(r"(?:model|pytorch_model)\.(?:safetensors|bin)\.index\.json")
_STATE = re.compile(
    r"(?:optimizer|scheduler|sampler|dl_state_dict)(?:_\d+)?\.bin|scaler\.pt"
    r"|custom_checkpoint_\d+\.pkl"
)
_OPTIMIZER = re.compile(r"optimizer(?:_\d+)?\.bin")
_CUSTOM = "custom_checkpoint_"
_SHARDED = re.compile(r"pytorch_model_fsdp_\d+|optimizer_\d+")
_DEEPSPEED = "pytorch_model"
_MOST_SIBLINGS = 1000


def detect_accelerate_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim a directory with a model and random states, or with an optimizer of such a name."""
    names, path = layout.names, layout.path
    if names is None or not _has_model_file(names):
        return None
    if _FIRST not in names:
        if any(_OPTIMIZER.fullmatch(name) for name in names) and hf_trainer.STATE not in names:
            raise UnfinishedCheckpointSaveError(
                f"{_FIRST} is missing: the save writes this file last, so it has not finished"
            )
        return None
    return CheckpointClaim(
        parse_step_from_name(path.name),
        None,
        lambda deep: _verify_accelerate_checkpoint_files(path, names, deep),
    )


def _has_model_file(names: frozenset[str]) -> bool:
    return any(
        _MODEL.fullmatch(name) or _SHARDED.fullmatch(name) or name == _DEEPSPEED for name in names
    )


def _verify_accelerate_checkpoint_files(
    path: Place, names: frozenset[str], deep: bool
) -> UnverifiedContent | None:
    models = sorted(name for name in names if _MODEL.fullmatch(name) or _INDEX.fullmatch(name))
    states = sorted(name for name in names if _STATE.fullmatch(name))
    ranks = {int(match[1]): name for name in names if (match := _RANDOM.fullmatch(name))}
    run_work_for_each_item(path, models, lambda name: hf_trainer.verify_model_file(path, name))
    run_work_for_each_item(
        path, states, lambda name: torch_files.verify_torch_save_file(path, name, deep=deep)
    )
    for name in sorted(names):
        if _SHARDED.fullmatch(name):
            torch_files.verify_dcp_directory(path / name, deep=deep)
    if _DEEPSPEED in names:
        deepspeed.verify_nested_deepspeed_tag(path, _DEEPSPEED)
    for rank in range(len(ranks)):
        if rank not in ranks:
            raise IncompleteCheckpointError(
                f"random_states_{rank}.pkl is missing, but the files of higher ranks exist"
            )
    written_ns = torch_files.verify_torch_save_file(path, _FIRST, deep=deep)
    others = [name for rank, name in sorted(ranks.items()) if rank]
    run_work_for_each_item(
        path, others, lambda name: torch_files.verify_torch_save_file(path, name, deep=deep)
    )
    for name in [*models, *(each for each in states if not each.startswith(_CUSTOM))]:
        if read_file_mtime_ns(path, name) > written_ns:
            raise make_overwritten_file_error(name, _FIRST)
    return _compare_files_with_sibling_checkpoint(path, names)


def _compare_files_with_sibling_checkpoint(
    path: Place, names: frozenset[str]
) -> UnverifiedContent | None:
    """Raise IncompleteCheckpointError where files are missing that the save before has."""
    sibling = _find_sibling_checkpoint(path) if isinstance(path, Path) else None
    if sibling is None:
        return UnverifiedContent(
            "whether it has all registered objects: there is no other save to compare"
        )
    place, expected = sibling
    missing = sorted(expected - names)
    if missing:
        raise IncompleteCheckpointError(
            f"{missing[0]} is missing, but the checkpoint {place.name} in the same directory has "
            "this file"
        )
    return None


def _find_sibling_checkpoint(path: Path) -> tuple[Path, frozenset[str]] | None:
    """Return the save before this one, else the one after it, with the names in it."""
    mine = parse_step_from_name(path.name)
    found: list[tuple[int, Path]] = []
    with contextlib.suppress(OSError), os.scandir(path.parent) as entries:
        for count, entry in enumerate(entries):
            step = parse_step_from_name(entry.name)
            if count < _MOST_SIBLINGS and step is not None and mine is not None and step != mine:
                found.append((step, path.parent / entry.name))
    older = sorted((pair for pair in found if pair[0] < (mine or 0)), reverse=True)
    newer = sorted(pair for pair in found if pair[0] > (mine or 0))
    for _, place in [*older, *newer]:
        with contextlib.suppress(OSError):
            names = frozenset(os.listdir(place))
            if _FIRST in names:
                return place, frozenset(n for n in names if _is_accelerate_file(n))
    return None


def _is_accelerate_file(name: str) -> bool:
    patterns = (_MODEL, _INDEX, _STATE, _RANDOM, _SHARDED)
    return name == _DEEPSPEED or any(pattern.fullmatch(name) for pattern in patterns)
