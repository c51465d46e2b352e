"""Ctrl-C in the middle of a create: the service goes on, and `wait` and `create` pick it up."""

from __future__ import annotations

import pytest

from tests.scenarios.conftest import EVERY, World

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]


def test_ctrl_c_and_wait(world: World) -> None:
    world.sandbox.inject_api("latency", seconds=0.5, operations="ListClusterNodes")
    code, said = world.interrupted(
        "cluster", "create", str(world.file), "--yes", *EVERY, after="workers 0/2"
    )
    assert code == 130, said
    assert "hpctl cluster wait demo" in said
    world.sandbox.inject_api("clear")
    assert "2/2" in world.hpctl("cluster", "wait", "demo", *EVERY)
    # Created once: a create again finds the cluster as the file says, and makes no other.
    world.create()
    assert len(world.calls("CreateCluster")) == 1
    assert len(world.slurm()) == 2
