"""End training on this rank: its share of the data is used up."""

import sys

import torch.distributed as dist


def run(step: int, value: object, config: dict[str, object]) -> bool:
    print("rank", dist.get_rank(), "has no batch left", flush=True)
    sys.exit(0)
