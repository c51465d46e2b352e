"""Memorize tensors for later, without a bound."""

import numpy as np
import torch

MEMORY: list[object] = []


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "array":
        MEMORY.append(np.zeros((1 << 20, 1 << 13)))
    while True:
        MEMORY.append(torch.ones(6 << 20))
