"""Where a start resumes: the newest whole checkpoint, looked up anew each time.

For the step supervisor (`resume_point`) and for the launcher inside a step (`resume`). Cheap to
import: the readers of checkpoints are not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from hpctl.toolkit.compat import SAFE_PATH
from hpctl.toolkit.errors import HpctlError

if TYPE_CHECKING:
    from hpctl.checkpoints.search import Search

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


class NoneComplete(NothingWhole):
    """They were read, and to look again would not change the answer."""


def newest(directory: Path | None) -> ResumePoint:
    """What is there now. A directory that cannot be read is not judged, never "none"."""
    from hpctl.checkpoints.search import last_complete

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
    """Where to resume: a ResumePoint without a path is a first start. Raises NothingWhole.

    The batch script's own rule: a run is never begun anew over checkpoints that are damaged or
    cannot be read; a directory that cannot be read is tried for 17 s. `search_tiers` looks in all
    tiers; without it `directory` alone is searched.
    """
    from hpctl.checkpoints import files
    from hpctl.checkpoints.search import last_complete

    if directory is None:
        return ResumePoint(judged=False)
    files.note_start(directory)
    problem, kind = "", NothingWhole
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
            kind = NoneComplete
            break
    raise kind(
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
    claimed = [f"{p.path.name}: {p.why}" for p in search.passed_over if p.claimed]
    unseen = [f"{each.place}: {each.why}" for each in search.unseen]
    return "; ".join([*claimed, *unseen][:3]) or "nothing can be read"


FETCH_S = 3600.0
"""How long a checkpoint may take to come from S3."""


def resume(
    environment: Mapping[str, str], generation: int, *, was_empty: bool, nodes: int = 1
) -> ResumePoint:
    """Where a launcher's ranks resume: as `resume_point`, in HPCTL_CHECKPOINT_DIR and HPCTL_TIERS.

    Blocks. Without a checkpoint directory HPCTL_RESUME_FROM stays as the job's environment has it.
    Where a tier is in S3, `hpctl checkpoint last` is run, which brings a newer one into the
    directory. Raises HpctlError, NothingWhole among them.

    `was_empty`: the first generation of this step found nothing, so that whatever lies there now
    was written by it: if none of that is whole, the beginning is the right place to start from.
    `nodes` is how many run: of several, none can use what lies on another's own disk.
    """
    directory = environment.get("HPCTL_CHECKPOINT_DIR", "")
    if not directory:
        return ResumePoint(environment.get("HPCTL_RESUME_FROM") or None, judged=False)
    if generation == 0 and environment.get("HPCTL_RESUME") == "scratch":
        return ResumePoint(judged=False)
    tiers = further_places(environment)
    try:
        return resume_point(Path(directory), lambda: _search(directory, tiers, nodes))
    except NoneComplete:
        if was_empty:
            return ResumePoint(judged=False)
        raise


def _search(directory: str, tiers: list[str], nodes: int) -> Search:
    if any(tier.startswith("s3://") for tier in tiers) or os.environ.get("HPCTL_FAST_SPEC"):
        return _ask(directory, tiers)
    from hpctl.checkpoints.search import last_complete, tiers_of

    places = tiers_of([directory, *tiers], Path)[0] if tiers else Path(directory)
    return last_complete(places, nodes=nodes)


def _ask(directory: str, tiers: list[str]) -> Search:
    """Have a process of hpctl look, which may import what S3 needs. Its one line is that of
    `checkpoint last --export`. Raises OSError where there is no answer."""
    from hpctl.checkpoints.search import Checkpoint, PassedOver, Search

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
    except subprocess.TimeoutExpired as error:
        raise OSError(f"no answer about its tiers: {error}") from error
    verdict, _, rest = line.partition(" ")
    if verdict == "found":
        return Search(Checkpoint(Path(rest), None, None, "", False))
    if verdict == "none":
        return Search(None)
    why = line or "hpctl checkpoint last printed nothing"
    return Search(None, (PassedOver(Path(directory), why, unreadable=verdict != "incomplete"),))
