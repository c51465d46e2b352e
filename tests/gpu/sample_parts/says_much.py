"""A part that records and keeps more than may come back."""

TITLE = "Says much"
LIMIT_S = DRY_LIMIT_S = 20
SIDE_BY_SIDE = False
NEEDS: frozenset[str] = frozenset()


def run(context):
    """Record and keep megabytes, and one short fact."""
    context.record("long", "x" * 3_000_000)
    context.record("rows", [{"number": number} for number in range(100_000)])
    context.record("short", "kept")
    context.say("y" * 10_000)
    context.keep("large.txt", "z" * 3_000_000)
    context.keep("small.txt", "kept")
