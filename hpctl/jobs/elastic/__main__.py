"""`python -m hpctl.jobs.elastic`: see options.py and docs/run.md.

Exit codes: 0 all ranks ended with 0; the first failed rank's own code (128 + n for signal n) where
that code is final or the restarts are used up; 75 where a launcher or its node is gone; 93 where
no checkpoint may be resumed from; 143 where the step was ended; 64 usage.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence

from hpctl.errors import HpctlError
from hpctl.jobs.elastic.account import Account
from hpctl.jobs.elastic.controller import Controller, say
from hpctl.jobs.elastic.group import LOST
from hpctl.jobs.elastic.launcher import Launcher
from hpctl.jobs.elastic.options import Options, parse
from hpctl.jobs.elastic.place import Place, place

USAGE = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Run this node's launcher, and on the first node the controller too."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        options = parse(words, os.environ)
        where = place(
            os.environ,
            nodes=options.nnodes,
            node=options.node_rank,
            address=options.master_addr,
            run_id=options.run_id,
        )
        return asyncio.run(_run(options, where, os.environ))
    except HpctlError as error:
        say(f"{error}\n  {error.hint}" if error.hint else str(error))
        return USAGE
    except TimeoutError as error:
        say(str(error))
        return LOST


async def _run(options: Options, where: Place, environment: Mapping[str, str]) -> int:
    launcher = Launcher(options, where, environment)
    if where.node:
        return await launcher.run()
    controller = Controller(
        where, options.limits, options.timing, Account(options.result, where.run_id), environment
    )
    await controller.listen()
    group = asyncio.create_task(controller.run())
    code = await launcher.run()
    controller.own_launcher_left()
    # The others are told the end by the same process: it stays until they have heard it.
    await group
    return code


if __name__ == "__main__":
    sys.exit(main())
