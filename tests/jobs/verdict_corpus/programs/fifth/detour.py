"""Call collectives in another order than the other ranks, or others in their place."""

import torch
import torch.distributed as dist


def run(step: int, value: object, config: dict[str, object]) -> bool:
    world = dist.get_world_size()
    if config["how"] == "norm late":
        dist.broadcast(torch.zeros(1), src=world - 1)
        dist.all_reduce(value)
    elif config["how"] == "all first":
        flat, group = value
        dist.all_gather_object([None] * world, 0.5)
        dist.all_reduce(flat, group=group)
    else:
        dist.barrier()
        dist.all_gather([torch.zeros(1) for _ in range(world)], value)
    return True
