"""End a worker of the data loader: by the kernel's signal, a fault, or an exit."""

import faulthandler
import os
import signal

from torch.utils.data import get_worker_info


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if get_worker_info() is None:
        return False
    if config["how"] == "exit":
        os._exit(4)
    if config["how"] == "fault":
        faulthandler._sigsegv()
    os.kill(os.getpid(), signal.SIGKILL)
    return True
