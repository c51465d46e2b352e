"""The culprit among the nodes of a real Slurm: each group test is a job of its own."""

import json
import sys

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


@pytest.fixture
def hpctl(slurm, shared):
    """Runs `hpctl acceptance culprit` with a site's tests in the place of the all-reduce."""

    def run(script: str, *args: str, limit_s: int = 30, check: bool = False):
        row = {"name": "group.all_reduce", "what": "a test", "levels": ["group"]}
        row |= {"command": ["sh", "-c", script], "timeout_s": limit_s}
        (shared / "a.yaml").write_text(json.dumps({"tests": [row]}))
        command = [sys.executable, "-m", "hpctl", "acceptance", "culprit", "--timeout", "60", *args]
        return slurm.run(command, env={"HPCTL_TESTS_D": str(shared)}, check=check)

    return run


def names(slurm) -> list[str]:
    return sorted(str(node["node"]) for node in slurm.status()["nodes"])


SLOW = """echo '{"figures": {"busbw_gbs": 380}}'; exit"""


@pytest.mark.parametrize(
    ("how", "limit_s"),
    [pytest.param("sleep 120", 8, marks=pytest.mark.nightly), (SLOW, 30)],
    ids=["hangs", "slow"],
)
def test_one_node_of_four_that_hangs_or_is_slow_is_named(slurm, hpctl, how, limit_s) -> None:
    nodes = names(slurm)
    script = f"""test "$SLURMD_NODENAME" != {nodes[2]} || {{ {how}; }}
echo '{{"figures": {{"busbw_gbs": 440}}}}'"""
    done = hpctl(script, "--json", *nodes, limit_s=limit_s)
    assert done.returncode == 1, done.stderr
    view = json.loads(done.stdout)
    assert view["culprits"] == [nodes[2]]
    assert view["rounds"] <= 4
    assert "round 1 of at most 4: ip-" in done.stderr
    assert not slurm.run(["squeue", "--noheader"]).stdout, "a job is left"


def test_where_no_test_can_run_it_says_so(slurm, hpctl) -> None:
    done = hpctl("echo HEALTH_CHECK_RESULT:n:Skipped:none:no torch", *names(slurm))
    assert done.returncode == 3
    assert "could not test any group of the nodes: no torch" in done.stderr
    assert "Slurm has no node nowhere" in hpctl("true", "nowhere", names(slurm)[0]).stderr
    assert "add healthy nodes to test it with" in hpctl("true", names(slurm)[0]).stderr
