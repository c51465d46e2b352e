"""The seeded slice of what is long: some in `make test`, all or many more in `make nightly`."""

import os
import random
from collections.abc import Iterable
from typing import Any

import pytest

SEED = int(os.environ.get("HPCTL_TEST_SEED", "20261123"))
TIMES = int(os.environ.get("HPCTL_TEST_EXAMPLES", "1"))
"""`make nightly` sets it to 20."""


def examples(count: int) -> int:
    """How many examples Hypothesis tries: so many in `make test`."""
    return count * TIMES


def sliced(values: Iterable[Any], count: int) -> list[Any]:
    """Parameters of a test: `count` of them, as HPCTL_TEST_SEED chooses, and the rest at night."""
    every = list(values)
    chosen = set(random.Random(SEED).sample(range(len(every)), min(count, len(every))))
    night = pytest.mark.nightly
    return [v if n in chosen else pytest.param(v, marks=night) for n, v in enumerate(every)]
