"""Write to a job's log what hpctl recognizes of its first save, while the job runs.

The preamble of `hpctl sbatch` starts it next to a script that begins without a checkpoint. It scans
the checkpoint directory until one is found there, logs whether a restart resumes from it, and
exits; it exits with the script, too. Files that no format recognizes are logged once, with how to
declare them: otherwise the job's owner would learn of it only when the first restart begins without
them.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from pathlib import Path

from hpctl.checkpoints import search
from hpctl.checkpoints.patterns import FilePattern, parse_checkpoint_file_patterns
from hpctl.checkpoints.resume import read_declared_patterns
from hpctl.toolkit import output
from hpctl.toolkit.errors import HpctlError

PAUSES_S = (5.0, 10.0, 20.0, 40.0)
"""Seconds before the first scans."""
PAUSE_S = 60.0
"""Seconds before every further scan."""


class FirstSaveWatch:
    """What was logged about one directory so far."""

    def __init__(self, directory: Path, declared: Sequence[FilePattern]) -> None:
        self._directory = directory
        self._declared = declared
        self._unknown = ""
        self._told_unknown = False
        self.is_found = False

    def look(self) -> tuple[str, ...]:
        """Scan and return the lines to log now. Does not raise for a directory that cannot be
        read."""
        try:
            found = search.find_newest_complete_checkpoint_in_tiers(
                self._directory, declared=self._declared
            )
        except OSError:
            return ()
        if found.found is not None:
            self.is_found = True
            return describe_first_checkpoint(found, found.found)
        # Two scans: the number of files of a save under way grows.
        is_stable = (
            bool(found.unrecognized_files_note) and found.unrecognized_files_note == self._unknown
        )
        self._unknown = found.unrecognized_files_note
        if not is_stable or self._told_unknown:
            return ()
        self._told_unknown = True
        return (f"{found.unrecognized_files_note}. As it is, a restart begins at the beginning",)


def describe_first_checkpoint(
    result: search.CheckpointSearchResult, first: search.CompleteCheckpoint
) -> tuple[str, ...]:
    """Return what to log about the first checkpoint that is found."""
    step = "step unknown" if first.step is None else f"step {first.step}"
    text = f"first checkpoint: {first.path}, {step}, {first.format}: a restart resumes from it"
    if first.unproven:
        text += f"; unproven: {first.unproven}"
    return (text, result.caution) if result.caution else (text,)


def watch_for_first_checkpoint(
    directory: Path, declared: Sequence[FilePattern], ended: Callable[[float], bool]
) -> None:
    """Scan until a checkpoint is found, or the script has ended. `ended` waits at most so many
    seconds and returns whether it has."""
    first = FirstSaveWatch(directory, declared)
    for pause in chain(PAUSES_S, repeat(PAUSE_S)):
        if ended(pause):
            return
        for line in first.look():
            output.echo(f"hpctl: {line}", err=True)
        if first.is_found:
            return


def main(arguments: Sequence[str]) -> int:
    """Watch HPCTL_CHECKPOINT_DIR while the process with the id `arguments[0]` runs."""
    directory = os.environ.get("HPCTL_CHECKPOINT_DIR", "")
    if not directory:
        return 0
    with contextlib.suppress(HpctlError, OSError):
        descriptor = os.pidfd_open(int(arguments[0]))
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        declared = parse_checkpoint_file_patterns(read_declared_patterns(os.environ))
        watch_for_first_checkpoint(
            Path(directory), declared, lambda wait_s: bool(poll.poll(wait_s * 1000))
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
