"""DeepSpeed's `global_stepN`: model states, and each rank's share of the optimiser.

Rank 0 may write `latest` before the others have finished, so the pointer is never read. Each
`*_model_states.pt` records the data-parallel and model-parallel sizes, which give the number of
files; every rank writes its optimiser file after its layers and experts. Source:
microsoft/DeepSpeed, deepspeed/runtime/engine.py.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import TypeAlias

from hpctl.checkpoints import files
from hpctl.checkpoints.files import (
    CheckpointCandidateListing,
    CheckpointClaim,
    IncompleteCheckpointError,
    Place,
    check_last_file_exists,
    list_directory_names,
    make_overwritten_file_error,
    parse_step_from_name,
    read_small_file,
    run_work_for_each_item,
)
from hpctl.checkpoints.formats import torch_files
from hpctl.checkpoints.formats.pickle_reader import PickledFields

_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_Times: TypeAlias = dict[tuple[int, int], tuple[str, int]]
"""Data rank and model rank to a file's name and its time."""
_OTHER = re.compile(r"(?:layer_|expp_rank_).*_states\.pt")
_LATEST = "latest"
_MAX_LATEST = 4096
_LIGHTNINGS = "checkpoint"
"""The one tag that Lightning's strategy saves under, in a separate directory."""


def detect_deepspeed_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim a directory with model or optimiser states. The step is the name's, else the file's."""
    if layout.names is None or not any(
        _MODEL.fullmatch(n) or _is_state_file(n) for n in layout.names
    ):
        return None
    path, names, step = layout.path, layout.names, parse_step_from_name(layout.path.name)
    return CheckpointClaim(
        step, None, lambda deep: verify_tag_files(path, "", names, step, deep=deep)
    )


def detect_lightning_deepspeed_checkpoint(
    layout: CheckpointCandidateListing,
) -> CheckpointClaim | None:
    """Claim a `.ckpt` directory of Lightning's DeepSpeed strategy. The step is the name's, else the
    file's."""
    path = layout.path
    if path.suffix != ".ckpt" or not layout.has(_LIGHTNINGS):
        return None
    names = list_directory_names(path, _LIGHTNINGS) or frozenset()
    first = next((name for name in sorted(names) if _MODEL.fullmatch(name)), None)
    if first is None:
        return None
    example = f"{_LIGHTNINGS}/{first}"

    def verify_lightning_checkpoint(deep: bool) -> None:
        torch_files.check_no_unfinished_marker(path)
        check_last_file_exists(path, _LATEST)
        verify_deepspeed_latest_tag(path, {_LIGHTNINGS})
        verify_tag_files(path, f"{_LIGHTNINGS}/", names, None, deep=deep)
        torch_files.check_lightning_file_has_training_state(path, example)

    step = parse_step_from_name(path.name)
    return CheckpointClaim(
        torch_files.find_training_step_in_fields(torch_files.read_torch_file_fields(path, example))
        if step is None
        else step,
        None,
        verify_lightning_checkpoint,
    )


def verify_deepspeed_latest_tag(directory: Place, tags: Collection[str]) -> None:
    """Raise IncompleteCheckpointError where `latest` names none of the tags in a checkpoint,
    OSError.

    A program that resumes such a checkpoint cannot name the tag: DeepSpeed reads only that file.
    """
    tag = read_small_file(directory, _LATEST, _MAX_LATEST).decode("utf-8", "replace").strip()
    if tag not in tags:
        raise IncompleteCheckpointError(
            f"{_LATEST} names the directory {tag[:40]!r}, which does not exist"
        )


def verify_nested_deepspeed_tag(directory: Place, inside: str) -> None:
    """Prove a tag within another checkpoint. Raises IncompleteCheckpointError, OSError."""
    names = list_directory_names(directory, inside)
    if names is None:
        raise IncompleteCheckpointError(f"{inside} is not a directory")
    verify_tag_files(directory, f"{inside}/", names, parse_step_from_name(inside))


def verify_tag_files(
    root: Place, prefix: str, names: frozenset[str], step: int | None, *, deep: bool = False
) -> None:
    """Raise IncompleteCheckpointError for the first thing wrong with the files `root/prefix*`,
    OSError.

    I/O: three or four reads a file, and the pickle of one model-states file.
    """
    model = {n: m for n in sorted(names) if (m := _MODEL.fullmatch(n))}
    optimizer = {n: m for n in sorted(names) if (m := _OPTIMIZER.fullmatch(n))}
    if not model:
        raise IncompleteCheckpointError(f"{prefix}*_model_states.pt is missing")
    first = next(iter(model))
    saved = torch_files.read_torch_file_fields(root, prefix + first)
    data, tensor = _read_parallel_sizes(saved, prefix + first)
    recorded = saved.integer("global_steps")
    if step is not None and recorded is not None and recorded != step:
        raise IncompleteCheckpointError(
            f"{prefix}{first} is from step {recorded}, not from step {step}"
        )
    sharded = model[first][1] is not None
    _check_all_ranks_present(
        prefix,
        "model",
        {_parse_data_and_tensor_ranks(m) for m in model.values()},
        data if sharded else 1,
        tensor,
    )
    if optimizer:
        _check_all_ranks_present(
            prefix,
            "optim",
            {_parse_data_and_tensor_ranks(m) for m in optimizer.values()},
            data,
            tensor,
        )
    elif saved.get("optimizer") is None:
        # Without ZeRO the optimiser's state is in the model's file; with it, in separate files.
        raise IncompleteCheckpointError(f"{prefix}*_optim_states.pt is missing")
    if step is None and recorded is not None:
        # A tag like "best" is saved over by later steps; global_step40 only by the same step.
        run_work_for_each_item(
            root,
            list(model)[1:],
            lambda name: _check_file_records_step(root, prefix + name, first, recorded),
        )
    every = [name for name in sorted(names) if name in model or _is_state_file(name)]
    times = run_work_for_each_item(
        root, every, lambda name: torch_files.verify_torch_save_file(root, prefix + name, deep=deep)
    )
    if isinstance(root, Path):
        written = dict(zip(every, times, strict=True))
        _check_write_order(
            prefix,
            {
                _parse_data_and_tensor_ranks(match): (name, written[name])
                for name, match in model.items()
            },
            {
                _parse_data_and_tensor_ranks(match): (name, written[name])
                for name, match in optimizer.items()
            },
        )
        files.check_files_from_single_job_start(root, times)


def _check_file_records_step(root: Place, name: str, first: str, step: int) -> None:
    other = torch_files.read_torch_file_fields(root, name).integer("global_steps")
    if other != step:
        raise IncompleteCheckpointError(
            f"{name} is from step {other}, but {first} is from step {step}: a newer save "
            "overwrote a part of the checkpoint"
        )


def _check_write_order(prefix: str, model: _Times, optimizer: _Times) -> None:
    """Compare the times: one process writes a rank's model states and then its share of the
    optimiser.

    Where the second is the older one it is from a save before. Objects in S3 have the times of
    their upload, in any order: those prove nothing.
    """
    for pair, (name, written_ns) in optimizer.items():
        before = model.get(pair)
        if before is not None and written_ns < before[1]:
            raise make_overwritten_file_error(f"{prefix}{before[0]}", name)


def _is_state_file(name: str) -> bool:
    return _OPTIMIZER.fullmatch(name) is not None or _OTHER.fullmatch(name) is not None


def _parse_data_and_tensor_ranks(match: re.Match[str]) -> tuple[int, int]:
    return int(match[1] or 0), int(match[2])


def _read_parallel_sizes(saved: PickledFields, name: str) -> tuple[int, int]:
    data, tensor = saved.integer("dp_world_size"), saved.integer("mp_world_size")
    if data is None or tensor is None or not 0 < data * tensor <= 100_000:
        raise IncompleteCheckpointError(
            f"{name} does not record how many ranks saved the checkpoint"
        )
    return data, tensor


def _check_all_ranks_present(
    prefix: str, kind: str, have: set[tuple[int, int]], data: int, tensor: int
) -> None:
    for rank in range(data):
        for part in range(tensor):
            if (rank, part) not in have:
                raise IncompleteCheckpointError(
                    f"{prefix}*_{kind}_states.pt of data rank {rank}, model rank {part} is "
                    f"missing ({len(have)} of {data * tensor} files exist)"
                )
