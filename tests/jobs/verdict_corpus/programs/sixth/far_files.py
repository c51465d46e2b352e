"""Use a file system whose server has stopped: map data, look at its room, or save to it."""

import shutil

import numpy as np


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "map":
        return bool(np.memmap("mounted/latents.bin", mode="r")[0])
    if config["how"] == "room":
        return shutil.disk_usage("mounted").free > 0
    value[0] = "mounted"
    return True
