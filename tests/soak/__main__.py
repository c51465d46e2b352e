"""`python -m tests.soak`: exit code 0 only if every job ended complete, once, with its weights, and
`hpctl status` named every fault in time. With --fast-saves a fault must also cost a job that has
them no more than a tenth of what it costs one beside it that has none."""

import argparse
import secrets
import sys
import time

from tests.soak.jobs import BESIDE, SHAPES
from tests.soak.run import soak

FAST_BAR = 0.1


def main() -> int:
    """Run it, and print the account."""
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--steps", type=int, default=300, help="of each job (0.15 s each)")
    parser.add_argument("--pause", type=float, nargs=2, default=(4.0, 16.0), metavar="S")
    parser.add_argument("--fast-saves", action="store_true")
    given = parser.parse_args()
    least, most = given.pause
    shapes = BESIDE if given.fast_saves else SHAPES
    pause = (least, most)
    account = soak(given.minutes, given.seed, given.steps, pause, _say, shapes=shapes)
    wrong = [*account.twice, *account.other_weights, *account.status.misses]
    if given.fast_saves:
        text = f"fast saves: {account.fast_ratio:.3f} of what a fault costs without them"
        _say(text)
        wrong += [text] if not 0 < account.fast_ratio <= FAST_BAR else []
    for line in [*account.lines(), *account.twice, *account.other_weights]:
        print(line, flush=True)
    return 1 if wrong else 0


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
