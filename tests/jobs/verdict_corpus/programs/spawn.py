"""Start a node's ranks with torch.multiprocessing, as a program without a launcher does:
`spawn.py PROGRAM FIRST COUNT WORLD`."""

import os
import runpy
import sys

import torch.multiprocessing


def train(local: int, program: str, first: int, world: int) -> None:
    os.environ |= {"RANK": str(first + local), "LOCAL_RANK": str(local), "WORLD_SIZE": str(world)}
    import job

    sys.argv = [program]
    try:
        runpy.run_path(program, run_name="__main__")
    except Exception:
        # torch's wrapper catches it, so that no hook for exceptions is called.
        job.dump_flight()
        raise


if __name__ == "__main__":
    torch.multiprocessing.spawn(
        train, (sys.argv[1], int(sys.argv[2]), int(sys.argv[4])), nprocs=int(sys.argv[3])
    )
