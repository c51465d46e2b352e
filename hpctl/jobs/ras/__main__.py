"""`python -m hpctl.jobs.ras [HOST:PORT]`: look twice, and print whom the ranks wait for.

Exit codes: 0 the run goes on or nobody is behind, 1 somebody is named, 3 no answer.
"""

import argparse
import os
import sys
import time

from hpctl.core.bounds import printable
from hpctl.jobs.ras.client import address, query
from hpctl.jobs.ras.judge import APART_S, RasSample, culprits
from hpctl.jobs.ras.report import RasError


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser("python -m hpctl.jobs.ras", description=__doc__)
    parser.add_argument("address", nargs="?", default=os.environ.get("NCCL_RAS_ADDR", ""))
    parser.add_argument("--apart", type=float, default=APART_S, help="seconds between the looks")
    parsed = parser.parse_args()
    try:
        where = address(parsed.address)
        first = RasSample(query(where), time.monotonic())
        time.sleep(max(0.0, parsed.apart))
        second = RasSample(query(where), time.monotonic())
    except RasError as error:
        print(printable(f"{error}\n{error.hint}", lines=True), file=sys.stderr)
        return 3
    found = culprits(first, second)
    ranks = max((one.size or 0 for one in second.report.communicators), default=0)
    nccl = f"NCCL {second.report.nccl_version}, {ranks} ranks in the largest communicator"
    print(printable(f"{nccl}\n{found.cause}: {found.why}", lines=True))
    return 1 if found.members else 0


if __name__ == "__main__":
    sys.exit(main())
