"""The launchers of ranks that a log shows, and which process ended first by what they print.

srun's tasks are the ranks only where srun starts them. A launcher is one task that starts several
ranks, so that a task's number is not the number of a rank, and a task's exit code is the
launcher's. `is_log_of_launcher_started_run` says whether a log is of such a run, and
`find_first_launched_process_end` what the launcher says of its process that ended first:

| launcher | what it prints | what that names |
|---|---|---|
| torchrun, `accelerate launch` | `torch.distributed.elastic`, a block for the cause | rank |
| `deepspeed` | `[launch.py:259:sigkill_handler] ... exits with return code = -9` | exit code |
| `torch.multiprocessing.spawn` | `process 1 terminated with signal SIGKILL` | process of its node |
| Lightning | `[rank: 1] Child process with PID 7 terminated with code -9` | process of its node |
| `mpirun` of Open MPI | `mpirun noticed that process rank 1 with PID 7 on` | rank, node |
| `mpirun` of Intel MPI | `=   RANK 1 PID 7 RUNNING AT n1` | rank, node |

The block of torchrun is read by `hpctl.jobs.crash`. Sources: torch/multiprocessing/spawn.py (torch
2.13), torch/distributed/elastic/multiprocessing/errors, accelerate/commands/launch.py (it calls
torch.distributed.run), deepspeed/launcher/launch.py (0.19),
lightning/fabric/strategies/launchers/subprocess_script.py (2.6), help-prun.txt of PRRTE and
help-orterun.txt of Open MPI 4, Hydra's message of Intel MPI.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

ELASTIC: Final = "torch.distributed.elastic"
"""The module that torchrun names in all that it logs."""
_LAUNCHED: Final = re.compile(
    r"torch[./]distributed[./]elastic|torch/multiprocessing/spawn\.py"
    r"|\[launch\.py:\d{1,5}:(?:main|sigkill_handler)\]"
    r"|\[rank: \d{1,6}\] Child process with PID \d{1,10} terminated"
    r"|\b(?:mpirun|mpiexec|prterun|orterun)\b.{0,16} (?:noticed that process rank \d"
    r"|detected that one or more processes exited)"
    r"|^(?: *\d{1,6}: )?=   (?:RANK \d{1,7} )?PID \d{1,10} RUNNING AT "
)
_SPAWNED: Final = re.compile(
    r"process (\d{1,6}) terminated with (?:signal (SIG\w{2,10})|exit code (\d{1,3}))"
)
_RAISED: Final = re.compile(r"-- Process (\d{1,6}) terminated with the following error:")
_DEEPSPEED: Final = re.compile(r"sigkill_handler\] .* exits with return code = (-?\d{1,3})\b")
_LIGHTNING: Final = re.compile(
    r"\[rank: (\d{1,6})\] Child process with PID \d{1,10} terminated with code (-?\d{1,3})\."
)
_OPEN_MPI: Final = re.compile(
    r"noticed that process rank (\d{1,7}) with PID \d{1,10} on node ([\w.-]{1,253}) exited on"
    r" signal (\d{1,2})\b"
)
_OPEN_MPI_NAME: Final = re.compile(r"^\s*(?:\d{1,6}: )?\s*Process name: \[[^\s]{1,99},(\d{1,7})\]")
_OPEN_MPI_CODE: Final = re.compile(r"^\s*(?:\d{1,6}: )?\s*Exit code: +(\d{1,3})$")
_HYDRA: Final = re.compile(r"=   RANK (\d{1,7}) PID \d{1,10} RUNNING AT ([\w.-]{1,253})")
_HYDRA_END: Final = re.compile(r"=   (?:KILLED BY SIGNAL: (\d{1,2})\b|EXIT STATUS: (\d{1,3})\b)")


class LaunchedProcessEnd(Struct, frozen=True):
    """How a process ended that a launcher started, by what the launcher says.

    `rank` is the global rank and `local` the number of the process on its node, None where the
    launcher does not say it. `host` is where it ran, empty if unknown. `code` is its exit code
    (-n for signal n), None if unknown.
    """

    rank: int | None = None
    local: int | None = None
    host: str = ""
    code: int | None = None


def is_log_of_launcher_started_run(lines: Sequence[str]) -> bool:
    """Return whether the log is of a run whose ranks a launcher started."""
    return any(_LAUNCHED.search(line) for line in lines)


def find_first_launched_process_end(lines: Sequence[str]) -> LaunchedProcessEnd | None:
    """Return how the process ended that a launcher names first; None where none does.

    Where launchers on several nodes name one each, one that a signal ended goes first: a process
    that has only lost a peer raises an error.
    """
    found = [
        end
        for number in range(len(lines))
        if (end := _parse_launched_process_end(lines, number)) is not None
    ]
    return min(found, key=lambda end: not _is_process_killed_by_signal(end), default=None)


def _is_process_killed_by_signal(end: LaunchedProcessEnd) -> bool:
    return end.code is not None and end.code < 0 and end.code != -signal.SIGTERM


def _parse_launched_process_end(lines: Sequence[str], number: int) -> LaunchedProcessEnd | None:
    """Return what a launcher says in a line, and in the lines after it that belong to it."""
    line = lines[number]
    if match := _SPAWNED.search(line):
        code = -_parse_signal_number(match[2]) if match[2] else int(match[3])
        return LaunchedProcessEnd(local=int(match[1]), code=code)
    if match := _RAISED.search(line):
        return LaunchedProcessEnd(local=int(match[1]), code=1)
    if match := _LIGHTNING.search(line):
        return LaunchedProcessEnd(local=int(match[1]), code=int(match[2]))
    if match := _DEEPSPEED.search(line):
        return LaunchedProcessEnd(code=int(match[1]))
    if match := _OPEN_MPI.search(line):
        return LaunchedProcessEnd(rank=int(match[1]), host=match[2], code=-int(match[3]))
    if match := _OPEN_MPI_NAME.match(line):
        after = _OPEN_MPI_CODE.match(lines[number + 1]) if number + 1 < len(lines) else None
        return LaunchedProcessEnd(rank=int(match[1]), code=int(after[1]) if after else None)
    if match := _HYDRA.search(line):
        after = _HYDRA_END.search(lines[number + 1]) if number + 1 < len(lines) else None
        return LaunchedProcessEnd(rank=int(match[1]), host=match[2], code=_parse_exit_code(after))
    return None


def _parse_exit_code(found: re.Match[str] | None) -> int | None:
    if found is None:
        return None
    return -int(found[1]) if found[1] else int(found[2])


def _parse_signal_number(name: str) -> int:
    try:
        return int(signal.Signals[name])
    except KeyError:
        return 0
