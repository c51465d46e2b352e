"""A part that hangs, and cleans up when told to end."""

import time

TITLE = "Hangs"
LIMIT_S = DRY_LIMIT_S = 0.5
SIDE_BY_SIDE = False
NEEDS: frozenset[str] = frozenset()


def run(context):
    """Record something and hang."""
    context.record("before", 1)
    try:
        time.sleep(600)
    finally:
        context.record("cleaned_up", True)
