"""`python -m hpctl.jobs.elastic`: see options.py and docs/run.md.

Exit codes: 0 all ranks ended with 0; the first failed rank's own code (128 + n for signal n) where
that code is final or the restarts are used up; 75 where a launcher or its node is gone; 93 where
no checkpoint may be resumed from; 143 where the step was ended; 64 usage.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence

from hpctl.jobs.elastic.controller import (
    RankGroupController,
    RankGroupRecorder,
    print_launcher_log_line,
)
from hpctl.jobs.elastic.group import LOST
from hpctl.jobs.elastic.launcher import NodeRankLauncher
from hpctl.jobs.elastic.options import (
    LauncherLocation,
    LauncherOptions,
    parse_launcher_options,
    read_launcher_location,
)
from hpctl.toolkit.errors import HpctlError

USAGE = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Run this node's launcher, and on the first node the controller too."""
    try:
        options = parse_launcher_options(
            sys.argv[1:] if arguments is None else arguments, os.environ
        )
        return asyncio.run(
            _run_node_rank_launcher(options, read_launcher_location(os.environ), os.environ)
        )
    except HpctlError as error:
        print_launcher_log_line(f"{error}\n  {error.hint}" if error.hint else str(error))
        return USAGE
    except TimeoutError as error:
        print_launcher_log_line(str(error))
        return LOST


async def _run_node_rank_launcher(
    options: LauncherOptions, where: LauncherLocation, environment: Mapping[str, str]
) -> int:
    launcher = NodeRankLauncher(options, where, environment)
    if where.node:
        return await launcher.run()
    controller = RankGroupController(
        where,
        options.limits,
        options.timing,
        RankGroupRecorder(options.result, where.run_id),
        environment,
    )
    await controller.listen()
    group = asyncio.create_task(controller.run())
    code = await launcher.run()
    controller.handle_local_launcher_exit()
    # The same process sends the others the end: it stays until they have received it.
    await group
    return code


if __name__ == "__main__":
    sys.exit(main())
