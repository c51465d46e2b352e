"""Megatron-LM's two layouts, and NeMo's directories, which hold the first of them.

torch_dist: torch DCP's files, `metadata.json` and, for what is not sharded, `common.pt`. Legacy:
`mp_rank_TT[_PPP[_EEE]]/model_optim_rng.pt` for each tensor and pipeline rank, and
`distrib_optim.pt` next to it with the distributed optimiser; `args` within the file records the
number of ranks. `latest_checkpointed_iteration.txt` is never a proof that a checkpoint is complete;
of several ranks in the legacy layout only it shows whether all had finished. Source:
NVIDIA/Megatron-LM, megatron/training/checkpointing.py, megatron/core/dist_checkpointing.
"""

import re
from contextlib import suppress
from itertools import chain, product
from pathlib import Path

from hpctl.checkpoints import files
from hpctl.checkpoints.files import (
    CheckpointCandidateListing,
    CheckpointClaim,
    FileMissingError,
    IncompleteCheckpointError,
    Place,
    UnfinishedCheckpointSaveError,
    has_checkpoint_entry,
    list_directory_names,
    make_overwritten_file_error,
    parse_json_object,
    parse_step_from_name,
    read_file_mtime_ns,
    read_small_file,
    run_work_for_each_item,
)
from hpctl.checkpoints.formats import torch_files
from hpctl.checkpoints.formats.pickle_reader import PickledFields

_RANK = re.compile(r"mp_rank_(\d+)(?:_(\d+))?(?:_(\d+))?")
_ITERATION = re.compile(r"iter_\d+")
_LEGACY_FILE = "model_optim_rng.pt"
_MAX_JSON = 1 << 20
_POINTER = "latest_checkpointed_iteration.txt"
_MAX_POINTER = 4096


def detect_torch_dist_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim a torch_dist directory: `metadata.json` or `common.pt` next to torch DCP's files."""
    if layout.names is None or not torch_files.has_dcp_files(layout.names):
        return None
    path = layout.path
    marked = layout.has("metadata.json") or layout.has("common.pt")
    if not marked and not _ITERATION.fullmatch(path.name):
        return None

    def verify_torch_dist_checkpoint(deep: bool) -> None:
        torch_files.check_no_unfinished_marker(path)
        verify_torch_dist_directory(path, deep=deep)

    return CheckpointClaim(parse_step_from_name(path.name), None, verify_torch_dist_checkpoint)


def verify_torch_dist_directory(directory: Place, inside: str = "", *, deep: bool = False) -> None:
    """Raise IncompleteCheckpointError where a torch_dist directory (or `inside` it) is not whole,
    OSError."""
    place = directory / inside if inside else directory
    if not has_checkpoint_entry(place, "metadata.json"):
        raise UnfinishedCheckpointSaveError(
            "metadata.json is missing: the save writes this file last, so it has not finished"
        )
    metadata = parse_json_object(
        read_small_file(place, "metadata.json", _MAX_JSON), "metadata.json"
    )
    backend = metadata.get("sharded_backend")
    if backend != "torch_dist":
        raise IncompleteCheckpointError(
            f"metadata.json names the checkpoint format {str(backend)[:40]!r}, but hpctl reads "
            "only torch_dist"
        )
    common_ns = 0
    if metadata.get("common_backend", "torch") == "torch":
        common_ns = torch_files.verify_torch_save_file(place, "common.pt", deep=deep)
    torch_files.verify_dcp_directory(place, deep=deep)
    # A save begins with it, so that one over an older save, killed immediately, leaves the others
    # old.
    if common_ns > read_file_mtime_ns(place, torch_files.METADATA):
        raise make_overwritten_file_error("common.pt", torch_files.METADATA)


def detect_nemo_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim NeMo 2: a directory with `weights/` (torch_dist) and `context/`. The step is the
    name's, or that of `weights/common.pt` where the name has none."""
    path = layout.path
    if not layout.has("weights"):
        return None
    inside = list_directory_names(path, "weights")
    if inside is None or not (layout.has("context") or torch_files.has_dcp_files(inside)):
        return None

    def verify_nemo_checkpoint(deep: bool) -> None:
        torch_files.check_no_unfinished_marker(path)
        verify_torch_dist_directory(path, "weights", deep=deep)

    step = parse_step_from_name(path.name)
    if step is None and "common.pt" in inside:
        step = torch_files.find_training_step_in_fields(
            torch_files.read_torch_file_fields(path / "weights", "common.pt")
        )
    return CheckpointClaim(step, None, verify_nemo_checkpoint)


def detect_megatron_legacy_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim `iter_XXXXXXX/mp_rank_*`. DeepSpeed's names with `mp_rank` are files, not
    directories."""
    if layout.names is None:
        return None
    ranks = sorted(name for name in layout.names if _RANK.fullmatch(name))
    if not ranks:
        return None
    path, step = layout.path, parse_step_from_name(layout.path.name)
    return CheckpointClaim(
        step, None, lambda deep: _verify_megatron_legacy_checkpoint(path, ranks, step, deep)
    )


def _verify_megatron_legacy_checkpoint(
    path: Place, ranks: list[str], step: int | None, deep: bool
) -> None:
    saved = torch_files.read_torch_file_fields(path, f"{ranks[0]}/{_LEGACY_FILE}")
    iteration, args = saved.integer("iteration"), saved.inner("args")
    if step is not None and iteration is not None and iteration != step:
        raise IncompleteCheckpointError(
            f"{ranks[0]}/{_LEGACY_FILE} is from iteration {iteration}, not from iteration {step}"
        )
    if args is None:
        raise IncompleteCheckpointError(
            f"{ranks[0]}/{_LEGACY_FILE} does not record the training arguments (args), which say "
            "how many ranks saved the checkpoint"
        )
    expected = _list_expected_directories(ranks[0], args)
    distributed = args.get("use_distributed_optimizer") is True
    experts = (args.integer("expert_model_parallel_size") or 1) > 1
    distributed = distributed and args.get("no_save_optim") is not True

    def verify_rank_files(rank: str) -> tuple[int, ...]:
        written_ns = torch_files.verify_torch_save_file(path, f"{rank}/{_LEGACY_FILE}", deep=deep)
        if not distributed:
            return (written_ns,)
        before_ns = torch_files.verify_torch_save_file(path, f"{rank}/distrib_optim.pt", deep=deep)
        # One process writes the optimiser's file and then the other (with experts it may be two).
        if before_ns > written_ns and not experts and isinstance(path, Path):
            raise make_overwritten_file_error(f"{rank}/distrib_optim.pt", _LEGACY_FILE)
        return before_ns, written_ns

    times = run_work_for_each_item(path, expected, verify_rank_files)
    if isinstance(path, Path):
        files.check_files_from_single_job_start(path, chain.from_iterable(times))
        if len(expected) > 1 and step is not None:
            _check_tracker_file_names_step(path, step)


def _check_tracker_file_names_step(path: Path, step: int) -> None:
    """Raise IncompleteCheckpointError where the pointer has not reached this iteration, OSError.

    It is written when every rank has saved (a barrier before it). Without that, each rank's files
    may be complete and of another attempt at the same iteration. A garbled pointer was being
    written, so all ranks had saved.
    """
    try:
        pointer = (
            read_small_file(path.parent, _POINTER, _MAX_POINTER).decode("ascii", "replace").strip()
        )
    except FileMissingError:
        raise UnfinishedCheckpointSaveError(
            f"{_POINTER} is missing in the checkpoint directory: no save has finished there"
        ) from None
    if pointer.isdigit() and int(pointer[:18]) < step:
        raise UnfinishedCheckpointSaveError(
            f"{_POINTER} names iteration {int(pointer[:18])} as the last finished save: this save "
            "has not finished"
        )


def _list_expected_directories(example: str, args: PickledFields) -> list[str]:
    """Return the directories that must be there, in the spelling of one that is."""
    tensor = args.integer("tensor_model_parallel_size")
    pipeline = args.integer("pipeline_model_parallel_size")
    if tensor is None or pipeline is None or not 0 < tensor * pipeline <= 100_000:
        raise IncompleteCheckpointError(
            f"{example}/{_LEGACY_FILE} does not record how many ranks saved the checkpoint"
        )
    experts = args.integer("expert_model_parallel_size") or 1
    names = [f"mp_rank_{rank:02d}" for rank in range(tensor)]
    if pipeline > 1:
        names = _append_rank_numbers(names, pipeline)
    if experts > 1:
        names = _append_rank_numbers(names, experts)
    return names


def _append_rank_numbers(names: list[str], ranks: int) -> list[str]:
    """Return each name once for every rank, with the rank at its end."""
    return [f"{name}_{rank:03d}" for name, rank in product(names, range(ranks))]


def write_tracker_file(directory: Path, step: int) -> None:
    """Write the pointer of a whole legacy save, unless it is already there. Raises OSError."""
    path = directory / _POINTER
    with suppress(FileNotFoundError):
        there = path.read_text("ascii", "replace").strip()
        if not there.isdigit() or int(there[:18]) >= step:
            return
    made = path.with_suffix(".tmp")
    made.write_text(f"{step}")
    made.replace(path)
