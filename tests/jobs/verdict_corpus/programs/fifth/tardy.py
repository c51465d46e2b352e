"""Take much longer than the other ranks, in native code or in pauses that grow."""

import time

import numpy as np


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "pauses":
        time.sleep(min(2.0 * 2 ** (step - int(str(config["step"]))), 90.0))
        return True
    until = time.monotonic() + float(str(config["how"]))
    while time.monotonic() < until:
        np.linalg.svd(np.random.default_rng(step).random((240, 240)))
    return True
