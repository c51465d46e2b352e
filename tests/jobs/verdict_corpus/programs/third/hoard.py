"""Keep what nobody needs: bytes of Python, rows of numpy, or copies of gradients."""

import numpy as np
import torch

PAST: list[object] = []


def run(step: int, value: object, config: dict[str, object]) -> bool:
    while True:
        if config["how"] == "bytes":
            PAST.append(bytearray(24 << 20))
        elif config["how"] == "rows":
            PAST.append(np.concatenate([np.ones((1 << 20, 4)), np.zeros((1 << 20, 4))]))
        else:
            PAST.append(torch.empty(5 << 20).fill_(float(step)))
