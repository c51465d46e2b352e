"""A part that finds that it cannot run."""

from tests.gpu.context import NotRun

TITLE = "Refuses"
LIMIT_S = DRY_LIMIT_S = 20
SIDE_BY_SIDE = False
NEEDS: frozenset[str] = frozenset()


def run(context):
    """Refuse."""
    raise NotRun("the moon is full")
