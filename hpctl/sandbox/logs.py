"""The end of a daemon's log, for the error that says why the daemon does not run.

Standard library only: every instance's init imports this and must start in milliseconds.
"""

import re
from pathlib import Path

LINES = 3
"""A daemon of Slurm writes the cause first and then that it gives up, in up to three lines."""
_READ_BYTES = 8192
_LINE_CHARACTERS = 300
_PREFIX = re.compile(r"^(?:\[[\d:T.-]+\] |(?:slurmctld|slurmd|munged): )")
"""What precedes a message: the time in a log file, `slurmd: ` on standard error."""


def read_last_log_lines(log: Path, count: int = LINES) -> str:
    """Return the last non-empty lines of a log without time and program, separated by " / ".

    A daemon's standard output is in NAME.out and its own log in NAME.log: where the first is
    empty or missing, the second is read.
    """
    for path in (log, log.with_suffix(".log")):
        lines = [line for line in _read_log_file_tail(path).splitlines() if line.strip()]
        if lines:
            shown = [_PREFIX.sub("", line).strip()[:_LINE_CHARACTERS] for line in lines[-count:]]
            return " / ".join(shown)
    return "(no output)"


def _read_log_file_tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _READ_BYTES))
            return file.read(_READ_BYTES).decode(errors="replace")
    except OSError:
        return ""
