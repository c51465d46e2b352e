"""Read why a script failed and report it to the daemon, for jobs without `hpctl run`.

The EXIT trap that `hpctl sbatch` puts into a script runs it, as the job's owner, when the script
ends with another code than 0: `python ... hpctl.jobs.run.script_end CODE`.

The log is read from where this run began in it (HPCTL_LOG_START), and MOST_BYTES of it at most;
`log_cause` judges it. The daemon decides what is done. A job writes its own log, so it can mislead
this reader only about itself. Nothing here raises, and nothing changes the script's exit code.
"""

import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from hpctl.toolkit.bounds import make_printable

LOG_START: Final = "HPCTL_LOG_START"
"""Device, inode and size of the files of stdout and stderr, as they were when the script began."""
MOST_BYTES: Final = 16 * 1024 * 1024
"""What is read of each file at its end: 4,096 ranks print 15 MB of tracebacks of 40 frames when one
of them has failed. Judging so much takes a second of processor time."""
_CANCELLED: Final = re.compile(
    rb"^slurmstepd(?:-[\w.-]{1,255})?: error: \*\*\* JOB (\d{1,10}) ON \S+ CANCELLED AT ",
    re.MULTILINE,
)


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Read, print and report why the script ended. Always 0."""
    try:
        code = int(arguments[0])
        block = read_batch_script_output(environ.get(LOG_START, ""), (1, 2))
        if code and not is_run_ended_by_slurm(block, environ.get("SLURM_JOB_ID", "")):
            # Imported late: a job that is being cancelled is not kept waiting.
            from hpctl.jobs.run.log_cause import report_script_end_cause

            report_script_end_cause(code, block, environ)
    except Exception as error:  # noqa: BLE001 -- a job's end must not depend on what hpctl reads
        text = f"hpctl: why the script ended was not read: {error!r}"
        print(make_printable(text), file=sys.stderr)
    return 0


def read_batch_script_output(began: str, fds: Sequence[int]) -> bytes:
    """Return the end of what this run has written to the files behind `fds`, whole lines.

    `began` is LOG_START's value. What is no regular file, or cannot be read, is left out.
    """
    starts: dict[tuple[int, int], int] = {}
    for row in began.split()[: len(fds)]:
        parts = row.split(":")
        if len(parts) == 3 and all(part.isdecimal() and len(part) < 20 for part in parts):
            device, inode, size = (int(part) for part in parts)
            starts[device, inode] = size
    read: dict[tuple[int, int], bytes] = {}
    for fd in fds:
        try:
            status = os.fstat(fd)
            key = (status.st_dev, status.st_ino)
            if stat.S_ISREG(status.st_mode) and key not in read:
                read[key] = _read_file_tail_after_offset(fd, starts.get(key, 0))
        except OSError:
            continue
    return b"".join(read.values())


def _read_file_tail_after_offset(fd: int, start: int) -> bytes:
    """Return the last bytes of a file that come after `start`. Raises OSError."""
    with open(f"/proc/self/fd/{fd}", "rb") as file:
        size = os.fstat(file.fileno()).st_size
        # A log that is shorter than it was has been truncated: all of it is this run's.
        file.seek(max(start if start <= size else 0, size - MOST_BYTES))
        block = file.read(MOST_BYTES)
    return block if block.endswith(b"\n") or not block else block + b"\n"


def is_run_ended_by_slurm(block: bytes, job: str) -> bool:
    """Return whether Slurm itself ended this run: a person, a requeue, preemption or the time
    limit."""
    return any(match[1].decode() == job for match in _CANCELLED.finditer(block))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
