"""The HF Trainer's `checkpoint-N`: the model, the optimizer, the schedule, and last of all
`trainer_state.json`, which has the step; and the safetensors files in it.

The ranks do not wait for each other: a rank's random state may still be missing when
`trainer_state.json` is there. No file records the number of ranks, so only a gap among the
`rng_state_R.pth` is detected; the Trainer itself continues without one. Source:
huggingface/transformers, src/transformers/trainer.py.

A safetensors file is eight bytes of length, a JSON header, the tensors; the header's offsets must
fill the file exactly. The header comes first: a file that was cut is shorter than its header
records. The format does not distinguish zeros from data. Source: the format's description at
huggingface/safetensors.
"""

import codecs
import re
from pathlib import Path, PurePosixPath

import msgspec

from hpctl.checkpoints.files import (
    CheckpointCandidateListing,
    CheckpointClaim,
    FileTooLargeError,
    IncompleteCheckpointError,
    Place,
    UnfinishedCheckpointSaveError,
    list_directory_names,
    make_overwritten_file_error,
    open_file,
    parse_json_object,
    read_file_mtime_ns,
    read_small_file,
    run_work_for_each_item,
)
from hpctl.checkpoints.formats import deepspeed, torch_files

MAX_HEADER = 64 << 20
_MAX_INDEX = 64 << 20
_AHEAD = 64 << 10


def verify_safetensors_file(root: Place, name: str) -> frozenset[str]:
    """Prove a file and return the names of its tensors. Raises IncompleteCheckpointError, OSError.
    Two reads."""
    with open_file(root, name) as file:
        if file.size < 8:
            raise IncompleteCheckpointError(
                f"{file.name} has only {file.size} bytes: it is still being written, or is cut off"
            )
        file.ahead(0, _AHEAD)
        length = int.from_bytes(file.read(0, 8), "little")
        if length > MAX_HEADER or 8 + length > file.size:
            raise IncompleteCheckpointError(
                f"{file.name} is cut off or damaged: its header claims {length} bytes"
            )
        header = parse_json_object(file.read(8, length), file.name)
        end = 0
        tensors = {key: value for key, value in header.items() if key != "__metadata__"}
        for value in tensors.values():
            offsets = value.get("data_offsets") if isinstance(value, dict) else None
            if not isinstance(offsets, list) or len(offsets) != 2:
                raise IncompleteCheckpointError(
                    f"{file.name}: its header names a tensor without its place in the file"
                )
            if not all(type(o) is int and o >= 0 for o in offsets):
                raise IncompleteCheckpointError(
                    f"{file.name}: the offsets in its header are not numbers"
                )
            end = max(end, offsets[1])
        if file.size != 8 + length + end:
            raise IncompleteCheckpointError(
                f"{file.name} is cut off: it has {file.size} of {8 + length + end} bytes"
            )
    return frozenset(tensors)


def read_tensor_names_by_shard(root: Place, index: str) -> dict[str, set[str]]:
    """Return the tensors of each shard, by its name, from an index file. Raises
    IncompleteCheckpointError, OSError."""
    document = parse_json_object(read_small_file(root, index, _MAX_INDEX), index)
    where = document.get("weight_map")
    if not isinstance(where, dict) or not where:
        raise IncompleteCheckpointError(f"{index} has no weight_map, the list of the model's files")
    found: dict[str, set[str]] = {}
    for tensor, shard in where.items():
        if not isinstance(shard, str) or PurePosixPath(shard).name != shard or "\0" in shard:
            raise IncompleteCheckpointError(
                f"{index}: the file {str(shard)[:80]!r} that it names is outside the checkpoint"
            )
        found.setdefault(shard, set()).add(tensor)
    return found


def verify_model_shard_index(root: Place, index: str) -> None:
    """Prove that every shard in the index is complete and holds its tensors. Raises as
    verify_tag_files."""
    named = read_tensor_names_by_shard(root, index)

    def verify_shard(shard: str) -> None:
        missing = named[shard] - verify_safetensors_file(root, shard)
        if missing:
            raise IncompleteCheckpointError(
                f"{shard} does not contain the tensor {min(missing)[:80]} that {index} lists for it"
            )

    run_work_for_each_item(root, sorted(named), verify_shard)


STATE = "trainer_state.json"
_MAX_STATE = 512 << 20
"""The state holds the log history: 130 bytes a logged step, so that each step of a long run has
room."""
_PIECE = 1 << 20
_ARGUMENTS = "training_args.bin"
_NAME = re.compile(r"checkpoint-\d+")
_TAG = re.compile(r"global_step\d+")
_RNG = re.compile(r"rng_state_(\d+)\.pth")
_MODELS = (
    "model.safetensors.index.json",
    "model.safetensors",
    "adapter_model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "adapter_model.bin",
)
_OTHERS = ("optimizer.pt", "optimizer.bin", "scheduler.pt", "scaler.pt", "rng_state.pth")
_FSDP_MODEL, _FSDP_OPTIMIZER = "pytorch_model_fsdp_0", "optimizer_0"
_FSDP_WHOLE = "pytorch_model_fsdp.bin"


def detect_hf_trainer_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim a directory with `trainer_state.json`, or of the Trainer's name with other of its
    files."""
    if layout.names is None:
        return None
    if not layout.has(STATE):
        others = layout.names & {*_MODELS, _FSDP_MODEL, "optimizer.pt", _ARGUMENTS}
        if _NAME.fullmatch(layout.path.name) and others:
            raise UnfinishedCheckpointSaveError(
                f"{STATE} is missing: the save writes this file last, so it has not finished"
            )
        if layout.has(_ARGUMENTS) and layout.names & {*_MODELS} and not layout.has("optimizer.pt"):
            raise UnfinishedCheckpointSaveError(
                "the checkpoint has only model weights (save_model), from which the Trainer "
                "cannot resume"
            )
        return None
    with open_file(layout.path, STATE) as file:
        if file.size > _MAX_STATE:
            raise FileTooLargeError(f"{STATE} has {file.size} bytes: too many")
        step = _parse_global_step(file.read(0, file.size))
    if type(step) is not int or step < 0:
        raise IncompleteCheckpointError(f"{STATE} does not record the step (global_step)")
    path, names = layout.path, layout.names
    return CheckpointClaim(
        step, None, lambda _: _verify_trainer_checkpoint_files(path, names), digests=False
    )


class _TrainerState(msgspec.Struct):
    global_step: int


def _parse_global_step(raw: bytes) -> object:
    """Return the value of `global_step`. Raises IncompleteCheckpointError for bytes that are no
    JSON."""
    try:
        check_utf8(raw)
        # Ten times as fast as json, because the rest is only passed over: a search reads each
        # checkpoint's state, with its whole history.
        return msgspec.json.decode(raw, type=_TrainerState).global_step
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # damaged; or there is a NaN in it, which only Python writes
    return parse_json_object(raw, STATE).get("global_step")


def check_utf8(raw: bytes) -> None:
    """Raise UnicodeDecodeError for bytes that are no UTF-8: msgspec passes over texts without a
    look. In pieces, because one rare character makes a text four times as large as its bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(raw)
    for start in range(0, len(raw), _PIECE):
        decoder.decode(view[start : start + _PIECE])
    decoder.decode(b"", final=True)


def detect_torchtitan_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim torchtitan's last save in HF's layout: shards and an index, nothing of a trainer."""
    match = re.fullmatch(r"step-(\d+)", layout.path.name)
    path, index = layout.path, _MODELS[0]
    if match is None or not layout.has(index):
        return None
    return CheckpointClaim(
        int(match[1]), None, lambda _: verify_model_shard_index(path, index), digests=False
    )


def _verify_trainer_checkpoint_files(path: Place, names: frozenset[str]) -> None:
    tags = sorted(name for name in names if _TAG.fullmatch(name))
    _verify_model_weight_files(path, names, bool(tags))
    for tag in tags:
        deepspeed.verify_nested_deepspeed_tag(path, tag)
    if tags:
        deepspeed.verify_deepspeed_latest_tag(path, tags)
    if not _is_model_weights_only_save(path, names):
        _verify_optimizer(path, names, bool(tags))
    others = [name for name in _OTHERS if name in names]
    run_work_for_each_item(
        path, others, lambda name: torch_files.verify_torch_save_file(path, name)
    )
    _check_files_not_overwritten(path, names)
    ranks = {int(match[1]): name for name in names if (match := _RNG.fullmatch(name))}
    for rank in range(len(ranks)):
        if rank not in ranks:
            raise IncompleteCheckpointError(
                f"rng_state_{rank}.pth is missing, but the files of higher ranks exist"
            )
    run_work_for_each_item(
        path, sorted(ranks), lambda rank: torch_files.verify_torch_save_file(path, ranks[rank])
    )


def _check_files_not_overwritten(path: Place, names: frozenset[str]) -> None:
    """Compare the times of rank 0's own files: the random states of other ranks may come later."""
    written_ns = read_file_mtime_ns(path, STATE)
    mine = {*_MODELS, "optimizer.pt", "optimizer.bin", "scheduler.pt"}
    last = [n for n in sorted(names) if n in mine or n.endswith((".safetensors", ".bin"))]
    if isinstance(path, Path):
        # FSDP's directories end in a file of rank 0's, too; in S3 that is uploaded in any order.
        parts = sorted(names & {_FSDP_MODEL, _FSDP_OPTIMIZER})
        last += [f"{part}/{torch_files.METADATA}" for part in parts]

    def check_file_time(name: str) -> None:
        if read_file_mtime_ns(path, name) > written_ns:
            raise make_overwritten_file_error(name, STATE)

    run_work_for_each_item(path, last, check_file_time)


def _verify_model_weight_files(path: Place, names: frozenset[str], in_tag: bool) -> None:
    """Prove all models that are there: which of them is loaded depends on the Trainer's
    arguments."""
    found = [name for name in (*_MODELS, _FSDP_WHOLE) if name in names]
    if _FSDP_MODEL in names:
        _verify_sharded_directory(path, _FSDP_MODEL)
    elif not found and not in_tag:
        raise IncompleteCheckpointError(
            "model.safetensors is missing, and so is any other model file"
        )
    for name in found:
        verify_model_file(path, name)


def verify_model_file(path: Place, name: str) -> None:
    """Raise IncompleteCheckpointError where a file of weights, or an index with its shards, is not
    whole."""
    if name.endswith("safetensors.index.json"):
        verify_model_shard_index(path, name)
    elif name.endswith(".bin.index.json"):
        run_work_for_each_item(
            path,
            sorted(read_tensor_names_by_shard(path, name)),
            lambda shard: torch_files.verify_torch_save_file(path, shard),
        )
    elif name.endswith(".safetensors"):
        verify_safetensors_file(path, name)
    else:
        torch_files.verify_torch_save_file(path, name)


def _verify_optimizer(path: Place, names: frozenset[str], in_tag: bool) -> None:
    if _FSDP_OPTIMIZER in names:
        _verify_sharded_directory(path, _FSDP_OPTIMIZER)
    elif not in_tag and "optimizer.bin" not in names and "optimizer.pt" not in names:
        raise IncompleteCheckpointError("optimizer.pt is missing")
    if not in_tag and "scheduler.pt" not in names:
        raise IncompleteCheckpointError("scheduler.pt is missing")


def _is_model_weights_only_save(path: Place, names: frozenset[str]) -> bool:
    """Return whether the run was configured to save only the model (`save_only_model` in its
    arguments)."""
    if _ARGUMENTS not in names:
        return False
    return torch_files.read_torch_file_fields(path, _ARGUMENTS).get("save_only_model") is True


def _verify_sharded_directory(path: Place, name: str) -> None:
    if list_directory_names(path, name) is None:
        raise IncompleteCheckpointError(f"{name} is missing")
    try:
        torch_files.verify_dcp_directory(path / name)
    except IncompleteCheckpointError as defect:
        raise IncompleteCheckpointError(f"{name}: {defect}") from None
