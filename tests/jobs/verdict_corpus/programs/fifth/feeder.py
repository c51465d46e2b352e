"""End or stop a worker of the data loader."""

import ctypes
import os
import signal

from torch.utils.data import get_worker_info


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if get_worker_info() is None:
        return False
    if config["how"] == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif config["how"] == "pointer":
        ctypes.string_at(8)
    else:
        os.kill(os.getpid(), signal.SIGKILL)
    return True
