"""Look at files of a server that does not answer."""

import fcntl
import os
from pathlib import Path

import torch


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "list":
        return bool(os.listdir("mounted"))
    if config["how"] == "flock":
        with Path("lease.lock").open("a") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
        return True
    path = Path("cache", "tokens.pt")
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    return torch.load(path) is not None
