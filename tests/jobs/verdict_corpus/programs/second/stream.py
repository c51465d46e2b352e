"""Read the stream of windows in a worker of the data loader that ends early."""

import os
import signal

from torch.utils.data import get_worker_info


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if get_worker_info() is None:
        return False
    if config["how"] == "abort":
        os.abort()
    os.kill(os.getpid(), signal.SIGKILL)
    return True
