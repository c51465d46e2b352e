"""Call the step's collectives in another order, or pass blocks the other way round."""

import torch.distributed as dist


def run(step: int, value: object, config: dict[str, object]) -> bool:
    world, rank = dist.get_world_size(), dist.get_rank()
    if config["how"] == "losses first":
        count, losses, loss = value
        dist.all_gather(losses, loss)
        dist.all_reduce(count)
    elif config["how"] == "sum first":
        dist.all_reduce(value)
        dist.all_gather([value.clone() for _ in range(world)], value)
    else:
        block, received = value
        back = [
            dist.P2POp(dist.isend, block, (rank - 1) % world),
            dist.P2POp(dist.irecv, received, (rank + 1) % world),
        ]
        for work in dist.batch_isend_irecv(back):
            work.wait()
    return True
