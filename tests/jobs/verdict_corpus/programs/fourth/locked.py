"""Compute in C for very long while the interpreter's lock is held."""

import itertools


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "product":
        return (1,) * 9 in itertools.product(range(2, 300), repeat=9)
    if config["how"] == "pow":
        return pow(7, 10**9, 10**400_000) > 0
    return "x" * 3 in (str(number) for number in ()) or sum(itertools.repeat(1, 10**14)) > 0
