"""Which checkpoint a generation starts from: one answer for all nodes, found by the first."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpctl.core.compat import SAFE_PATH
from hpctl.errors import HpctlError
from hpctl.jobs.resuming import PAUSES_S, further_places

FETCH_S = 3600.0
"""How long a checkpoint may take to come from S3."""


@dataclass(frozen=True, slots=True)
class Resume:
    """`path` is what HPCTL_RESUME_FROM gets, empty for a start at the beginning. `refused` is the
    reason not to start at all: there are checkpoints and none can be trusted, and starting over
    would look like success while it throws the run away. `looked` is false where there is no
    checkpoint directory: then HPCTL_RESUME_FROM stays as the job's environment has it."""

    path: str = ""
    step: int | None = None
    refused: str = ""
    looked: bool = True
    empty: bool = False
    """Nothing there claims to be a checkpoint."""


def resume(
    environment: Mapping[str, str], generation: int, *, was_empty: bool, nodes: int = 1
) -> Resume:
    """Look for the newest whole checkpoint in HPCTL_CHECKPOINT_DIR and the job's HPCTL_TIERS.

    Blocks; I/O as `last_complete`, and up to 17 s more while the directory cannot be read. Where
    a tier is in S3, `hpctl checkpoint last` is run, which brings a newer one into the directory.

    `was_empty`: the first generation of this step found nothing, so that whatever lies there now
    was written by it: if none of that is whole, the beginning is the right place to start from.
    `nodes` is how many run: of several, none can use what lies on another's own disk.
    """
    directory = environment.get("HPCTL_CHECKPOINT_DIR", "")
    if not directory:
        return Resume(environment.get("HPCTL_RESUME_FROM", ""), looked=False)
    if generation == 0 and environment.get("HPCTL_RESUME") == "scratch":
        return Resume()
    try:
        tiers = further_places(environment)
    except HpctlError as error:
        return Resume(refused=str(error))
    found = _look(directory, tiers, nodes)
    for pause in PAUSES_S:
        if not found.refused or not found.looked:
            break
        time.sleep(pause)
        found = _look(directory, tiers, nodes)
    if found.refused and found.looked is False and was_empty:
        return Resume()
    return Resume(found.path, found.step, found.refused, empty=found.empty)


def _look(directory: str, tiers: list[str], nodes: int) -> Resume:
    """`looked` is false here for an answer that asking again will not change."""
    if any(tier.startswith("s3://") for tier in tiers):
        return _ask(directory, tiers)
    # Only where a job has checkpoints: the readers of every format cost a tenth of a second.
    from hpctl.jobs.checkpoints.search import last_complete, tiers_of

    try:
        places = tiers_of([directory, *tiers], Path)[0] if tiers else Path(directory)
        search = last_complete(places, nodes=nodes)
    except OSError as error:
        return Resume(refused=f"{directory} cannot be read: {error.strerror or error}")
    if search.found is not None:
        return Resume(str(search.found.path), search.found.step)
    if search.verdict == "none":
        return Resume(empty=True)
    if not search.passed_over:
        return Resume(refused=f"{search.unseen[0].place} cannot be read: {search.unseen[0].why}")
    first = next((each for each in search.passed_over if each.claimed), search.passed_over[0])
    why = f"no checkpoint in {directory} is whole ({first.path.name}: {first.why})"
    return Resume(refused=why, looked=search.verdict == "unreadable")


def _ask(directory: str, tiers: list[str]) -> Resume:
    """Have a process of hpctl look, which may import what S3 needs. Its one line is that of
    `checkpoint last --export`."""
    words = [*SAFE_PATH, "hpctl", "checkpoint", "last", "--export", directory, *tiers]
    try:
        line = subprocess.run(
            [sys.executable, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=FETCH_S,
            check=False,
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return Resume(refused=f"no answer about {directory} and its tiers: {error}")
    verdict, _, rest = line.partition(" ")
    if verdict == "found":
        return Resume(rest)
    if verdict == "none":
        return Resume(empty=True)
    return Resume(
        refused=line or "hpctl checkpoint last said nothing", looked=verdict != "incomplete"
    )
