"""Read what the flight recorders of a running job's ranks have just dumped, for `hpctl stacks`.

The agent, which runs as root, does not load this module.
"""

import time
from collections.abc import Sequence
from itertools import chain

from hpctl.jobs.hangs.flight_files import diagnose_hang_from_dumps_in_subprocess
from hpctl.jobs.hangs.flight_recorder import FlightRecorderHangVerdict
from hpctl.jobs.hangs.stack_groups import NodeStacks
from hpctl.jobs.hangs.stacks import build_setpriv_command

FRESH_S = 600.0
"""A dump of a flight recorder that is older does not show what the ranks do now, in seconds."""


def diagnose_hang_from_job_dumps(
    dumps: Sequence[NodeStacks], uid: int | None
) -> FlightRecorderHangVerdict:
    """Return what the flight recorders of a job's ranks show, where this host sees their dumps.

    A dump counts that was written since the job's ranks were started and in the last FRESH_S, by a
    rank of as many as the job has: several jobs of a user may dump to one place. Raises nothing.
    Ranks that dump to several places are those of several steps: nothing is read.
    """
    prefixes = set()
    for one in chain.from_iterable(node.ranks for node in dumps):
        rank = str(one.rank)
        if one.flight.endswith(rank):
            prefixes.add(one.flight.removesuffix(rank))
    if len(prefixes) != 1:
        return FlightRecorderHangVerdict()
    try:
        become = build_setpriv_command(uid)
    except KeyError:  # an account that this host does not know
        return FlightRecorderHangVerdict()
    since = max([time.time() - FRESH_S, *(node.began for node in dumps)])
    world = max((node.world for node in dumps), default=0)
    return diagnose_hang_from_dumps_in_subprocess(prefixes.pop(), since, become=become, world=world)
