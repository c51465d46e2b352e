"""`make hostile`: strangers by the million through the non-interference property, on all cores.

What each says follows from the seed and its place alone, on however many cores it is played: a seed
and a number of inputs are the same inputs again.
"""

import argparse
import logging
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

from tests.properties.hostile import stranger
from tests.properties.stranger import Words
from tests.properties.walls import TOGETHER, broken, check, least

Played = tuple["Counter[str]", "str"]
"""What reached hpctl of one cluster's strangers, and how the property broke there ('': it held)."""
TOLD_EVERY_S = 30.0


def strangers(seed: int, cluster: int) -> list[Words]:
    """Those of one cluster."""
    dice = Random(f"{seed}/{cluster}")
    return [stranger(dice) for _ in range(TOGETHER)]


def played(seed: int, cluster: int) -> Played:
    """One cluster's strangers. What breaks the property is named as the fewest words that do."""
    said = strangers(seed, cluster)
    try:
        return check(*said), ""
    except Exception:  # noqa: BLE001 -- whatever is raised is an escape
        fewest = least(said)
        return Counter(jobs=len(said)), f"{broken(*fewest)!r}\n  by {fewest!r}"


def clusters(seed: int, inputs: int, processes: int = 1) -> Iterator[tuple[int, Played]]:
    """Each cluster with its number, in no order."""
    numbers = range(-(-inputs // TOGETHER))
    if processes == 1:
        yield from ((cluster, played(seed, cluster)) for cluster in numbers)
        return
    with multiprocessing.get_context("spawn").Pool(processes, _quiet) as pool:
        yield from pool.imap_unordered(partial(_numbered, seed), numbers, chunksize=8)


def _numbered(seed: int, cluster: int) -> tuple[int, Played]:
    return cluster, played(seed, cluster)


def _quiet() -> None:
    logging.disable(logging.CRITICAL)


def main(argv: Sequence[str] | None = None) -> int:
    """Play them, and say what came of it. 1 where the property broke."""
    parser = argparse.ArgumentParser(prog="make hostile", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="strangers, at least so many")
    parser.add_argument("--seed", type=int, help="otherwise a new one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args(argv)
    seed = int(time.time()) if asked.seed is None else asked.seed
    print(f"seed {seed}, {asked.inputs} inputs, {asked.processes} processes", flush=True)
    began = told = time.monotonic()
    reached, broke = Counter[str](), 0
    for cluster, (came, escape) in clusters(seed, asked.inputs, asked.processes):
        reached += came
        if escape:
            broke += 1
            print(f"ESCAPE in cluster {cluster} of seed {seed}: {escape}", flush=True)
        if time.monotonic() - told > TOLD_EVERY_S:
            told = time.monotonic()
            print(_line(reached, broke, told - began), flush=True)
    print(_line(reached, broke, time.monotonic() - began), f"seed {seed}")
    return 1 if broke else 0


def _line(reached: Counter[str], broke: int, seconds: float) -> str:
    return (
        f"{reached['jobs']} inputs in {seconds:.0f} s, {reached['jobs'] / seconds:.0f} a second: "
        f"{broke} escapes; taken in: {reached['reports']} reports, {reached['told']} words of jobs;"
        f" {reached['events']} events about them"
    )


if __name__ == "__main__":
    raise SystemExit(main())
