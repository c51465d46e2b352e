"""A part that hangs and cannot be told to end, as in a call into a driver."""

import signal
import time

TITLE = "Hangs hard"
LIMIT_S = DRY_LIMIT_S = 0.5
SIDE_BY_SIDE = False
NEEDS: frozenset[str] = frozenset()


def run(context):
    """Block SIGTERM and hang."""
    context.record("before", 1)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    time.sleep(600)
