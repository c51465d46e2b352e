"""Raise what a full GPU makes NCCL, Triton and a retrying training loop raise."""

import torch
import torch.distributed as dist

NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled cuda error"
    " (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5\nncclUnhandledCudaError: Call to"
    " CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
)
ALLOCATOR = (
    "CUDA out of memory. Tried to allocate {}.00 MiB. GPU 0 has a total capacity of 79.11 GiB of"
    " which 61.19 MiB is free. Including non-PyTorch memory, this process has 79.04 GiB memory in"
    " use. Of the allocated memory 77.90 GiB is allocated by PyTorch, and 401.70 MiB is reserved"
    " by PyTorch but unallocated."
)


def allocate(rows: int) -> None:
    raise torch.OutOfMemoryError(ALLOCATOR.format(rows * 32))


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "nccl":
        raise dist.DistBackendError(NCCL)
    if config["how"] == "triton":
        raise RuntimeError("Triton Error [CUDA]: out of memory")
    rows = 64
    while True:
        try:
            allocate(rows)
        except torch.OutOfMemoryError as error:
            print(f"batch of {rows} does not fit, halving it", flush=True)
            rows //= 2
            if rows == 0:
                raise ValueError("no batch size fits") from error
