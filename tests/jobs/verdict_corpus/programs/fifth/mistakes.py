"""Mistakes of a program: a wrong keyword, rows that do not fit, a message in place of an error."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch


@dataclass
class Schedule:
    warmup: int = 100


def tokenize(text: str) -> list[int]:
    return [ord(letter) - 97 for letter in text.lower()] + [1 // len(text)]


def run(step: int, value: object, config: dict[str, object]) -> bool:
    how = config["how"]
    if how == "message":
        sys.exit(f"train: error: the learning rate at step {step} is negative")
    if how == "rows":
        torch.utils.data.default_collate([torch.zeros(28), torch.zeros(27)])
    if how == "pool":
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(tokenize, ["good", "bad", ""])) == []
    return Schedule(warm_up=step) is None
