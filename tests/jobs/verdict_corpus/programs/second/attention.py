"""Raise torch's own error of a full GPU as attention over a long sequence gets it."""

import torch

TEXT = (
    "CUDA out of memory. Tried to allocate {} MiB. GPU {} has a total capacity of 139.81 GiB of"
    " which 401.44 MiB is free. Process {} has 139.40 GiB memory in use. Of the allocated memory"
    " 137.01 GiB is allocated by PyTorch, with 212.00 MiB allocated in private pools (e.g., CUDA"
    " Graphs), and 1.10 GiB is reserved by PyTorch but unallocated. If reserved but unallocated"
    " memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management "
    " (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-"
    "pytorch-alloc-conf)"
)


def score(size: int, rank: int) -> torch.Tensor:
    raise torch.OutOfMemoryError(TEXT.format(f"{size}.00", rank, 7000 + rank))


def run(step: int, value: object, config: dict[str, object]) -> bool:
    return bool(score(512 + 2 * step, int(config["rank"])).sum())
