"""`hpctl checkpoint mark`: exclude a checkpoint from searches, or undo that."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import ClassVar

import click
from msgspec import Struct

from hpctl.checkpoints import search
from hpctl.checkpoints.marks import (
    CheckpointMark,
    read_checkpoint_marks,
    write_checkpoint_mark_file,
)
from hpctl.checkpoints.patterns import parse_checkpoint_file_patterns
from hpctl.checkpoints.search import CompleteCheckpoint, SkippedCheckpoint
from hpctl.engine.request_client import find_invoking_user
from hpctl.toolkit import output
from hpctl.toolkit.arguments import complete_file_path
from hpctl.toolkit.declared_view import JsonOnly, Layout, TextLine
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable

MOST_NAMED = 8
"""The most steps that an error names."""


class MarkedView(Struct, frozen=True):
    """The result of `hpctl checkpoint mark`. `checkpoints`: those that the mark names."""

    place: str
    step: int
    poisoned: bool
    by: str
    at: datetime
    why: str
    path: str
    checkpoints: tuple[str, ...]

    layout: ClassVar[Layout] = (TextLine("step {step}: {effect}"),)
    json_only: ClassVar[JsonOnly] = ("place", "poisoned", "by", "at", "why", "path", "checkpoints")

    @property
    def effect(self) -> str:
        """Return what the mark does from now on."""
        named = ", ".join(self.checkpoints)
        if self.poisoned:
            return f"no run resumes from {named}; nothing is deleted"
        return f"a run may resume from {named} again"


@click.command(short_help="Have a checkpoint passed over, or take that back.")
@click.argument("directory", type=click.Path(path_type=Path), shell_complete=complete_file_path)
@click.argument("step", type=click.IntRange(min=0))
@click.option(
    "--poisoned/--clean",
    default=True,
    help="No run resumes from it (the default), or a run may do so again.",
)
@click.option("--why", default="", metavar="TEXT", help="The reason, for those who read it later.")
@click.option(
    "--checkpoint-files",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="What files are checkpoints where hpctl recognizes none: ckpt_{step}.pt. Repeatable.",
)
@output.json_option
def mark(
    directory: Path, step: int, poisoned: bool, why: str, patterns: tuple[str, ...], as_json: bool
) -> None:
    """Mark DIRECTORY's checkpoint of STEP as poisoned: no run resumes from it.

    The mark is a file in DIRECTORY/.hpctl-marks. It means what is saved there now: a later save of
    the same step is not marked. Nothing is deleted. `hpctl resume JOB --from-step N` marks what a
    job has saved after step N, and starts the job again.
    """
    declared = parse_checkpoint_file_patterns(patterns)
    if directory.parts[:1] == ("s3:",):
        raise HpctlError(
            "cannot mark a checkpoint in S3: a mark is a file in a checkpoint directory",
            "Mark the step in the job's checkpoint directory, which counts for its copies in S3;"
            " for steps that only S3 has, use `hpctl resume JOB --from-step N`.",
        )
    try:
        rows = search.list_checkpoints(directory, declared=declared)
    except OSError as error:
        raise ServiceUnavailable(
            f"cannot read the checkpoint directory {directory}: {error.strerror or error}",
            "Name an existing checkpoint directory that this machine mounts: hpctl marks a "
            "checkpoint by writing a file into this directory.",
        ) from error
    for flaw in read_checkpoint_marks([directory]).flaws:
        output.echo(f"hpctl: {flaw}", err=True)
    named = [row for row in rows if isinstance(row, CompleteCheckpoint) and row.step == step]
    if not named:
        raise HpctlError(f"there is no complete checkpoint of step {step} in {directory}",
                         describe_available_steps(rows))  # fmt: skip
    made = CheckpointMark(
        poisoned, step, find_invoking_user(), output.get_current_utc_time(), last=step, why=why
    )
    path = write_checkpoint_mark(directory, made)
    paths = tuple(str(row.path) for row in named)
    view = MarkedView(str(directory), step, poisoned, made.by, made.at, made.why, str(path), paths)
    output.show_view("checkpoint-mark", view, as_json)
    sys.stdout.flush()


def write_checkpoint_mark(directory: Path, made: CheckpointMark) -> Path:
    """Write a mark. Raises HpctlError where it cannot be written to the directory."""
    try:
        return write_checkpoint_mark_file(directory, made)
    except OSError as error:
        raise HpctlError(
            f"cannot write the mark in {directory}: {error.strerror or error}",
            "Run the command as the directory's owner.",
        ) from error


def describe_available_steps(rows: Sequence[CompleteCheckpoint | SkippedCheckpoint]) -> str:
    """Return which steps there are, for an error's hint."""
    whole = [row for row in rows if isinstance(row, CompleteCheckpoint) and row.step is not None]
    usable = list(dict.fromkeys(str(row.step) for row in whole if row.mark is None))
    marked = list(dict.fromkeys(str(row.step) for row in whole if row.mark is not None))
    if not whole:
        return "There is no complete checkpoint with a step at all."
    text = (
        f"There are steps {_format_step_list(usable)}."
        if usable
        else "All that is there is marked."
    )
    return f"{text} Marked as poisoned: {_format_step_list(marked)}." if marked else text


def _format_step_list(steps: Sequence[str]) -> str:
    more = f" and {len(steps) - MOST_NAMED} more" if steps[MOST_NAMED:] else ""
    return ", ".join(steps[:MOST_NAMED]) + more
