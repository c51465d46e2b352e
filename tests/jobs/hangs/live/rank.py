"""Small data-parallel training runs on gloo, of two ranks each: `rank.py UNIT AT JOB:KIND ...`.

Each run trains until step AT, does once what its KIND says (hangs for good, or is slow and goes
on), and trains on until somebody ends it. UNIT: how many real seconds are a second of these runs,
in which their pauses are written. Torch is imported once; every run is a process group of its own.
It prints `JOB group PGID`, `JOB at` when the kind begins and `JOB done` when a slow one is over.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

UNIT, AT = float(sys.argv[1]), int(sys.argv[2])
LONG_S = 180 * UNIT
"""How long a sound run is slow: half as long again as the shortest hang."""


class Data(Dataset[torch.Tensor]):
    """What a loader's worker makes. From some items on it comes late, or never."""

    def __init__(self, late: dict[int, float]) -> None:
        self.late = late

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.late.get(index, 0.0))
        return torch.randn(256)


def spin() -> None:
    """For ever, as a lock that is never released is polled."""
    while True:
        pass


def dead_file() -> None:
    """Open a file that never answers, as one on a dead file server does."""
    path = f"{tempfile.mkdtemp()}/fifo"
    os.mkfifo(path)
    with open(path):
        pass


def evaluate(model: nn.Module) -> None:
    """One rank scores held-out data, while the others wait for it."""
    until = time.monotonic() + LONG_S
    with torch.no_grad():
        for batch in DataLoader(Data({}), batch_size=64, num_workers=1):
            model(batch).softmax(-1).sum().item()
            if time.monotonic() > until:
                return


def checkpoint(model: nn.Module) -> None:
    """One rank writes to a slow disk and syncs."""
    until = time.monotonic() + LONG_S
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < until:
            file.seek(0)
            torch.save(model.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
            time.sleep(5 * UNIT)


def compile_() -> None:
    """One rank runs a compiler again and again."""
    until = time.monotonic() + LONG_S
    source = "".join(f"int f{n}(int x) {{ return x * {n} + {n}; }}\n" for n in range(2000))
    while time.monotonic() < until:
        command = ["gcc", "-O2", "-x", "c", "-c", "-o", "/dev/null", "-"]
        subprocess.run(command, input=source.encode(), check=True)


def mismatch(rank: int) -> None:
    """Each rank is in another collective."""
    dist.broadcast(torch.ones(8), 1 - rank)
    dist.barrier() if rank else dist.all_reduce(torch.ones(4))


def train(job: str, kind: str, rank: int, place: str) -> None:
    """One rank, for ever."""

    def say(what: str) -> None:
        if rank == 1:
            os.write(1, f"{job} {what}\n".encode())

    dist.init_process_group("gloo", f"file://{place}/{job}", rank=rank, world_size=2)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    # Stalls grow, as those of a store under load do: the first is no hang, the others are learned.
    late = {"loader": {16 * AT: 1e6}, "stall": {16 * AT: 70 * UNIT, 16 * (AT + 20): LONG_S}}
    data = Data(late.get(kind, {}) if rank == 1 else {})
    does = {
        "sleep": lambda: time.sleep(1e6), "spin": spin, "file": dead_file, "compile": compile_,
        "evaluate": lambda: evaluate(model), "checkpoint": lambda: checkpoint(model),
    }  # fmt: skip
    for step, batch in enumerate(DataLoader(data, batch_size=16, num_workers=1)):
        if step == AT - 1:
            say("at")
        if step == AT and kind == "mismatch":
            mismatch(rank)
        elif step == AT and rank == 1 and kind in does:
            does[kind]()
        if step == AT + 40:
            say("done")
        ddp(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(UNIT)


def main() -> None:
    """Start every run and wait for nothing."""
    torch.set_num_threads(1)
    place = tempfile.mkdtemp()
    for job, kind in (one.split(":") for one in sys.argv[3:]):
        if os.fork() == 0:
            os.setsid()
            os.write(1, f"{job} group {os.getpgid(0)}\n".encode())
            rank = 0 if os.fork() else 1
            train(job, kind, rank, place)
    Path(place, "started").touch()


if __name__ == "__main__":
    main()
