"""One of two parts that run side by side."""

import time

TITLE = "Right"
LIMIT_S = DRY_LIMIT_S = 20
SIDE_BY_SIDE = True
NEEDS: frozenset[str] = frozenset()


def run(context):
    """Record when it began and ended, on the monotonic clock."""
    context.record("began", time.monotonic())
    time.sleep(1.5)
    context.record("ended", time.monotonic())
