"""How many examples Hypothesis tries: a slice in `make test`, and more in `make nightly`."""

from __future__ import annotations

import os

TIMES = int(os.environ.get("HPCTL_TEST_EXAMPLES", "1"))
"""`make nightly` sets it to 20."""


def examples(count: int) -> int:
    """So many in `make test`."""
    return count * TIMES
