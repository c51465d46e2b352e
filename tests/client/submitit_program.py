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


if __name__ == "__main__":
    main(*sys.argv[1:])
