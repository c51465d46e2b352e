"""Where the next step resumes: the newest complete checkpoint, looked up anew each time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpctl.errors import HpctlError
from hpctl.jobs.checkpoints.search import Search, last_complete
from hpctl.jobs.resuming import PAUSES_S
from hpctl.jobs.run.ending import Point
from hpctl.jobs.run.settings import Settings


class NothingWhole(HpctlError):
    """There are checkpoints and none is complete, or they cannot be read: never a fresh start."""


def newest(directory: Path | None) -> Point:
    """What is there now. A directory that cannot be read is not judged, never "none"."""
    if directory is None:
        return Point(judged=False)
    try:
        return _point(last_complete(directory))
    except OSError:
        return Point(judged=False)


def resume_point(given: Settings, sleep: Callable[[float], object] = time.sleep) -> Point:
    """Where to resume: a Point without a path is a first start. Raises NothingWhole.

    The batch script's own rule: a run is never begun anew over checkpoints that are damaged or
    cannot be read; a directory that cannot be read is tried for 17 s.
    """
    directory = given.directory
    if directory is None or given.scratch:
        return Point(judged=False)
    said = ""
    for pause in (0.0, *PAUSES_S):
        sleep(pause)
        try:
            search = given.search() if given.search else last_complete(directory)
        except OSError as error:
            said = f"{directory} cannot be read: {error.strerror or error}"
            continue
        if search.verdict in ("found", "none"):
            return _point(search)
        said = f"none of the checkpoints in {directory} is complete: {_why(search)}"
        if search.verdict == "incomplete":
            break
    raise NothingWhole(
        said,
        "It does not start from scratch over them. Mend it, or submit with an empty"
        " --checkpoint-dir (or HPCTL_RESUME=scratch, for every start)",
    )


def beside(resume: Point, directory: Path | None) -> Point:
    """What a step's own saves are compared with: its resume point, or, where that lies in another
    tier, what is in its directory."""
    if resume.path is None or directory is None or Path(resume.path).parent == directory:
        return resume
    return newest(directory)


def _point(search: Search) -> Point:
    found = search.found
    if found is None:
        return Point(judged=search.verdict == "none", unknown=search.unknown)
    return Point(str(found.path), found.step)


def _why(search: Search) -> str:
    claimed: Sequence[str] = [f"{p.path.name}: {p.why}" for p in search.passed_over if p.claimed]
    return "; ".join(claimed[:3]) or "nothing can be read"
