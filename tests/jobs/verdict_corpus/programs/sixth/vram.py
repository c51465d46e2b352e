"""Raise what a full GPU makes checkpointed activations, cuDNN and a decoder of images raise."""

import torch
from torch.utils.checkpoint import checkpoint

ALLOCATOR = (
    "CUDA out of memory. Tried to allocate 7.63 GiB. GPU 0 has a total capacity of 79.11 GiB of"
    " which 5.26 GiB is free. Including non-PyTorch memory, this process has 73.84 GiB memory in"
    " use. Of the allocated memory 66.02 GiB is allocated by PyTorch, and 6.51 GiB is reserved by"
    " PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation"
    " for Memory Management "
    " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
DECODER = (
    "Critical error in pipeline:\nError in GPU operator `nvidia.dali.fn.decoders.image`,\nwhich was"
    " used in the pipeline definition with the following traceback:\n\nencountered:\n\nCUDA runtime"
    " API error cudaErrorMemoryAllocation (2):\nout of memory\nCurrent pipeline object is no longer"
    " valid."
)


class Full(torch.autograd.Function):
    """Fits the first time, and no more where it is computed again."""

    calls = 0

    @staticmethod
    def forward(context: object, rows: torch.Tensor) -> torch.Tensor:
        Full.calls += 1
        if Full.calls > 1:
            raise torch.OutOfMemoryError(ALLOCATOR)
        # Only what is kept for the backward pass is computed again.
        context.save_for_backward(rows)
        return rows * 2

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * len(context.saved_tensors) * 2


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "cudnn":
        raise RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED")
    if config["how"] == "decoder":
        raise RuntimeError(DECODER)
    rows = torch.ones(4, requires_grad=True)
    checkpoint(Full.apply, rows, use_reentrant=False).square().sum().backward()
    return True
