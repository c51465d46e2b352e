"""Where a start resumes: the newest whole checkpoint, looked up at each start.

`find_newest_complete_checkpoint` is the one look-up: it searches the job's directory, its tiers and
the nodes' own fast saves. `hpctl checkpoint last` prints its answer, and the batch script's
preamble runs that command. `find_resume_point` adds the rule of a start: wait for a directory that
cannot be read, and refuse to start from the beginning over damaged checkpoints. `hpctl run` calls
it for each step, the launcher inside a step for each generation of ranks
(`find_resume_point_of_rank_generation`), and ranks that restart within their processes run this
module: `python -m hpctl.checkpoints.resume GENERATION empty|resumed`.

The module is cheap to import: it imports the readers of checkpoints on demand.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from hpctl.checkpoints.patterns import parse_checkpoint_file_patterns
from hpctl.toolkit.bounds import parse_count
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.trouble import STOP_EXIT_CODE

if TYPE_CHECKING:
    from hpctl.checkpoints.fast.spec import FastCheckpointSaveSpec
    from hpctl.checkpoints.files import Place
    from hpctl.checkpoints.search import (
        CheckpointSearchResult,
        CompleteCheckpoint,
        SkippedCheckpoint,
    )

PAUSES_S = (2.0, 5.0, 10.0)
"""Seconds between attempts while a checkpoint directory cannot be read, 17 s in all."""


class CheckpointSearchPlaces(Struct, frozen=True):
    """The places where one job's checkpoints may be. `nodes` is how many run: of several, none can
    read another's own disk. `fast`: the job's own saves on its nodes. `files`: the patterns of
    files that no format recognizes."""

    directory: Path
    tiers: tuple[str, ...] = ()
    nodes: int = 1
    fast: FastCheckpointSaveSpec | None = None
    files: tuple[str, ...] = ()

    @property
    def is_directory_only(self) -> bool:
        """Return whether the directory is the only place."""
        return not self.tiers and self.fast is None


def read_resume_places(
    environment: Mapping[str, str], nodes: int = 0
) -> CheckpointSearchPlaces | None:
    """Return the places that `hpctl sbatch` exports; None for a job without a directory.

    `nodes`: 0 for those of the job. Raises HpctlError where HPCTL_TIERS is not a list of places: a
    newer checkpoint may be in a place that it should name.
    """
    directory = environment.get("HPCTL_CHECKPOINT_DIR", "")
    if not directory:
        return None
    count = nodes or parse_count(environment.get("SLURM_JOB_NUM_NODES", "")) or 1
    tiers = _read_json_list(environment, "HPCTL_TIERS", "places")
    fast = load_usable_fast_save_spec(environment)
    return CheckpointSearchPlaces(
        Path(directory), tiers, count, fast, read_declared_patterns(environment)
    )


FILES_VARIABLE = "HPCTL_CHECKPOINT_FILES"
"""The patterns of --checkpoint-files in the job's environment, a JSON list."""


def read_declared_patterns(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the patterns of --checkpoint-files that `hpctl sbatch` exports. Raises HpctlError."""
    return _read_json_list(environment, FILES_VARIABLE, "patterns")


def _read_json_list(environment: Mapping[str, str], name: str, what: str) -> tuple[str, ...]:
    text = environment.get(name) or "[]"
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise HpctlError(
            f"the environment variable {name} is not a JSON list of {what}: {text:.80}",
            "Do not set the variable in the job: hpctl sbatch sets it.",
        )
    return tuple(values)


def count_tasks_per_job_step(environment: Mapping[str, str]) -> int:
    """Return how many tasks each step of the job has by its options; 0 where that is unknown, or
    where each node has one, which may be a launcher of several ranks."""
    if environment.get("HPCTL_SPARES"):
        return 0
    tasks = parse_count(environment.get("SLURM_NTASKS", ""))
    return tasks if tasks != parse_count(environment.get("SLURM_JOB_NUM_NODES", "")) else 0


def load_usable_fast_save_spec(environment: Mapping[str, str]) -> FastCheckpointSaveSpec | None:
    """Return the job's fast saves; None where it has none, or where they cannot be read: the log
    gives the reason, and the start uses the other places."""
    from hpctl.checkpoints.fast.spec import ENVIRONMENT

    if not environment.get(ENVIRONMENT):
        return None
    from hpctl.checkpoints.fast import helpers

    try:
        return helpers.load_fast_save_spec(environment)
    except HpctlError as error:
        helpers.log_fast_save_message(f"off: {error}")
        return None


def find_newest_complete_checkpoint(  # noqa: PLR0913 -- the options of `hpctl checkpoint last`
    places: Sequence[str],
    open_place: Callable[[str], Place],
    bring: Callable[[CompleteCheckpoint], CompleteCheckpoint | SkippedCheckpoint] | None,
    *,
    nodes: int = 1,
    fast: FastCheckpointSaveSpec | None = None,
    deep: bool = False,
    world_size: int | None = None,
    declared: Sequence[str] = (),
) -> CheckpointSearchResult:
    """Return the newest whole checkpoint in all places, and what was passed over.

    `places` are directories, `local:DIR` and `s3://...`; `fast` are the job's own saves on its
    nodes, which are gathered where they are newer. `open_place`, `bring`, `nodes`, `deep` and
    `world_size` are as for `search.parse_checkpoint_storage_tiers` and `search.last_complete`,
    `declared` are the patterns of --checkpoint-files. Blocks; does not raise for a place that
    cannot be read. Raises HpctlError for a text that is not a pattern.
    """
    from hpctl.checkpoints.search import (
        find_newest_complete_checkpoint_in_tiers,
        parse_checkpoint_storage_tiers,
    )

    tiers, unseen = parse_checkpoint_storage_tiers(places, open_place)
    result = find_newest_complete_checkpoint_in_tiers(
        tiers,
        deep=deep,
        nodes=nodes,
        world_size=world_size,
        bring=bring,
        declared=parse_checkpoint_file_patterns(declared),
    )
    result = replace(result, unseen=(*unseen, *result.unseen))
    if fast is None:
        return result
    from hpctl.checkpoints.fast import helpers
    from hpctl.checkpoints.fast.lead import restore_fast_saves

    return restore_fast_saves(
        fast, result, helpers.log_fast_save_message, helpers.find_hosts_without_job_ranks
    )


class ResumePoint(Struct, frozen=True):
    """The state of the checkpoint directory at one time. `judged` is false where that is
    unknown."""

    path: str | None = None
    step: int | None = None
    judged: bool = True
    unknown: str = ""
    """Files that are there instead, in no known format."""
    unproven: str = ""
    """The part of its files that nothing proves."""
    skip: str = ""
    """The batches that a run leaves out after going back, `20:22`."""


class NoCompleteCheckpointError(HpctlError):
    """An error of checkpoints of which none is complete or readable: never a fresh start."""


def find_resume_point(
    places: CheckpointSearchPlaces | None,
    *,
    was_empty: bool = False,
    sleep: Callable[[float], object] = time.sleep,
) -> ResumePoint:
    """Return where to resume; a ResumePoint without a path is a first start. Raises
    NoCompleteCheckpointError.

    A run never starts from the beginning over checkpoints that are damaged or cannot be read;
    places that cannot be read are tried for 17 s. `was_empty`: the run began with nothing, so that
    it wrote all that is there now: if none of that is complete, the run starts from the beginning.
    A checkpoint in S3 is copied into the directory.
    """
    if places is None:
        return ResumePoint(judged=False)
    from hpctl.checkpoints import files

    files.record_job_start(places.directory)
    for pause in (0.0, *PAUSES_S):
        sleep(pause)
        search = _search_places_for_newest_checkpoint(places)
        if search.verdict in ("found", "none"):
            return _make_resume_point(search)
        if search.verdict == "incomplete":
            break
    if was_empty and search.verdict == "incomplete":
        return ResumePoint(judged=False)
    raise NoCompleteCheckpointError(
        _describe_search_failure(search, places.directory),
        "It does not start from scratch over them. Repair it, or submit with an empty"
        " --checkpoint-dir (or HPCTL_RESUME=scratch, for every start)",
    )


def _search_places_for_newest_checkpoint(places: CheckpointSearchPlaces) -> CheckpointSearchResult:
    from hpctl.checkpoints.remote import open_local_or_s3_checkpoint_path

    def fetch_to_directory(found: CompleteCheckpoint) -> CompleteCheckpoint | SkippedCheckpoint:
        from hpctl.checkpoints.fetch import fetch_checkpoint

        return fetch_checkpoint(found, places.directory)

    named = [str(places.directory), *places.tiers]
    return find_newest_complete_checkpoint(
        named,
        open_local_or_s3_checkpoint_path,
        fetch_to_directory,
        nodes=places.nodes,
        fast=places.fast,
        declared=places.files,
    )


def find_newest_resume_point(directory: Path | None, files: Sequence[str] = ()) -> ResumePoint:
    """Return the newest checkpoint now. A directory that cannot be read is not judged, never
    "none". `files` are the patterns of --checkpoint-files."""
    from hpctl.checkpoints.search import find_newest_complete_checkpoint_in_tiers

    if directory is None:
        return ResumePoint(judged=False)
    try:
        return _make_resume_point(
            find_newest_complete_checkpoint_in_tiers(
                directory, declared=parse_checkpoint_file_patterns(files)
            )
        )
    except OSError:
        return ResumePoint(judged=False)


def find_baseline_resume_point_of_step(
    resume: ResumePoint, directory: Path | None, files: Sequence[str] = ()
) -> ResumePoint:
    """Return the point with which a step's own saves are compared: its resume point, or, where that
    lies in another tier, what is in its directory."""
    if resume.path is None or directory is None or Path(resume.path).parent == directory:
        return resume
    return find_newest_resume_point(directory, files)


def _make_resume_point(search: CheckpointSearchResult) -> ResumePoint:
    found = search.found
    if found is None:
        return ResumePoint(judged=search.verdict == "none", unknown=search.unrecognized_files_note)
    return ResumePoint(str(found.path), found.step, unproven=found.unproven, skip=search.skip)


def _describe_search_failure(search: CheckpointSearchResult, directory: Path) -> str:
    unseen = [f"{each.place} cannot be read: {each.why}" for each in search.unseen]
    claimed = [f"{p.path.name}: {p.why}" for p in search.passed_over if p.claimed]
    if claimed:
        marked = any(each.mark is not None for each in search.passed_over)
        fit = "complete and not marked" if marked else "complete"
        none = f"none of the checkpoints in {directory} is {fit}: {'; '.join(claimed[:3])}"
        unseen.insert(0, none)
    return "; ".join(unseen[:3]) or f"nothing can be read in {directory}"


def find_resume_point_of_rank_generation(
    environment: Mapping[str, str], generation: int, *, was_empty: bool, nodes: int = 0
) -> ResumePoint:
    """Return where a launcher's ranks resume: as `find_resume_point`, in the job's own places.

    Blocks. Without a checkpoint directory HPCTL_RESUME_FROM stays as the job's environment has it.
    Raises HpctlError, NoCompleteCheckpointError among them. `was_empty`: the first generation of
    this step found nothing. `nodes` is how many run, 0 for those of the job.
    """
    if not environment.get("HPCTL_CHECKPOINT_DIR"):
        return ResumePoint(environment.get("HPCTL_RESUME_FROM") or None, judged=False)
    if generation == 0 and environment.get("HPCTL_RESUME") == "scratch":
        return ResumePoint(judged=False)
    return find_resume_point(read_resume_places(environment, nodes), was_empty=was_empty)


def main(arguments: Sequence[str]) -> int:
    """Print where a generation of ranks resumes, an empty line for the beginning.

    `arguments`: the generation, and `empty` where the first one found nothing. Prints why and
    returns STOP_EXIT_CODE where no checkpoint may be resumed from.
    """
    from hpctl.toolkit import output

    generation, began = arguments
    try:
        point = find_resume_point_of_rank_generation(
            os.environ, int(generation), was_empty=began == "empty"
        )
    except HpctlError as error:
        output.print_exact_text(str(error))
        return STOP_EXIT_CODE
    output.print_exact_text(point.path or "")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
