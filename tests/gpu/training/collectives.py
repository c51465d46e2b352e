"""A rank in a loop of collectives, one of which goes wrong.

    collectives.py KIND BACKEND FOLDER DEVICE

In collective 4 the culprit (rank 1, the last of two) does what KIND says. Files in FOLDER tell how
far each rank is: ready.RANK, hung.RANK (the culprit is there), waits.RANK (the others are).
"""

from __future__ import annotations

import ctypes
import datetime
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 90
"""How long a rank hangs; the part kills it before."""
CYCLES_A_SECOND = 1.7e9
"""At least as fast as any GPU's clock: torch.cuda._sleep counts cycles."""
AT = 4


def find_culprit(world: int) -> int:
    """Return the rank that goes wrong."""
    return min(1, world - 1)


class Loop:
    """One rank."""

    def __init__(self, kind: str, backend: str, folder: Path, device: str) -> None:
        self.kind, self.backend, self.folder, self.device = kind, backend, folder, device
        self.rank = int(os.environ["SLURM_PROCID"])
        self.world = int(os.environ["SLURM_NTASKS"])
        self.is_culprit = self.rank == find_culprit(self.world)

    def note(self, what: str) -> None:
        """Say how far this rank is."""
        (self.folder / f"{what}.{self.rank}").touch()

    def run(self) -> None:
        """Join the group and reduce for ever."""
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        more: dict[str, Any] = {}
        if self.device == "cuda":
            torch.cuda.set_device(0)
            torch.ones(8, device=self.device).sum().item()
        if self.backend == "nccl":
            more["device_id"] = torch.device("cuda:0")
        limit_s = float(os.environ.get("GROUP_TIMEOUT_S", "120"))
        dist.init_process_group(
            self.backend,
            init_method=f"file://{self.folder}/meeting",
            rank=self.rank,
            world_size=self.world,
            timeout=datetime.timedelta(seconds=limit_s),
            **more,
        )
        tensor = torch.ones(1 << 16, device=self.device)
        for number in range(1_000_000):
            if number == AT:
                self.note("ready")
                self.go_wrong(tensor)
            self.reduce(tensor)

    def reduce(self, tensor: Any) -> None:
        """Take part in one collective and wait until it is done."""
        import torch.distributed as dist

        dist.all_reduce(tensor)
        self.synchronize()

    def synchronize(self) -> None:
        """Wait until the GPU has done what it was given."""
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def go_wrong(self, tensor: Any) -> None:
        """Do what the kind says if this is the culprit."""
        if not self.is_culprit:
            self.note("waits")
            return
        self.note("hung")
        ways: dict[str, Callable[[Any], None]] = {
            "gil_sleep": self.hold_gil_asleep,
            "gil_spin": self.hold_gil_spinning,
            "kernel": self.wait_for_kernel,
            "item": self.wait_for_item,
            "backward": self.wait_in_backward,
            "skip": self.load_data,
            "order": self.enter_other_collective,
            "shape": self.reduce_other_shape,
            "kill": self.die,
        }
        ways[self.kind](tensor)

    def hold_gil_asleep(self, tensor: Any) -> None:
        """Sleep in C with the interpreter's lock."""
        ctypes.PyDLL(None).sleep(SECONDS)

    def hold_gil_spinning(self, tensor: Any) -> None:
        """Compute in C with the interpreter's lock."""
        re.match(r"(a+)+$", "a" * 40 + "b")

    def wait_for_kernel(self, tensor: Any) -> None:
        """Wait for a kernel that does not end."""
        self.keep_device_busy()
        self.synchronize()

    def wait_for_item(self, tensor: Any) -> None:
        """Read a value that is not computed yet."""
        self.keep_device_busy()
        tensor.sum().item()

    def wait_in_backward(self, tensor: Any) -> None:
        """Hang in a backward pass."""
        import torch

        loop = self

        class Slow(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, value: Any) -> Any:
                return value * 2

            @staticmethod
            def backward(ctx: Any, gradient: Any) -> Any:
                loop.keep_device_busy()
                loop.synchronize()
                return gradient

        value = torch.ones(4, device=self.device, requires_grad=True)
        Slow.apply(value).sum().backward()

    def keep_device_busy(self) -> None:
        """Give the GPU work for SECONDS; a CPU sleeps."""
        if self.device == "cuda":
            import torch

            torch.cuda._sleep(int(CYCLES_A_SECOND * SECONDS))
        else:
            time.sleep(SECONDS)

    def load_data(self, tensor: Any) -> None:
        """Stay away, as if the data did not come."""
        time.sleep(SECONDS)

    def enter_other_collective(self, tensor: Any) -> None:
        """Broadcast while the others reduce."""
        import torch.distributed as dist

        dist.broadcast(tensor, 0)
        self.synchronize()

    def reduce_other_shape(self, tensor: Any) -> None:
        """Reduce half of what the others reduce."""
        self.reduce(tensor[: tensor.numel() // 2].clone())

    def die(self, tensor: Any) -> None:
        """Be killed."""
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    Loop(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]).run()
