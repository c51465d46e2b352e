"""Dies in the way that is asked for: death_program.py KIND cuda|cpu.

Each function is one way. What it prints and how it ends is what hpctl must call by its name.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any


def oom(device: str) -> None:
    """Ask for more memory than the GPU has.

    Taking it piece by piece would end the programs beside this one too.
    """
    import torch

    torch.zeros(1 << 42, dtype=torch.uint8, device=device)


def device_assert(device: str) -> None:
    """Look up an index that the table does not have."""
    import torch

    table = torch.nn.Embedding(10, 4).to(device)
    print(table(torch.tensor([1, 11], device=device)).sum().item())


def illegal(device: str) -> None:
    """Write to an address that is not mapped."""
    _launch("*(volatile int*)0x10 = 1;")


def misaligned(device: str) -> None:
    """Write an integer to an odd address."""
    _launch("__shared__ int room[4]; *(volatile int*)((char*)room + 1) = 1;")


def trap(device: str) -> None:
    """Execute a trap instruction on the GPU."""
    _launch('asm("trap;");')


def _launch(statement: str) -> None:
    import torch

    torch.zeros(1, device="cuda")
    source = f'extern "C" __global__ void bad() {{ {statement} }}'
    kernel: Any = torch.cuda._compile_kernel(source, "bad")  # type: ignore[attr-defined]
    kernel(grid=(1, 1, 1), block=(32, 1, 1))
    torch.cuda.synchronize()


def kernel_assert(device: str) -> None:
    """Fail an assertion of torch's own on the GPU."""
    import torch

    torch._assert_async(torch.zeros(1, device=device))
    torch.cuda.synchronize()


def no_gpu(device: str) -> None:
    """Ask for a GPU where none is visible."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import torch

    torch.zeros(1, device="cuda")


def bad_ordinal(device: str) -> None:
    """Ask for a GPU that the machine does not have."""
    import torch

    torch.zeros(1, device="cuda:5")


def cublas(device: str) -> None:
    """Use cuBLAS after an error that was not looked at."""
    import torch

    values = torch.randn(64, 64, device=device)
    layer = torch.nn.Linear(64, 64).to(device)
    torch.nn.functional.one_hot(torch.tensor([70], device=device), 64)
    print(layer(values).sum().item())


def sigkill(device: str) -> None:
    """Be killed."""
    _touch(device)
    os.kill(os.getpid(), signal.SIGKILL)


def segv(device: str) -> None:
    """Read address 0."""
    _touch(device)
    ctypes.string_at(0)


def abort(device: str) -> None:
    """Call abort(3)."""
    _touch(device)
    os.abort()


def _touch(device: str) -> None:
    import torch

    torch.zeros(1, device=device)


def nan(device: str) -> None:
    """Stop because the loss is no number."""
    import torch

    loss = torch.full((4,), float("nan"), device=device)
    assert not torch.isnan(loss).any(), "loss is NaN"


def pinned(device: str) -> None:
    """Ask for more pinned memory than there is."""
    import torch

    torch.empty(1 << 45, dtype=torch.uint8, pin_memory=True)


def host_oom(device: str) -> None:
    """Ask for more host memory than there is."""
    import torch

    torch.empty(1 << 50, dtype=torch.uint8)


def loader(device: str) -> None:
    """Lose a worker of the data loader."""
    import torch

    class Data(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            if index > 8:
                os.kill(os.getpid(), signal.SIGKILL)
            return torch.zeros(4)

    how = {"num_workers": 2, "batch_size": 4, "multiprocessing_context": "fork"}
    for batch in torch.utils.data.DataLoader(Data(), **how):
        batch.sum().item()


def jax_oom(device: str) -> None:
    """Have JAX ask for more memory than the GPU has."""
    if device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"
    import jax.numpy as jnp

    values = jnp.ones((1 << 20, 1 << 20), jnp.float32) + 1
    print(values.sum())


WAYS = (oom, device_assert, illegal, misaligned, trap, kernel_assert)
WAYS += (no_gpu, bad_ordinal, cublas)
WAYS += (sigkill, segv, abort, nan, pinned, host_oom, loader, jax_oom)


def main(kind: str, device: str) -> None:
    """Die in one way."""
    print("step 1 loss 2.0", flush=True)
    name = {"assert": "device_assert"}.get(kind, kind)
    {way.__name__: way for way in WAYS}[name](device)
    print("survived", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
