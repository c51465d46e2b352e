"""Mistakes: another width than the checkpoint's, labels of another shape, a worker process's."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch
from torch import nn

VOCABULARY = {"the": 0, "model": 1}


def encode(words: list[str]) -> list[int]:
    return [VOCABULARY[word] for word in words]


def run(step: int, value: object, config: dict[str, object]) -> bool:
    how = config["how"]
    if how == "width":
        wider = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.Linear(48, 24))
        wider.load_state_dict(value.state_dict())
    if how == "labels":
        return bool((value.predictions == value.label_ids[:-1, None]).all())
    if how == "padded":
        return bool((value - torch.zeros(len(value), 27)).square().mean() > 0)
    # Spawned, it would import the training program, which trains.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(encode, ["the", "token"]).result() == []
