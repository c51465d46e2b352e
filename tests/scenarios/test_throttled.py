"""A service that throttles, and one that takes an order whose answer is lost."""

from __future__ import annotations

import pytest

from tests.scenarios.conftest import EVERY, World

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]


def test_throttling_is_ridden_out_and_a_lost_answer_repeats_nothing(world: World) -> None:
    world.sandbox.inject_api("throttle", calls=3, for_s=60)
    world.sandbox.inject_api("drop-reply", calls=1, operations="CreateCluster")
    world.create()
    accepted = [call for call in world.calls("CreateCluster") if not call["error"]]
    assert len(accepted) == 1
    world.sandbox.inject_api("drop-reply", calls=1, operations="UpdateCluster")
    world.hpctl("cluster", "scale", "workers", "3", "--yes", *EVERY)
    assert len(world.nodes()) == 3
    assert len(world.slurm()) == 3
