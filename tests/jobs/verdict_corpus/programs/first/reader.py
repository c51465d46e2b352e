"""Read a shard of the data set from a file whose server does not answer: a FIFO without writer."""

import os
from pathlib import Path


def run(step: int, value: object, config: dict[str, object]) -> bool:
    path = Path("shards", f"train-{step:05}.bin")
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        os.mkfifo(path)
    return len(path.read_bytes()) > 0
