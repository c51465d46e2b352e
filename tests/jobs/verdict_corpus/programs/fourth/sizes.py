"""Give a collective a tensor of another size than the other ranks do."""

import torch
import torch.distributed as dist


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "vocabulary":
        dist.all_reduce(torch.zeros(64, 40))
    elif config["how"] == "table":
        world = dist.get_world_size()
        dist.all_gather_into_tensor(torch.zeros(world * 33), torch.zeros(33))
    else:
        flat, group = value
        dist.all_reduce(torch.cat([flat, flat[:999]]), group=group)
    return True
