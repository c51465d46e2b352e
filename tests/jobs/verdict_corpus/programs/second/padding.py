"""Call a collective with tensors that are padded otherwise than the other ranks'."""

import torch
import torch.distributed as dist


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "gather":
        whole, shard = value
        longer = torch.cat([shard, shard])
        dist.all_gather_into_tensor(torch.zeros(2 * len(whole)), longer)
    elif config["how"] == "scatter":
        shard, flat = value
        half = len(shard) // 2
        dist.reduce_scatter_tensor(torch.zeros(half), flat[: half * dist.get_world_size()].clone())
    else:
        dist.all_reduce(torch.cat([value.flatten(), torch.zeros(4096)]))
    return True
