"""No capacity for a type: what it means, and what else the file offers."""

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]


def test_no_capacity_says_what_it_means_and_what_to_do(world):
    world.sandbox.inject_api("no-capacity", nodes="workers-1")
    output = world.create("--patience", "1s", code=1)
    assert "means: AWS has no ml.p5.48xlarge to give in subnet-" in output
    assert "fix: " in output
    assert "instance_types, in a new group" in " ".join(output.split())
    assert "create demo: failed: 1 node(s) did not come up" in output
    # What could be launched is there, and works.
    assert len(world.slurm()) == 1
    # Once there is capacity, the same file is all it takes.
    world.sandbox.inject_api("clear")
    world.create()
    assert len(world.slurm()) == 2
    assert len(world.sandbox.calls("CreateCluster")) == 1
