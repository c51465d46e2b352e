"""Use more and more of the host's memory: a tiled array, clones that a list keeps, a string."""

import numpy as np
import torch


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "tile":
        return bool(np.tile(np.ones((1 << 12, 1 << 10)), (64, 64)).any())
    if config["how"] == "history":
        history: list[torch.Tensor] = []
        while True:
            history.append(torch.full((3 << 20,), float(len(history))))
    text = "question "
    while True:
        text = text + text.upper()
