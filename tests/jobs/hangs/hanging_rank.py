"""A rank of a real gloo job: PLAN is JSON of [kind, culprit], each hung in until it is released.

`python hanging_rank.py FOLDER PLAN`. The n-th hang has begun when FOLDER/n.hung exists and a
FOLDER/n.RANK.waits of every other rank, and ends when somebody writes to the FIFO FOLDER/n.fifo (a
reader stuck on a dead mount looks the same), or creates FOLDER/n.go; a rank that was stopped ends
it by SIGCONT.
"""

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

FOLDER = Path(sys.argv[1])
RANK = int(os.environ.get("RANK") or os.environ["SLURM_PROCID"])


class Files(Dataset):
    def __init__(self, fifo: Path) -> None:
        self.fifo = fifo

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _: int) -> int:
        return len(self.fifo.read_text())


def sleeps(name: str) -> None:
    while not (FOLDER / f"{name}.go").exists():
        time.sleep(0.3)


def spins(name: str) -> None:
    while not (FOLDER / f"{name}.go").exists():
        sum(number * number for number in range(300_000))


def reads(name: str) -> None:
    (FOLDER / f"{name}.fifo").read_text()


def loads(name: str) -> None:
    list(DataLoader(Files(FOLDER / f"{name}.fifo"), num_workers=1))


def saves(name: str) -> None:
    def saves() -> None:
        (FOLDER / f"{name}.fifo").read_text()

    with ThreadPoolExecutor(1) as background:
        background.submit(saves).result()


def stops(name: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def train(value: torch.Tensor, plan: list[tuple[str, int]]) -> None:
    for number, (kind, culprit) in enumerate(plan):
        dist.all_reduce(value)
        if culprit == RANK:
            (FOLDER / f"{number}.hung").touch()
            globals()[kind](str(number))
        else:
            (FOLDER / f"{number}.{RANK}.waits").touch()
        dist.all_reduce(value)


size = int(os.environ.get("WORLD_SIZE") or os.environ["SLURM_NTASKS"])
store = f"file://{FOLDER}/store"
dist.init_process_group("gloo", init_method=store, rank=RANK, world_size=size)
train(torch.ones(4), json.loads(sys.argv[2]))
dist.destroy_process_group()
