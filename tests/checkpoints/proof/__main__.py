"""`make proof`: the long run. `python -m tests.checkpoints.proof [--kills N] [--seed N]
[LIBRARY...]`."""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.checkpoints.proof import table
from tests.checkpoints.proof.killing import Count, Kills
from tests.checkpoints.proof.template import Template
from tests.checkpoints.proof.writers import WAYS, missing


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.checkpoints.proof")
    parser.add_argument("--kills", type=int, default=1000, help="of all libraries together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument("--dir", type=Path, help="where the writers write")
    parser.add_argument(
        "libraries",
        nargs="*",
        default=[name for name in WAYS if not missing(name)],
        metavar="LIBRARY",
    )
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    counts: list[Count] = []
    each = -(-asked.kills // len(asked.libraries))
    with tempfile.TemporaryDirectory(prefix="hpctl-proof-", dir=asked.dir) as scratch:
        for number, name in enumerate(asked.libraries):
            place, began = Path(scratch) / str(number), time.monotonic()
            with Template(name, place) as template:
                counts.append(Kills(template, place, asked.seed).run(each))
            wrong, took = len(counts[-1].false_whole), time.monotonic() - began
            print(f"{name}: {each} kills, {wrong} falsely whole, {took:.0f} s", flush=True)
    print(*table.lines(counts), sep="\n")
    sys.exit(any(count.false_whole for count in counts))


if __name__ == "__main__":
    main()
