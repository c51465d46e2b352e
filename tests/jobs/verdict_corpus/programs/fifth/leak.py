"""Use more of the host's memory at each turn: tables, lists of Python's, or one large tensor."""

import torch


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "lists":
        rows = [0.0]
        while True:
            rows = rows + rows
    if config["how"] == "tensor":
        return bool(torch.zeros(1 << 38, dtype=torch.uint8).sum())
    table: dict[int, str] = {}
    while True:
        key = len(table)
        table[key] = f"review {key} " * 40
