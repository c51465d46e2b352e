"""What a user of submitit writes: `submitit_program.py STORY FOLDER` prints what came back."""

import os
import sys
import time
from pathlib import Path

import submitit


def add(one: int, other: int) -> int:
    """Return a sum."""
    return one + other


def fail() -> None:
    """End as a broken function does, and count the runs."""
    with open(Path(os.environ["SUBMITIT_FOLDER"]).parent / "runs", "a") as runs:
        runs.write("run\n")
    raise ValueError("bad batch")


def lose_node() -> str:
    """Return the restart count of the second run; the first one never ends."""
    if "SLURM_RESTART_COUNT" not in os.environ:
        time.sleep(600)
    return f"run {os.environ['SLURM_RESTART_COUNT']}"


class Counting(submitit.helpers.Checkpointable):
    """A function that goes on from where it was asked to save."""

    def __call__(self, ready: str, start: int = 0) -> int:
        """Return where a second run began."""
        if start == 0:
            Path(ready).touch()
            time.sleep(600)
        return start

    def checkpoint(self, ready: str, start: int = 0) -> submitit.helpers.DelayedSubmission:
        """Return what is to be called next."""
        return submitit.helpers.DelayedSubmission(self, ready, start=41)


def main(story: str, folder: str) -> None:
    """Submit and print."""
    executor = submitit.AutoExecutor(os.path.join(folder, "jobs"), cluster="hpctl")
    executor.update_parameters(timeout_min=10, cpus_per_task=1, name=story)
    if story == "array":
        executor.update_parameters(hpctl_array_parallelism=2)
        print([job.result() for job in executor.map_array(add, [1, 2, 3], [10, 20, 30])])
    elif story == "fail":
        job = executor.submit(fail)
        print(job.exception())
        print(type(job).__name__, job.state)
    elif story == "node":
        print(executor.submit(lose_node).result())
    elif story == "checkpoint":
        ready = Path(folder, "ready")
        job = executor.submit(Counting(), str(ready))
        while not ready.exists():
            time.sleep(0.2)
        job._interrupt()
        print(job.result())


if __name__ == "__main__":
    main(*sys.argv[1:])
