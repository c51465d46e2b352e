"""Give a collective, or a peer, another number of values than the other ranks do."""

import torch
import torch.distributed as dist


def run(step: int, value: object, config: dict[str, object]) -> bool:
    world = dist.get_world_size()
    if config["how"] == "five scores":
        dist.all_gather([torch.zeros(5) for _ in range(world)], torch.zeros(5))
        dist.all_reduce(value)
    elif config["how"] == "rows":
        rows, sizes, received, wanted = value
        # Three rows more for each other rank than it was told of.
        own = dist.get_rank()
        more = torch.cat([rows, torch.zeros(3 * (world - 1), rows.shape[1])])
        longer = [size if peer == own else size + 3 for peer, size in enumerate(sizes)]
        dist.all_to_all_single(received, more, wanted, longer)
    else:
        dist.send(torch.cat([value, torch.zeros(200)]), dst=0)
    return True
