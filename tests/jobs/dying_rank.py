"""A rank that ends in one of the ways in which training programs end; the others wait for it.

`python dying_rank.py KIND [RECORDING...]`: rank 1 dies, by torchrun's RANK or by SLURM_PROCID. What
only a GPU's driver or NCCL prints comes from a recording of each rank, and the program ends as the
recorded one did. In a timeout rank 1 is the one that does not come, and rank 0 aborts.
"""

import os
import signal
import socket
import sys
import time
from pathlib import Path


def die(kind: str, printed: str) -> None:
    if kind == "exception":
        raise ValueError("bad batch")
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exit code":
        sys.exit(3)
    if kind == "full disk":
        raise OSError(28, "No space left on device", "/fsx/ckpt/step_100/model.pt")
    if kind == "port":
        first, second = socket.socket(), socket.socket()
        first.bind(("127.0.0.1", 0))
        first.listen()
        second.bind(first.getsockname())
    sys.stderr.write(printed)
    sys.exit(1)


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.1)


def main() -> None:
    kind, *recordings = sys.argv[1:]
    rank = int(os.environ.get("RANK") or os.environ["SLURM_PROCID"])
    job = os.environ["SLURM_JOB_ID"]
    Path(f"node-{job}-{rank}").write_text(os.environ["SLURMD_NODENAME"])
    printed = Path(recordings[min(rank, len(recordings) - 1)]).read_text() if recordings else ""
    if kind == "timeout":
        done = Path(f"printed-{job}-{rank}")
        sys.stderr.write(printed)
        sys.stderr.flush()
        done.touch()
        wait_for(done.with_name(f"{done.name[:-1]}{1 - rank}"))
        if rank == 0:
            os.abort()
    elif rank == 1:
        die(kind, printed)
    time.sleep(600)


main()
