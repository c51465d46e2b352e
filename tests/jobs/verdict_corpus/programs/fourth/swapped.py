"""Call another collective than the other ranks call at this place."""

import torch
import torch.distributed as dist


def run(step: int, value: object, config: dict[str, object]) -> bool:
    world = dist.get_world_size()
    if config["how"] == "reduce":
        dist.barrier()
        dist.all_gather_into_tensor(torch.zeros(world), value)
    elif config["how"] == "groups":
        flat, group = value
        dist.all_reduce(torch.zeros(1), op=dist.ReduceOp.MAX)
        dist.all_reduce(flat, group=group)
    else:
        dist.all_gather_object([None] * world, value.rewards)
        dist.barrier()
    return True
