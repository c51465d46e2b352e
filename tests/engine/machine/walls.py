"""The non-interference property, and `make hostile`, which plays a million strangers through it.

Whatever strangers say, all others are decided the same. What each says follows from the
seed and its place alone, on however many cores it is played.

Several strangers share one cluster, because a cluster costs more than one of them; what they break
together is traced to the fewest that break it.
"""

import argparse
import logging
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from random import Random
from typing import Any

from msgspec.structs import replace

from hpctl.vocabulary.isolation import ItemProcessingFailure
from tests.engine.machine.hostile import stranger
from tests.engine.machine.stranger import OTHERS, Words, play, restarted, targets

TOGETHER = 32
"""Strangers in one cluster: twice as many are little faster, and hide more of one another."""


@cache
def alone(strangers: int) -> list[tuple[Any, ...]]:
    """What is decided where so many strangers are silent."""
    return play(*[None] * strangers).decisions


def check(*answer: Words, flawless: bool = True) -> Counter[str]:
    """Nobody else is decided otherwise, nothing raises, and a restart remembers the same.

    A cloud's answer may be one that cannot be read. The answer is what reached hpctl.
    """
    came = play(*answer)
    assert came.decisions == alone(len(answer))
    if flawless:
        known = {flaw for flaw in came.flaws if not _unreadable(flaw, answer)}
        assert not known, "a wall is for what nobody foresaw: what was foreseen is bounded"
    assert {flaw.target for flaw in came.flaws} <= targets(len(answer))
    assert came.reached["jobs"] == came.reached["nodes"] == len(answer), "every stranger was read"
    again = restarted(came)
    assert (again.nodes, again.jobs, again.holds) == (
        came.state.nodes, came.state.jobs, came.state.holds,
    )  # fmt: skip
    return came.reached


def _unreadable(flaw: ItemProcessingFailure, lines: Sequence[Words]) -> bool:
    """Whether it is of an instance whose status is no object, which no stranger writes."""
    of = {f"n{OTHERS + 1 + place}": args.cloud or {} for place, args in enumerate(lines)}
    status = of.get(flaw.target, {}).get("InstanceStatus", {})
    return flaw.where == "parse" and not isinstance(status, Mapping)


def broken(*answer: Words) -> Exception | None:
    """How the property is broken, if it is."""
    try:
        check(*answer)
    except Exception as error:  # noqa: BLE001 -- whatever is raised is an escape
        return error
    return None


def least(lines: Sequence[Words]) -> list[Words]:
    """Of strangers that break it, the fewest that still do, and the least that they say."""
    half = len(lines) // 2
    for part in (lines[:half], lines[half:]) if half else ():
        if broken(*part) is not None:
            return least(part)
    left = list(lines)
    while (
        smaller := next((less for less in _lesser(left) if broken(*less) is not None), None)
    ) is not None:
        left = smaller
    return left


def _lesser(lines: Sequence[Words]) -> Iterator[list[Words]]:
    """The same with one thing less."""
    for place, args in enumerate(lines):
        for name in (n for n in args.__struct_fields__ if getattr(args, n)):
            value = getattr(args, name)
            parts = list(value) if isinstance(value, Mapping) else []
            rests: list[Any] = [getattr(Words(), name)]
            rests += [{key: value[key] for key in parts if key != part} for part in parts]
            for rest in rests:
                yield [*lines[:place], replace(args, **{name: rest}), *lines[place + 1 :]]


ClusterCheck = tuple["Counter[str]", "str"]
"""What reached hpctl of one cluster's strangers, and how the property broke there ('': it held)."""
TOLD_EVERY_S = 30.0


def strangers(seed: int, cluster: int) -> list[Words]:
    """Those of one cluster."""
    dice = Random(f"{seed}/{cluster}")
    return [stranger(dice) for _ in range(TOGETHER)]


def check_cluster(seed: int, cluster: int) -> ClusterCheck:
    """One cluster's strangers. What breaks the property is named as the fewest words that do."""
    text = strangers(seed, cluster)
    try:
        return check(*text), ""
    except Exception:  # noqa: BLE001 -- whatever is raised is an escape
        fewest = least(text)
        return Counter(jobs=len(text)), f"{broken(*fewest)!r}\n  by {fewest!r}"


def clusters(seed: int, inputs: int, processes: int = 1) -> Iterator[tuple[int, ClusterCheck]]:
    """Each cluster with its number, in no order."""
    numbers = range(-(-inputs // TOGETHER))
    if processes == 1:
        yield from ((cluster, check_cluster(seed, cluster)) for cluster in numbers)
        return
    with multiprocessing.get_context("spawn").Pool(processes, _quiet) as pool:
        yield from pool.imap_unordered(partial(_numbered, seed), numbers, chunksize=8)


def _numbered(seed: int, cluster: int) -> tuple[int, ClusterCheck]:
    return cluster, check_cluster(seed, cluster)


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
    began = text = time.monotonic()
    reached, broke = Counter[str](), 0
    for cluster, (came, escape) in clusters(seed, asked.inputs, asked.processes):
        reached += came
        if escape:
            broke += 1
            print(f"ESCAPE in cluster {cluster} of seed {seed}: {escape}", flush=True)
        if time.monotonic() - text > TOLD_EVERY_S:
            text = time.monotonic()
            print(_line(reached, broke, text - began), flush=True)
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
