"""A node under its acceptance test, and a user who wants it held, failed or believed healthy."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctl.vocabulary.node_recovery import NodeRecovery
from tests.adversary.bed import Siege
from tests.daemon.chaos import cluster
from tests.live import until

pytestmark = [
    pytest.mark.adversary,
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user"),
]
PREFIX = "hpctl-accept-"
TEST = """#!/bin/sh
# As hpctl.nodes.acceptance.run is called: --level LEVEL --id ID. It passes once it may.
env >{base}/env.new; pwd >{base}/cwd; mv {base}/env.new {base}/env
while [ ! -e {base}/go ]; do sleep 0.2; done
folder={base}/s/nodes/$SLURMD_NODENAME/agent/acceptance now=$(date +%s)
printf '{"id": "%s", "level": "%s", "started": %s, "finished": %s, "results":
  [{"test": "gemm", "status": "Passed"}]}' "$4" "$2" $now $now >$folder/.new
mv $folder/.new $folder/$4.json
"""
ENDLESS = "#!/bin/sh\ntrap '' TERM INT HUP CONT\nwhile :; do sleep 1; done\n"
FROM_NODES = ("LD_", "PYTHON", "HPCTL_", "BASH_ENV", "ENV=", "HOME=/home", "VIRTUAL_ENV")
"""How variables begin that choose what a test runs, or that hold secrets of the daemon."""


@pytest.fixture(scope="module")
def siege() -> Iterator[Siege]:
    scripts = {"test": TEST, "endless": ENDLESS}
    with cluster({}, scripts, nodes=2) as live:
        yield Siege(live)


def begin_test(siege: Siege, node: str, script: str, **policy: object) -> Path:
    """Order a node's test by one of the scripts; return the directory of the scripts."""
    base = Path(siege.sandbox.state_dir).parent
    siege.live.reconfigure(acceptance={"command": str(base / script), **policy})
    siege.live.mark(node)
    siege.live.hpctl("acceptance", "nodes", node)
    return base


def find_reservations(siege: Siege) -> list[str]:
    found = siege.live.scheduler.reservations()
    return [name for name in found if name.startswith(PREFIX)]


def wait_for_end(siege: Siege, node: str, timeout_s: float) -> NodeRecovery:
    until(lambda: bool(siege.live.of(node)), 30, "the recovery opens")
    until(lambda: siege.live.last(node).ended, timeout_s, "the recovery ends")
    assert find_reservations(siege) == []
    return siege.live.last(node)


def test_a_user_neither_joins_nor_ends_nor_forges_a_test(siege: Siege) -> None:
    node = siege.sandbox.nodes[0]
    base = begin_test(siege, node, "test")
    until((base / "env").exists, 120, "the test runs")
    (name,) = find_reservations(siege)
    jobs = siege.live.scheduler.view().jobs
    (number,) = (number for number, job in jobs.items() if job.name == name)
    folder = base / "s/nodes" / node / "agent/acceptance"
    attacks = [
        ["sbatch", f"--reservation={name}", "--chdir=/tmp", "--output=/dev/null", "--wrap=true"],
        ["srun", f"--jobid={number}", "--overlap", "--immediate=5", "--chdir=/tmp", "true"],
        ["scancel", str(number)],
        ["scontrol", "update", f"reservationname={name}", "users=games"],
        ["scontrol", "delete", f"reservationname={name}"],
        ["scontrol", "update", f"jobid={number}", "timelimit=1-00"],
        ["sh", "-c", f"echo '{{}}' >{folder}/forged.json"],
        ["ls", str(folder)],
    ]
    succeeded = [command for command in attacks if siege.as_stranger(command).returncode == 0]
    assert succeeded == []
    script = siege.as_stranger(["scontrol", "write", "batch_script", str(number), "-"])
    assert b"scontrol update jobid" not in script.stdout
    same_name = siege.sbatch(f"--job-name={name}", f"--nodelist={node}")
    environment = (base / "env").read_text().splitlines()
    assert [line for line in environment if line.startswith(FROM_NODES)] == []
    assert (base / "cwd").read_text() == "/\n"
    assert siege.job(number).running
    (base / "go").touch()
    recovery = wait_for_end(siege, node, 120)
    assert recovery.phase == "returned", recovery.trail
    assert [(f.check, f.verdict) for f in recovery.tests][:1] == [("acceptance.gemm", "ok")]
    assert not siege.job(same_name).state.startswith("CANCEL")
    siege.sandbox.run(["scancel", str(same_name)])


@pytest.mark.nightly
def test_a_test_that_never_ends_holds_its_node_no_longer_than_its_time_limit(siege: Siege) -> None:
    node = siege.sandbox.nodes[1]
    begin_test(siege, node, "endless", quick_s=30)
    recovery = wait_for_end(siege, node, 400)
    assert recovery.phase == "escalated", recovery.trail
    assert "test_failed" in [move.signal for move in recovery.trail]
    assert siege.node(node).drained
    assert [j for j in siege.live.scheduler.view().jobs.values() if j.running] == []
