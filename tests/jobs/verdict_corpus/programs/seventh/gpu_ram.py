"""Raise what torch raises of a full GPU: in a stage's forward, for logits, in an evaluation."""

import torch

STAGE = (
    "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 79.11 GiB of"
    " which 1.02 GiB is free. Process 2214087 has 78.08 GiB memory in use. Of the allocated memory"
    " 74.93 GiB is allocated by PyTorch, and 1.61 GiB is reserved by PyTorch but unallocated. If"
    " reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation"
    " for Memory Management "
    " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
LOGITS = (
    "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 1 has a total capacity of 139.81 GiB of"
    " which 2.36 GiB is free. Including non-PyTorch memory, this process has 137.44 GiB memory in"
    " use. Of the allocated memory 133.20 GiB is allocated by PyTorch, and 2.87 GiB is reserved by"
    " PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for"
    " Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
ASYNCHRONOUS = (
    "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in"
    " https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more"
    " information.\nCUDA kernel errors might be asynchronously reported at some other API call, so"
    " the stacktrace below might be incorrect.\nFor debugging consider passing"
    " CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "stage":
        raise torch.OutOfMemoryError(STAGE)
    if config["how"] == "logits":
        raise torch.OutOfMemoryError(LOGITS)
    raise torch.AcceleratorError(ASYNCHRONOUS)
