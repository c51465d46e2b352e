"""Grow a structure of this rank until its memory is used up."""

import pickle

import torch


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "string":
        text = "token " * 1000
        while True:
            text += text
    if config["how"] == "pickle":
        raw = bytes(3 << 20)
        rows = []
        while True:
            rows.append(pickle.loads(pickle.dumps(raw)))
    table = torch.zeros(1 << 20)
    while True:
        table = torch.cat([table, table])
