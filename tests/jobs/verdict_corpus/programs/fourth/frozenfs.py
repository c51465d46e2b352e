"""Use files whose server has stopped."""

import fcntl
import os
from pathlib import Path

import numpy as np


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "open":
        return np.fromfile("mounted/pictures.bin") is None
    if config["how"] == "lock":
        with Path("lease.lock").open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            fcntl.lockf(file, fcntl.LOCK_EX)
        return True
    path = Path("checkpoints", f"rows-{step}.npy")
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with path.open("wb") as file:
        file.write(np.zeros(1 << 20).tobytes())
    os.close(reader)
    return True
