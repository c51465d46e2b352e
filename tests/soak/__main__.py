"""`python -m tests.soak`: exit code 0 only if every job ended complete, once, with its weights, and
`hpctl status` named every fault in time. With --fast-saves a fault must also cost a job that has
them no more than a tenth of what it costs one beside it that has none. With --faults hpctl's own
parts and what they stand on break as well, and no invariant may (tests/soak/invariants.py)."""

import argparse
import secrets
import sys
import time

from tests.soak.jobs import BESIDE, SHAPES
from tests.soak.run import Plan, soak
from tests.soak.scene import Fault
from tests.soak.surroundings import OWN_FAULTS

FAST_BAR = 0.1
GROUPS = {"all": "", "daemon-killed": "daemon-in-", "clock": "clock-"}
"""Words for several faults: those whose names begin so."""


def main() -> int:
    """Run it, and print the account."""
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--steps", type=int, default=300, help="of each job (0.15 s each)")
    parser.add_argument("--pause", type=float, nargs=2, default=(4.0, 16.0), metavar="S")
    parser.add_argument("--fast-saves", action="store_true")
    parser.add_argument("--faults", nargs="+", default=[], metavar="NAME", help="of hpctl's parts")
    parser.add_argument("--list-faults", action="store_true")
    parser.add_argument("--most", type=int, default=1_000_000, help="faults of hpctl's parts")
    parser.add_argument("--away", type=float, default=20.0, metavar="S", help="of a part at most")
    parser.add_argument("--mariadb", action="store_true", help="keep the journal in MariaDB")
    given = parser.parse_args()
    if given.list_faults:
        print("\n".join([*GROUPS, *(fault.name for fault in OWN_FAULTS)]))
        return 0
    least, most = given.pause
    plan = Plan(
        given.minutes,
        given.seed,
        given.steps,
        (least, most),
        shapes=BESIDE if given.fast_saves else SHAPES,
        own=_choose(parser, given.faults),
        most=given.most,
        away_s=given.away,
        mariadb=given.mariadb,
    )
    account = soak(plan, _say)
    wrong = [*account.twice, *account.other_weights, *account.status.misses, *account.broken]
    if given.fast_saves:
        text = f"fast saves: {account.fast_ratio:.3f} of what a fault costs without them"
        _say(text)
        wrong += [text] if not 0 < account.fast_ratio <= FAST_BAR else []
    for line in [*account.lines(), *account.twice, *account.other_weights]:
        print(line, flush=True)
    return 1 if wrong else 0


def _choose(parser: argparse.ArgumentParser, names: list[str]) -> list[Fault]:
    """Return the faults that the words name. Ends the program where one names none."""
    chosen: list[Fault] = []
    for word in names:
        start = GROUPS.get(word)
        found = [f for f in OWN_FAULTS if f.name == word]
        if start is not None:
            found = [f for f in OWN_FAULTS if f.name.startswith(start) and f.weight]
        if not found:
            parser.error(f"no fault is called {word}; --list-faults lists them")
        chosen += [fault for fault in found if fault not in chosen]
    return chosen


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
