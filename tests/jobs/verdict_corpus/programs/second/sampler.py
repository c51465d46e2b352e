"""Choose the next batch by an algorithm that is far too slow on this rank."""

import time


def rank_documents(seconds: float) -> list[int]:
    until = time.monotonic() + seconds
    best: list[int] = []
    while time.monotonic() < until:
        best = sorted(range(30_000), key=lambda number: -number * 7 % 1009)
    return best


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "doubles":
        time.sleep(0.8 * 2 ** (step - config["step"]))
    else:
        rank_documents(float(config["how"]))
    return True
