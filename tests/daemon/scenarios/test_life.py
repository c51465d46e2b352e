"""From a file to a cluster, through work, growing and shrinking, to its end."""

import pytest

from tests.daemon.scenarios.conftest import EVERY, World
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


@pytest.mark.parametrize("node_names", ["ip", pytest.param("group", marks=pytest.mark.nightly)])
def test_a_cluster_is_made_grows_and_shrinks_under_load_and_goes(world, node_names):
    if node_names == "group":
        world.sandbox.inject_api("no-dns")
    output = world.create()
    prefix = {"ip": "ip-127-0-1-", "group": "gpu-compute-"}[node_names]
    assert all(name.startswith(prefix) for name in world.slurm())
    assert "create demo: done; InService, controller 1/1, workers 2/2" in output
    assert world.slurm() == {node["node"]: "idle" for node in world.nodes()}
    assert len(world.slurm()) == 2
    # Two jobs on two nodes; a third one waits for a node that is not there yet.
    first, second, third = (world.submit("sleep 600", "-N1", "--exclusive") for _ in range(3))
    until(lambda: world.runs(first) and world.runs(second), 20)
    assert world.job(third).startswith("PENDING")
    output = world.hpctl("cluster", "scale", "workers", "3", "--yes", *EVERY)
    assert "scale demo: done; InService, controller 1/1, workers 3/3" in output
    until(lambda: world.runs(third), 30)
    # One fewer: the node that idles, not one that the service picks.
    idle, *_ = world.where(first)
    world.sandbox.run(["scancel", str(first)])
    until(lambda: world.slurm()[idle] == "idle", 20)
    output = world.hpctl("cluster", "scale", "workers", "2", "--yes", *EVERY)
    assert f"{idle}: done: deleted" in output
    assert sorted(world.slurm()) == sorted(world.where(second) + world.where(third))
    # One more fewer, and both work: the one that goes is drained, and its job ends in its own time.
    world.sandbox.run(["scancel", str(third)])
    (kept,) = world.where(second)
    (other,) = set(world.slurm()) - {kept}
    until(lambda: world.slurm()[other] == "idle", 20)
    replaced(world, other, moves=node_names == "group")
    short = world.submit("sleep 15", "-N1", f"--nodelist={other}")
    until(lambda: world.runs(short), 20)
    arguments = ("cluster", "scale", "workers", "1", "--nodes", other)
    assert "1 job(s) run there" in world.hpctl(*arguments, "--dry-run")
    assert len(world.nodes()) == 2
    world.hpctl(*arguments, "--yes", *EVERY)
    assert list(world.slurm()) == [kept]
    assert world.job(short).startswith("COMPLETED")
    assert world.runs(second)
    # What lives is what the file says.
    world.hpctl("cluster", "import", "demo", "-o", str(world.file), "--force")
    assert (
        world.hpctl("cluster", "update", str(world.file)) == "update demo: there is nothing to do\n"
    )
    output = world.hpctl("cluster", "delete", "demo", "--yes", *EVERY)
    assert f"{second} job.sh of root on 1 node(s)" in output
    assert "delete demo: done; Deleted" in output
    assert world.seen("cluster", "list")["clusters"] == []
    assert world.slurm() == {}


def replaced(world: World, node: str, *, moves: bool) -> None:
    """Replace a node by hand: its name stays, its address need not."""
    (before,) = (one for one in world.nodes() if one["node"] == node)
    assert f"{node}: done" in world.hpctl("cluster", "replace", node, "--yes", *EVERY)
    (after,) = (one for one in world.nodes() if one["node"] == node)
    assert after["slurm_state"] == "IDLE"
    assert after["instance_id"] != before["instance_id"]
    assert (after["ip"] != before["ip"]) is moves
