"""A slice of `make fuzz`, and every input that once broke a decoder."""

import os
import random
import time
from pathlib import Path

import pytest

from tests.fuzz.mutate import mutated
from tests.fuzz.targets import SLOW_S, TARGETS, once

pytestmark = pytest.mark.integration

FOUND = Path(__file__).parent / "found"
SEED = int(os.environ.get("HPCTL_TEST_SEED", "20261122"))
INPUTS = 150
ENOUGH_S = 0.8
"""Of a decoder's share: some take a tenth of a second for one input."""


@pytest.mark.parametrize("name", TARGETS)
def test_it_takes_or_refuses_whatever_comes(name: str) -> None:
    target, dice = TARGETS[name], random.Random(f"{SEED} {name}")
    for seed in target.seeds:
        once(target, seed)
    until = time.monotonic() + ENOUGH_S
    for _ in range(INPUTS):
        raw = mutated(target.seeds, dice)
        began = time.monotonic()
        try:
            once(target, raw)
        except BaseException as error:  # noqa: BLE001 -- an exit is a failure too
            pytest.fail(f"{name} raised {error!r} for {raw[:400]!r} (HPCTL_TEST_SEED={SEED})")
        assert time.monotonic() - began < SLOW_S
        if time.monotonic() > until:
            break


@pytest.mark.parametrize(
    ("name", "file"), [(p.parent.name, p) for p in sorted(FOUND.glob("*/*")) if p.is_file()]
)
def test_what_once_broke_it_no_longer_does(name: str, file: Path) -> None:
    once(TARGETS[name], file.read_bytes())
