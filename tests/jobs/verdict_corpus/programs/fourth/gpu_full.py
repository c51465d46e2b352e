"""Raise the errors of a full GPU: of an optimizer's first step, and of a kernel library."""

import torch

STATE = (
    "CUDA out of memory. Tried to allocate 1.96 GiB. GPU {} has a total capacity of 23.65 GiB of"
    " which 1.02 GiB is free. Process 31337 has 22.62 GiB memory in use. Of the allocated memory"
    " 21.90 GiB is allocated by PyTorch, and 311.00 MiB is reserved by PyTorch but unallocated."
)


def step_optimizer(rank: int) -> None:
    raise torch.cuda.OutOfMemoryError(STATE.format(rank % 8))


def run(step: int, value: object, config: dict[str, object]) -> bool:
    try:
        step_optimizer(int(str(config["rank"])))
    except torch.OutOfMemoryError as error:
        if config["how"] == "wrapped":
            raise RuntimeError(f"step {step} failed on batch of 64") from error
        raise
    return True
