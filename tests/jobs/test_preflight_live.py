"""A job's nodes are tested before its first step, and what fails is swapped out: a real Slurm."""

import json
import sys
from pathlib import Path

import pytest

from tests.live import EAGER, FAST, Live, until
from tests.sandbox.test_training import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


def submit(sandbox, shared: Path, bad: str, program: str, *options: str) -> int:
    """A job whose tests fail on one node."""
    fails = f'test "$SLURMD_NODENAME" != {bad} || {{ echo "the disk is slow" >&2; exit 1; }}'
    rows = [
        {"name": "site.disk", "command": ["sh", "-c", fails], "remedy": "reboot"},
        {"name": "cpu.speed", "command": ["true"]},
    ]
    (shared / "tests.d").mkdir()
    common = {"what": "a test", "levels": ["quick"], "timeout_s": 10}
    (shared / "tests.d/a.yaml").write_text(json.dumps({"tests": [r | common for r in rows]}))
    script = shared / "job.sh"
    script.write_text(
        f"#!/bin/sh\n#SBATCH --gres=gpu:8\nexport PYTHONPATH={ROOT} HOME={shared}\n{program}\n"
    )
    given = [sys.executable, "-m", "hpctl", "sbatch", "--preflight", "quick", "--parsable"]
    done = sandbox.run(
        [*given, "-o", f"{shared}/log", "--chdir", str(shared), *options, str(script)],
        env={"PYTHONPATH": ROOT, "HPCTL_TESTS_D": str(shared / "tests.d")},
        cwd=shared,
    )
    return int(done.stdout)


def test_a_spare_takes_the_place_of_a_node_that_fails(slurm, shared):
    names = sorted(str(n["node"]) for n in slurm.status()["nodes"])
    program = f"exec {sys.executable} -m hpctl run -- sh -c 'echo ran on $SLURMD_NODENAME'"
    options = ("--nodes=3", "--spares=1", "--ntasks-per-node=1")
    submit(slurm, shared, names[1], program, *options)
    log = shared / "log"
    until(lambda: log.exists() and log.read_text().count("ran on") == 3, 60, "three ranks ran")
    text = log.read_text()
    assert f"preflight: {names[1]} (site.disk: exit code 1: the disk is slow): spares" in text
    assert sorted(line.split()[-1] for line in text.splitlines() if "ran on" in line) == [
        names[0], *names[2:],
    ]  # fmt: skip


def test_without_spares_the_daemon_requeues_the_job_on_other_nodes(sandbox_factory, shared):
    settings = {"config": FAST, "boot_time": 0.5, "slurm_conf": EAGER}
    live = Live(sandbox_factory(nodes=3, mode="own", daemon=True, **settings))
    names = sorted(str(n["node"]) for n in live.sandbox.status()["nodes"])
    job = submit(live.sandbox, shared, names[0], "echo ran; exec sleep 600", "--nodes=2")
    until(lambda: live.running(job, restarts=1), 60, "the job runs again")
    until(lambda: "ran\n" in (shared / "log").read_text(), 30, (shared / "log").read_text())
    text = (shared / "log").read_text()
    assert "the daemon was asked for a requeue without them" in text
    assert "preflight: 2 node(s) passed" in text
    assert text.count("ran\n") == 1, "nothing of the script ran on the bad node"
    assert names[0] not in map(str, live.job(job).nodes)
    assert not live.node_recoveries(), "a user's word drains no node"
