"""Break in a worker of the data loader, in native code or from outside."""

import ctypes
import os
import signal

from torch.utils.data import get_worker_info


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if get_worker_info() is None:
        return False
    if config["how"] == "bus":
        os.kill(os.getpid(), signal.SIGFPE)
    if config["how"] == "null":
        ctypes.memset(0, 0, 8)
    os.kill(os.getpid(), signal.SIGTERM if config["how"] == "term" else signal.SIGKILL)
    return True
