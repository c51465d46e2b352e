"""Where a start resumes: the newest whole checkpoint, looked up anew each time.

For the step supervisor (`resume_point`) and for the launcher inside a step (`resume`). Cheap to
import: the readers of checkpoints are not.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from hpctl.core.compat import SAFE_PATH
from hpctl.errors import HpctlError

if TYPE_CHECKING:
    from hpctl.jobs.checkpoints.search import Search

PAUSES_S = (2.0, 5.0, 10.0)
"""Between looks while a checkpoint directory cannot be read, 17 s in all."""


def further_places(environment: Mapping[str, str]) -> list[str]:
    """The job's tiers beside HPCTL_CHECKPOINT_DIR, as `hpctl sbatch` exports them.

    Raises HpctlError where HPCTL_TIERS is something else: a newer checkpoint may be in a place
    that it was to name.
    """
    text = environment.get("HPCTL_TIERS") or "[]"
    try:
        places = json.loads(text)
    except ValueError:
        places = None
    if not isinstance(places, list) or not all(isinstance(place, str) for place in places):
        raise HpctlError(
            f"HPCTL_TIERS is no JSON list of places: {text:.80}", "It is set by hpctl sbatch alone."
        )
    return places


class ResumePoint(Struct, frozen=True):
    """What the checkpoint directory held at one time. `judged` is false where nobody can say."""

    path: str | None = None
    step: int | None = None
    judged: bool = True
    unknown: str = ""
    """What is there instead, in no known format."""


class NothingWhole(HpctlError):
    """There are checkpoints and none is complete, or they cannot be read: never a fresh start."""


def newest(directory: Path | None) -> ResumePoint:
    """What is there now. A directory that cannot be read is not judged, never "none"."""
    from hpctl.jobs.checkpoints.search import last_complete

    if directory is None:
        return ResumePoint(judged=False)
    try:
        return _resume_point(last_complete(directory))
    except OSError:
        return ResumePoint(judged=False)


def resume_point(
    directory: Path | None,
    search_tiers: Callable[[], Search] | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> ResumePoint:
    """Where to resume: a Point without a path is a first start. Raises NothingWhole.

    The batch script's own rule: a run is never begun anew over checkpoints that are damaged or
    cannot be read; a directory that cannot be read is tried for 17 s. `search_tiers` looks in all
    tiers; without it `directory` alone is searched.
    """
    from hpctl.jobs.checkpoints.search import last_complete

    if directory is None:
        return ResumePoint(judged=False)
    problem = ""
    for pause in (0.0, *PAUSES_S):
        sleep(pause)
        try:
            search = search_tiers() if search_tiers else last_complete(directory)
        except OSError as error:
            problem = f"{directory} cannot be read: {error.strerror or error}"
            continue
        if search.verdict in ("found", "none"):
            return _resume_point(search)
        problem = f"none of the checkpoints in {directory} is complete: {_reasons(search)}"
        if search.verdict == "incomplete":
            break
    raise NothingWhole(
        problem,
        "It does not start from scratch over them. Repair it, or submit with an empty"
        " --checkpoint-dir (or HPCTL_RESUME=scratch, for every start)",
    )


def beside(resume: ResumePoint, directory: Path | None) -> ResumePoint:
    """What a step's own saves are compared with: its resume point, or, where that lies in another
    tier, what is in its directory."""
    if resume.path is None or directory is None or Path(resume.path).parent == directory:
        return resume
    return newest(directory)


def _resume_point(search: Search) -> ResumePoint:
    found = search.found
    if found is None:
        return ResumePoint(judged=search.verdict == "none", unknown=search.unknown)
    return ResumePoint(str(found.path), found.step)


def _reasons(search: Search) -> str:
    claimed: Sequence[str] = [f"{p.path.name}: {p.why}" for p in search.passed_over if p.claimed]
    return "; ".join(claimed[:3]) or "nothing can be read"


FETCH_S = 3600.0
"""How long a checkpoint may take to come from S3."""


class Resume(Struct, frozen=True):
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
    command = [*SAFE_PATH, "hpctl", "checkpoint", "last", "--export", directory, *tiers]
    try:
        line = subprocess.run(
            [sys.executable, *command],
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
