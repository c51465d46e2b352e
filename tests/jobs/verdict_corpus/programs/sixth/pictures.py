"""Fail in a worker of the data loader: end it, or wait for a picture that never comes."""

import os
import signal
import time

from torch.utils.data import get_worker_info


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if get_worker_info() is None:
        return False
    if config["how"] == "never":
        time.sleep(3000)
    elif config["how"] == "system":
        # As a library does that gives up.
        os._exit(70)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)
    return True
