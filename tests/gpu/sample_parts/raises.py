"""A part that raises."""

TITLE = "Raises"
LIMIT_S = DRY_LIMIT_S = 20
SIDE_BY_SIDE = False
NEEDS: frozenset[str] = frozenset()


def run(context):
    """Record something and raise."""
    context.record("before", 1)
    raise RuntimeError("broken on purpose")
