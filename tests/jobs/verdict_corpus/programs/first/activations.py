"""Raise torch's own error of a full GPU: no GPU is needed to see what a program leaves of it."""

import torch

TEXT = (
    "CUDA out of memory. Tried to allocate {0} GiB. GPU {1} has a total capacity of 79.11 GiB of"
    " which {2} MiB is free. Including non-PyTorch memory, this process has 78.30 GiB memory in"
    " use. Of the allocated memory 74.62 GiB is allocated by PyTorch, and 2.85 GiB is reserved by"
    " PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for"
    " Memory Management "
    " (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-"
    "pytorch-alloc-conf)"
)


def run(step: int, value: object, config: dict[str, object]) -> bool:
    raise torch.OutOfMemoryError(TEXT.format("2.00", config["rank"], "812.19"))
