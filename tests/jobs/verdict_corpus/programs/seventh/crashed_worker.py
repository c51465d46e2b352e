"""Lose a worker of the data loader: its file is cut off below it, or the kernel kills it."""

import os
import signal

from torch.utils.data import get_worker_info


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if get_worker_info() is None:
        return False
    if config["how"] == "cut off":
        # Another job writes the mapped file once more.
        os.truncate(value, 0)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
    return False
