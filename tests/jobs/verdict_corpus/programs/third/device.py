"""Raise what torch and CUDA's libraries raise when a GPU is full, in their classes and wording."""

import torch

ALLOCATOR = (
    "CUDA out of memory. Tried to allocate 18.00 MiB. GPU {} has a total capacity of 44.53 GiB of"
    " which 11.25 MiB is free. Including non-PyTorch memory, this process has 44.51 GiB memory in"
    " use. Of the allocated memory 43.60 GiB is allocated by PyTorch, and 204.12 MiB is reserved by"
    " PyTorch but unallocated."
)
RUNTIME = (
    "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in"
    " https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information."
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the"
    " stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)


class Expand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, value: torch.Tensor) -> torch.Tensor:
        return value * 2

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError(ALLOCATOR.format(0))


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "runtime":
        raise torch.AcceleratorError(RUNTIME)
    if config["how"] == "blas":
        raise RuntimeError(
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
        )
    Expand.apply(torch.ones(4, requires_grad=True)).sum().backward()
    return True
