"""Exhaust an iterator without an end, in C: the interpreter keeps the GIL meanwhile."""

import collections
import itertools
import math


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "deque":
        collections.deque(itertools.count(), maxlen=0)
    elif config["how"] == "factorial":
        math.factorial(10**9)
    return step in itertools.cycle([-1])
