"""Say one line to a running group from outside: `restart: why`, or `status`.

    python -m hpctl.jobs.elastic.tell 'restart: rank 3 hangs in all_reduce'

with the environment of the step (HPCTL_ELASTIC_SECRET, SLURM_JOB_ID, SLURM_STEP_ID), or --host and
--run-id. The answer is `ok` or `no: why`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys

from hpctl.core.bounds import printable
from hpctl.errors import Unavailable
from hpctl.jobs.elastic import SECRET, wire
from hpctl.jobs.elastic.place import address_of, in_use


def tell(host: str, run_id: str, secret: str, line: str) -> str:
    """Say it to the controller on the step's first node, and return its answer.

    `run_id` is `JOBID.STEPID`. Takes some seconds where a host does not answer. Raises Unavailable.
    """
    return asyncio.run(_tell(host, run_id, secret, line))


async def _tell(host: str, run_id: str, secret: str, line: str) -> str:
    first = wire.first_port(secret, run_id)
    for port in range(first, first + wire.PORTS):
        with contextlib.suppress(OSError, wire.ProtocolError, TimeoutError):
            proven = await wire.connect(host, port, secret, {"tell": line})
            answer = await wire.wait_for(proven.receive(), wire.HANDSHAKE_S)
            await proven.close()
            return str(answer.get("said", ""))
    raise Unavailable(
        f"no launcher of step {run_id} answers on {host}",
        f"Ports {first} to {first + wire.PORTS - 1} were tried.",
    )


def main() -> int:
    """The command line. Exit codes: 0 done, 1 refused or nobody there."""
    parser = argparse.ArgumentParser("python -m hpctl.jobs.elastic.tell", description=__doc__)
    parser.add_argument("line")
    parser.add_argument("--host", default="127.0.0.1", help="the step's first node")
    parser.add_argument("--run-id", default=in_use(), help="JOBID.STEPID")
    parsed = parser.parse_args()
    try:
        answer = tell(
            address_of(parsed.host), parsed.run_id, os.environ.get(SECRET, ""), parsed.line
        )
    except Unavailable as error:
        answer = f"no: {error}"
    print(printable(answer, lines=True))
    return 0 if answer.startswith("ok") else 1


if __name__ == "__main__":
    sys.exit(main())
