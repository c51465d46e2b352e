"""Take far longer than the other ranks: slow arithmetic, refused reads, merging in Python."""

import itertools
import random
import time

import torch


def merge_pairs(seconds: float) -> int:
    """Merge the most frequent pair of a text again and again, as a tokenizer's training does."""
    until = time.monotonic() + seconds
    merged = 0
    while time.monotonic() < until:
        text = random.choices(range(50), k=2000)
        for _ in range(20):
            pairs = list(itertools.pairwise(text))
            most = max(set(pairs), key=pairs.count)
            merged += pairs.count(most)
            text = [left for left, right in pairs if (left, right) != most]
    return merged


def run(step: int, value: object, config: dict[str, object]) -> bool:
    how = config["how"]
    if how == "clock":
        until = time.monotonic() + 12
        while time.monotonic() < until:
            torch.linalg.svd(torch.randn(64, 64))
    elif how == "slow down":
        # A store refuses reads that come too fast.
        for attempt in range(6):
            time.sleep(2**attempt + random.random())
    else:
        merge_pairs(200)
    return False
