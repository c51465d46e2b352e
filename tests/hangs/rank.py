"""A rank of a small data-parallel training run on gloo: `rank.py KIND AT UNIT`.

It trains until step AT, does once what KIND says (hang for good, or be slow and go on), and trains
on until somebody ends it. `UNIT` is a second of real time in seconds of this run: pauses of sound
runs are in it. A step takes about a tenth of a UNIT.
"""

import os
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn

KIND, AT, UNIT = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
RANK = int(os.environ["RANK"])
CULPRIT = RANK == 1


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """Data that a loader's worker makes; from the item AT on it comes late, or never."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if CULPRIT and index == 16 * AT and KIND in ("loader", "stall"):
            time.sleep(1e6 if KIND == "loader" else 60 * UNIT)
        return torch.randn(256)


def spin() -> None:
    """For ever, as a lock that is never released is polled."""
    while True:
        pass


def fifo() -> None:
    """Open a file that never answers, as one on a dead file server does."""
    path = tempfile.mktemp()
    os.mkfifo(path)
    try:
        open(path).close()
    finally:
        os.unlink(path)


def evaluate(model: nn.Module) -> None:
    """One rank scores held-out data while the others wait at the barrier."""
    until = time.monotonic() + 150 * UNIT
    with torch.no_grad():
        while time.monotonic() < until:
            model(torch.randn(512, 256)).softmax(-1).argmax(-1).sum().item()


def checkpoint(model: nn.Module) -> None:
    """One rank writes much, slowly, and syncs; the others wait."""
    until = time.monotonic() + 150 * UNIT
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < until:
            file.seek(0)
            torch.save(model.state_dict(), file)
            os.fsync(file.fileno())
            time.sleep(2 * UNIT)


def compile_() -> None:
    """One rank has a compiler run, again and again; the others wait."""
    until = time.monotonic() + 150 * UNIT
    source = b"\n".join(b"int f%d(int x) { return x * %d + f(x); }" % (i, i) for i in range(2000))
    while time.monotonic() < until:
        command = ["gcc", "-O2", "-x", "c", "-w", "-c", "-o", "/dev/null", "-"]
        subprocess.run(command, input=b"int f(int);\n" + source, check=True)


def once(model: nn.Module) -> None:
    """What this kind of run does at step AT."""
    if KIND == "mismatch":
        # Each rank is in another collective.
        dist.barrier() if CULPRIT else dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(8), 0 if CULPRIT else 1)
    elif CULPRIT:
        {"sleep": lambda: time.sleep(1e6), "spin": spin, "fifo": fifo,
         "evaluate": lambda: evaluate(model), "checkpoint": lambda: checkpoint(model),
         "compile": compile_}.get(KIND, lambda: None)()  # fmt: skip


def main() -> None:
    """Train for ever."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(Slow(), batch_size=16, num_workers=1, prefetch_factor=2)
    for step, batch in enumerate(loader):
        if step == AT:
            print(f"step {step}", flush=True)
            once(model)
        ddp(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.1 * UNIT)


if __name__ == "__main__":
    main()
