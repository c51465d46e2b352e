"""Has the ranks dump torch's flight recorder on a timeout, one file a rank and attempt."""

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

BUFFER: Final = "2000"
"""Collectives that each rank remembers: torch's own default since 2.11, about 0.5 MB of a dump."""
_SIZES: Final = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_FILES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Names of torch 2.11 and later, and of earlier releases. Later ones warn of the old names."""
_OF_SCRIPT: Final = "HPCTL_FLIGHT_PREFIX"
"""Where the lines that `hpctl sbatch` puts into a script have all its ranks dump: the default of a
step without `hpctl run`, and no choice of the user's."""
_ON_TIMEOUT: Final = "TORCH_NCCL_DUMP_ON_TIMEOUT"


def build_flight_recorder_environment(environ: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Return what the ranks need in their environment to dump the flight recorder to `PREFIX<rank>`
    on a timeout. What the user has set stays."""
    wanted: dict[str, str] = {}
    if not any(name in environ for name in _SIZES):
        wanted |= dict.fromkeys(_SIZES, BUFFER)
    if _ON_TIMEOUT not in environ:
        wanted[_ON_TIMEOUT] = "1"
    if prefix and not _list_user_flight_dump_variables(environ):
        wanted |= dict.fromkeys(_FILES, prefix)
    return wanted


def _list_user_flight_dump_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the variables by which the user chose where the dumps go."""
    ours = environ.get(_OF_SCRIPT)
    return [name for name in _FILES if name in environ and (not ours or environ[name] != ours)]


def find_script_flight_dump_prefix(environ: Mapping[str, str]) -> str:
    """Return where the ranks of a script without `hpctl run` dump; empty where that is unknown."""
    named = next((environ[name] for name in _FILES if environ.get(name)), "")
    return os.path.abspath(named) if named else ""


def make_flight_dump_prefix(environ: Mapping[str, str], history: Path | None, attempt: int) -> str:
    """Return where the ranks of an attempt dump their flight recorders; empty where there is no
    place.

    The user's own choice, or else a name in the directory of the job's history, which all nodes see
    where the job has a checkpoint directory.
    """
    named = next(
        (environ[name] for name in _list_user_flight_dump_variables(environ) if environ[name]), ""
    )
    if named:
        return os.path.abspath(named)
    return str(history.with_suffix(f".{attempt}.flight-")) if history else ""


def delete_old_flight_dumps(history: Path | None, attempt: int) -> None:
    """Delete dumps of an attempt that begins, left by a run of the same number, and of all before
    the last one. Raises nothing."""
    if history is None:
        return
    ours = re.compile(re.escape(history.stem) + r"\.(\d{1,9})\.flight-\d{1,6}")
    try:
        names = os.listdir(history.parent)
    except OSError:
        return
    for name in names:
        found = ours.fullmatch(name)
        if found and (int(found[1]) >= attempt or int(found[1]) < attempt - 1):
            with contextlib.suppress(OSError):
                (history.parent / name).unlink()
