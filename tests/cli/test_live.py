"""The commands as an operator runs them: on a real Slurm, with the daemon at work behind them."""

import json
import os
import sys
import time

import pytest

from tests.process import run_text
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]

QUICK = {
    "node": {"verify_healthy_s": 0.5, "remedy_after_s": 0.0, "step_retry_s": 1.0},
    "cluster": {"busy_poll_s": 0.3, "poll_s": 1.0},
    "loop": {"reconcile_s": 2.0},
}


def hpctl(sandbox, *args):
    env = {**os.environ, **sandbox.env, "HPCTL_CONFIG": str(sandbox.config_path)}
    command = [sys.executable, "-m", "hpctl", *args]
    return run_text(command, env=env)


def shown(sandbox, *args):
    done = hpctl(sandbox, *args, "--json")
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def test_an_operator_looks_asks_for_a_replacement_and_reads_the_story(sandbox_factory):
    sandbox = sandbox_factory(nodes=2, daemon=True, mode="own", config=QUICK)
    doctor = shown(sandbox, "doctor")
    bad = [c for c in doctor["checks"] if c["verdict"] in ("fail", "unknown")]
    assert bad == []

    before = {n["name"]: n for n in shown(sandbox, "nodes")["nodes"]}
    assert {n["slurm_state"] for n in before.values()} == {"IDLE"}
    assert {n["instance_status"] for n in before.values()} == {"Running"}
    name = sandbox.nodes[1]

    held = hpctl(sandbox, "undrain", name)
    assert (held.returncode, "not drained by hpctl" in held.stdout) == (1, True)

    followed = hpctl(sandbox, "replace", name, "--yes", "--follow", "--json")
    assert followed.returncode == 0, followed.stderr
    (asked,), (recovery,) = map(json.loads(followed.stdout).get, ("requests", "recoveries"))
    assert (asked["answered"], asked["ok"]) == (True, True), asked
    assert (recovery["node"], recovery["phase"]) == (name, "returned")
    told = followed.stderr.splitlines()
    assert any(f"{name}: Replacing instance" in line for line in told), told
    assert f"{name}: Resumed {name}" in told[-1], told
    assert "Back in service" in wait_for_end(sandbox, name)["headline"]
    after = {n["name"]: n for n in shown(sandbox, "nodes")["nodes"]}
    assert after[name]["instance_id"] != before[name]["instance_id"]
    assert after[name]["slurm_state"] == "IDLE"

    answer = hpctl(sandbox, "explain", name)
    assert f"Replacing instance {before[name]['instance_id']}" in answer.stdout
    # slurmctld may call a node that has just come back silent for a moment.
    until(lambda: hpctl(sandbox, "status").returncode == 0, 20)

    sandbox.kill_daemon()
    queued = hpctl(sandbox, "pause")
    assert (queued.returncode, "queued as request" in queued.stdout) == (3, True)


def wait_for_end(sandbox, name):
    deadline = time.monotonic() + 90
    while True:
        story = shown(sandbox, "explain", name)
        if story["next"]["until"] is None:
            return story
        assert time.monotonic() < deadline, story
        time.sleep(0.5)
