"""Call this step's collectives of two groups, or of two kinds, in another order."""

import torch
import torch.distributed as dist


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "gather first":
        shard, flat = value
        dist.all_gather_into_tensor(torch.zeros(len(flat)), shard)
        dist.reduce_scatter_tensor(shard, flat)
        return True
    activations, pair = value
    dist.barrier()
    dist.all_reduce(activations, group=pair)
    return True
