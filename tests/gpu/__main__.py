"""`python -m tests.gpu --out FOLDER`: what hpctl does on this machine's GPU, in eight minutes."""

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.gpu.plan import BUDGET_S, PARTS
from tests.gpu.result import write_result
from tests.gpu.runner import PartResult, Runner, make_scratch


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds in all")
    parser.add_argument("--only", default="", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--dry", action="store_true", help="stand-ins instead of a GPU")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Run the parts and write the results; 1 if a part raised, died or was killed."""
    options = parse(words)
    names = [name for name in options.only.replace(",", " ").split() if name] or list(PARTS)
    unknown = set(names) - set(PARTS)
    if unknown:
        print(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
        return 2
    # So that what was found is written and nothing is left running.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    scratch = make_scratch()

    def write(results: list[PartResult]) -> None:
        write_result(options.out, results, scratch, dry=options.dry)

    results: list[PartResult] = []
    try:
        runner = Runner(names, scratch, budget_s=options.budget, dry=options.dry, finish_part=write)
        results = runner.run()
        write(results)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0 if all(result.state in ("ran", "not run") for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
