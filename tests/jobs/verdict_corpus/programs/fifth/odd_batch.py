"""Give a collective a tensor of another size than the other ranks do."""

import torch
import torch.distributed as dist


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "flags":
        dist.all_reduce(torch.zeros(300, dtype=torch.int32), op=dist.ReduceOp.MAX)
    else:
        flat, group = value
        dist.all_reduce(flat[: len(flat) // 3].clone(), group=group)
    return True
