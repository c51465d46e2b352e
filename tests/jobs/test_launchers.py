"""Which launcher started a run's ranks, and which process it says ended first.

The lines are those that the launchers print: recorded where they could be run here, else as their
sources have them.
"""

import pytest

from hpctl.jobs.crash import classify_crash
from hpctl.jobs.launchers import (
    LaunchedProcessEnd,
    find_first_launched_process_end,
    is_log_of_launcher_started_run,
)
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import TroubleKind
from tests.fakes.values import at

SPAWN_KILLED = (
    "W1129 01:26:52.051000 15 torch/multiprocessing/spawn.py:165] Terminating process 18 via"
    " signal SIGTERM",
    "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL",
)
SPAWN_CODE = (
    "W1129 01:26:52.051000 15 torch/multiprocessing/spawn.py:165] Terminating process 18 via"
    " signal SIGTERM",
    "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with exit code 7",
)
SPAWN_RAISED = (
    'File "/opt/venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 240',
    "-- Process 1 terminated with the following error:",
    "Traceback (most recent call last):",
)
DEEPSPEED = (
    "[2026-11-29 01:22:54,137] [INFO] [launch.py:170:main] dist_world_size=4",
    "[2026-11-29 01:23:48,203] [ERROR] [launch.py:259:sigkill_handler] ['/opt/venv/bin/python',"
    " '-u', 'train.py'] exits with return code = -9",
)
LIGHTNING = (
    "[rank: 1] Child process with PID 4242 terminated with code -11. Forcefully terminating all"
    " other processes to avoid zombies",
)
OPEN_MPI_KILLED = (
    "mpirun noticed that process rank 3 with PID 4242 on node n2 exited on signal 9 (Killed).",
)
OPEN_MPI_CODE = (
    "prterun detected that one or more processes exited with non-zero status,",
    "thus causing the job to be terminated. The first process to do so was:",
    "",
    "   Process name: [prterun-n1-147515@1,5]",
    "   Exit code:    6",
)
HYDRA = (
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    "=   RANK 1 PID 65033 RUNNING AT n4",
    "=   KILLED BY SIGNAL: 9 (Killed)",
)
SAID = [
    (SPAWN_KILLED, LaunchedProcessEnd(local=1, code=-9)),
    (SPAWN_CODE, LaunchedProcessEnd(local=2, code=7)),
    (SPAWN_RAISED, LaunchedProcessEnd(local=1, code=1)),
    (DEEPSPEED, LaunchedProcessEnd(code=-9)),
    (LIGHTNING, LaunchedProcessEnd(local=1, code=-11)),
    (OPEN_MPI_KILLED, LaunchedProcessEnd(3, host="n2", code=-9)),
    (OPEN_MPI_CODE, LaunchedProcessEnd(5, code=6)),
    (HYDRA, LaunchedProcessEnd(1, host="n4", code=-9)),
]


@pytest.mark.parametrize(("lines", "end"), SAID)
def test_a_launcher_is_recognized_by_what_it_prints(lines, end) -> None:
    assert is_log_of_launcher_started_run(lines)
    assert is_log_of_launcher_started_run([f"3: {line}" for line in lines])
    assert find_first_launched_process_end(lines) == end


@pytest.mark.parametrize(
    "line",
    [
        "step 12 loss 0.4",
        "[launch.py] warming up",
        "RuntimeError: worker process 3 terminated",
        "srun: error: n1: task 1: Killed",
        "rank 1 is running at full speed",
    ],
)
def test_other_lines_show_no_launcher(line) -> None:
    assert not is_log_of_launcher_started_run([line])
    assert find_first_launched_process_end([line]) is None


@pytest.mark.parametrize("first", [SPAWN_CODE, SPAWN_KILLED])
def test_of_two_nodes_launchers_the_one_whose_process_was_killed_counts(first) -> None:
    """A process that has only lost a peer raises an error."""
    second = SPAWN_KILLED if first is SPAWN_CODE else SPAWN_CODE
    assert find_first_launched_process_end([*first, *second]) == LaunchedProcessEnd(
        local=1, code=-9
    )


@pytest.mark.parametrize(
    ("lines", "rank"), [(SPAWN_KILLED, None), (DEEPSPEED, None), (OPEN_MPI_KILLED, 3), (HYDRA, 1)]
)
def test_the_number_of_a_launcher_s_task_is_no_rank(lines, rank) -> None:
    found = classify_crash(1, lines, at=at(0), node="n2", rank=7, policy=RunPolicy())
    assert (found.kind, found.signature) == (TroubleKind.KILLED, "SIGKILL")
    assert found.rank == rank


def test_hostile_lines_are_read_within_bounds() -> None:
    lines = ["process " * 5000, "exits with return code = " + "9" * 5000, "=   RANK " + "1" * 5000]
    lines += ["process 1 terminated with signal SIGNONE"]
    assert find_first_launched_process_end(lines) == LaunchedProcessEnd(local=1, code=0)
