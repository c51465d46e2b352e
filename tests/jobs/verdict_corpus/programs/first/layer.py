"""Multiply a batch by weights of another width."""

import torch
from torch import nn


def run(step: int, value: torch.Tensor, config: dict[str, object]) -> bool:
    nn.Linear(value.shape[-1] + 1, 8)(value)
    return True
