"""Read from a mount whose server has stopped, or wait for a lock that it does not give back."""

import fcntl
from pathlib import Path


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "lock":
        with Path("lease.lock").open("a") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
        return True
    return len(Path("mounted", "weights.bin").read_bytes()) > 0
