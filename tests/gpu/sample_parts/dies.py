"""A part whose process dies."""

import os
import signal

TITLE = "Dies"
LIMIT_S = DRY_LIMIT_S = 20
SIDE_BY_SIDE = False
NEEDS: frozenset[str] = frozenset()


def run(context):
    """Record something and die as by a crash in a library."""
    context.record("before", 1)
    os.kill(os.getpid(), signal.SIGSEGV)
    signal.pause()
