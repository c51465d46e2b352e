"""Call a collective with a tensor of another length than the other ranks: the last batch's."""

import torch
import torch.distributed as dist


def run(step: int, value: torch.Tensor, config: dict[str, object]) -> bool:
    world = dist.get_world_size()
    if config["how"] == "predictions":
        dist.all_gather([torch.zeros(2, 3) for _ in range(world)], value[:2].clone())
    elif config["how"] == "losses":
        long = torch.zeros(700)
        dist.all_gather([torch.zeros(700) for _ in range(world)], long)
    else:
        dist.all_reduce(torch.zeros(513))
    return True
