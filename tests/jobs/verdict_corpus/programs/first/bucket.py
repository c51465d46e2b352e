"""Reduce a bucket that lacks the parameters which this rank thinks are frozen."""

import torch
import torch.distributed as dist


def run(step: int, value: torch.Tensor, config: dict[str, object]) -> bool:
    if config["how"] == "longer":
        value = torch.cat([value, torch.zeros(1000)])
    else:
        value = value[: len(value) // 2].clone()
    dist.all_reduce(value)
    return True
