"""Replacing nodes by hand on a real Slurm: under a running job, beside the daemon, interrupted."""

import json
import os
import signal
import subprocess
import sys

import pytest

from hpctl.sandbox.api import Sandbox
from hpctl.vocabulary.assessment import Remedy
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from tests.live import EAGER, FAST, Live
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]

QUICK = ("--yes", "--every", "0.2s")


@pytest.fixture(scope="module")
def live():
    with Sandbox(
        "by-hand", nodes=2, daemon=True, mode="own", config=FAST, slurm_conf=EAGER
    ) as sandbox:
        yield Live(sandbox)


def start(live: Live, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, **live.sandbox.env, "HPCTL_CONFIG": str(live.sandbox.config_path)}
    command = [sys.executable, "-m", "hpctl", "cluster", *arguments]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def hpctl(live: Live, *arguments: str, code: int = 0) -> tuple[str, str]:
    program = start(live, *arguments)
    out, err = program.communicate(timeout=120)
    assert program.returncode == code, out + err
    return out, err


def row(live, name):
    shown = json.loads(hpctl(live, "nodes", name, "--json")[0])
    (one,) = shown["nodes"]
    return dict(one)


def test_a_replacement_waits_for_the_job_and_the_daemon_stays_out_of_it(live: Live) -> None:
    name = live.sandbox.nodes[0]
    before = row(live, name)
    job = live.submit("sleep 300", "-w", name)
    until(lambda: live.job(job).state == "RUNNING", 60)
    asked = start(live, "replace", before["ip"], "--direct", "--json", *QUICK)
    until(lambda: live.node(name).reason.startswith("operator:replace:"), 60)
    assert live.job(job).state == "RUNNING"
    assert row(live, name)["instance_id"] == before["instance_id"]
    live.sandbox.run(["scancel", str(job)])
    out, err = asked.communicate(timeout=120)
    assert asked.returncode == 0, err
    (one,) = json.loads(out)["nodes"]
    assert one["phase"] == "done", one
    assert "waits for its jobs" in err
    after = row(live, name)
    assert after["instance_id"] == one["new_instance_id"] != before["instance_id"]
    assert after["logical_id"] == before["logical_id"]
    until(lambda: row(live, name)["slurm_flags"] == [], 30)
    assert not [r for r in live.state().nodes.values() if r.node == name]


def test_interrupted_order_continues_and_the_same_command_resumes_it(live: Live) -> None:
    name = live.sandbox.nodes[1]
    before = row(live, name)
    live.sandbox.inject_api("stuck-replace")
    asked = start(live, "replace", name, "--direct", *QUICK)
    until(lambda: row(live, name)["status"] != "Running", 60)
    asked.send_signal(signal.SIGINT)
    out, err = asked.communicate(timeout=120)
    assert asked.returncode == 130, out + err
    assert f"hpctl cluster replace {name}" in out
    assert live.node(name).drained
    live.sandbox.inject_api("clear")
    out, err = hpctl(live, "replace", name, *QUICK)
    assert "an earlier order is still under way" in err
    assert row(live, name)["instance_id"] != before["instance_id"]
    # Slurm shows a node that was resumed from DOWN as not responding until it has pinged it.
    until(lambda: row(live, name)["slurm_flags"] == [], 30)


def test_an_idle_node_is_handed_to_the_daemon_and_followed(live: Live) -> None:
    name = live.sandbox.nodes[1]
    out, err = hpctl(live, "reboot", name, "--yes")
    assert "hpctl's daemon does it" in err
    assert "done: back in service" in " ".join(out.split())
    (recovery,) = [r for r in live.state().nodes.values() if r.node == name]
    assert (recovery.phase, recovery.remedy) == (NodeRecoveryPhase.RETURNED, Remedy.REBOOT)
    assert not live.node(name).drained


def test_a_deletion_at_once_ends_the_job_only_when_the_service_has_accepted(live: Live) -> None:
    name = live.sandbox.nodes[1]
    job = live.submit("sleep 300", "-w", name)
    until(lambda: live.job(job).state == "RUNNING", 60)
    live.sandbox.inject_api("access-denied", operations="BatchDeleteClusterNodes")
    out, _ = hpctl(live, "delete-nodes", name, "--now", *QUICK, code=1)
    assert "AccessDeniedException" in " ".join(out.split())
    assert live.job(job).state == "RUNNING"
    assert not live.node(name).drained
    live.sandbox.inject_api("clear")
    out, _ = hpctl(live, "delete-nodes", name, "--now", *QUICK)
    assert "done: deleted" in " ".join(out.split())
    assert live.job(job).state != "RUNNING"
    live.sandbox.run(["scancel", str(job)])
