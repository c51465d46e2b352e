"""Describe a job's checkpoints for `hpctl explain` and the page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hpctl.checkpoints.patterns import parse_checkpoint_file_patterns
from hpctl.engine.explain_view import JobToExplain
from hpctl.toolkit.bounds import parse_timestamp
from hpctl.toolkit.errors import HpctlError

if TYPE_CHECKING:
    from hpctl.checkpoints import search


def describe_newest_checkpoint(asked: JobToExplain) -> str:
    """Return which checkpoint of a job is the newest whole one, as far as the files can be read."""
    from hpctl.checkpoints import search

    job, place = asked.job, asked.registered.ckpt
    if not place:
        return "it named no directory of checkpoints: each run starts from the beginning"
    filled = place.replace("{job_id}", str(job.id))
    if "{" in filled:
        return f"its checkpoints are in {place}, which only the job can fill in"
    if filled.startswith("s3://"):
        return f"its checkpoints are in {filled}: `hpctl checkpoint last {filled}` looks there"
    if not asked.look or (os.geteuid() == 0 and job.uid != 0):  # root does not open files of users
        return (
            f"its checkpoints are in {filled}: `hpctl checkpoint last {filled}` looks, as its owner"
        )
    try:
        declared = parse_checkpoint_file_patterns(asked.registered.files)
        found = search.find_newest_complete_checkpoint_in_tiers(Path(filled), declared=declared)
    except HpctlError as error:
        return f"its Comment names checkpoint files by no pattern: {error}"
    except OSError as error:
        return f"its checkpoints in {filled} cannot be read here: {error.strerror or error}"
    newer = [p for p in found.passed_over if p.claimed and p.mark is None]
    torn = f"; newer and not whole: {newer[0].path.name} ({newer[0].why})" if newer else ""
    torn += _describe_checkpoint_mark_effects(found)
    if found.unrecognized_files_note:
        return f"there is no whole checkpoint yet, but {found.unrecognized_files_note}"
    if found.found is None:
        return f"there is no whole checkpoint in {filled} yet ({found.verdict}){torn}"
    path = found.found.path
    saved = parse_timestamp(os.stat(str(path)).st_mtime)
    when = f" of {saved:%Y-%m-%d %H:%M:%S} UTC" if saved else ""
    if found.found.unproven:
        unproven = f"; unproven: {found.found.unproven}"
        return f"its newest checkpoint is {path}{when}{unproven}{torn}"
    return f"its newest complete checkpoint is {path}{when}{torn}"


def _describe_checkpoint_mark_effects(found: search.CheckpointSearchResult) -> str:
    """Describe which checkpoints are passed over by marks, and which marks have no effect."""
    marked = [p for p in found.passed_over if p.mark is not None]
    text = ""
    if marked:
        mark = marked[0].mark
        assert mark is not None
        more = f" and {len(marked) - 1} more" if marked[1:] else ""
        text = f"; passed over: {marked[0].path.name}{more} ({mark.text})"
    return "; ".join([text, *found.marks.flaws])
