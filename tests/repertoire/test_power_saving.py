"""Power saving: a node that Slurm has stopped is not faulty, and only Slurm starts it."""

import re

import pytest

from tests.daemon.chaos import Chaos
from tests.live import until
from tests.repertoire.power import (
    all_up,
    idle_programs,
    is_down,
    order_power_down,
    power_calls,
    power_cluster,
    power_down,
    power_settings,
    power_up,
)
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER = "#!/bin/sh\n#SBATCH --requeue --exclusive\n"


@pytest.fixture(scope="module")
def live():
    with power_cluster(nodes=4) as live:
        yield live


def end(live: Chaos, *jobs: int) -> None:
    live.sandbox.run(["scancel", *map(str, jobs)])
    until(lambda: all_up(live), 60, "every node is in service again")


def no_longer_heard(live: Chaos, node: str) -> None:
    """Wait until the daemon misses the agent of the node."""
    until(lambda: "agent-silent" in live.explained(node), 60, "its agent is silent")


@story(
    job="Node that Slurm's power saving has stopped",
    act="its agent is silent for longer than `ages.silent_s`",
    slurm="The node stays POWERED_DOWN: hpctl neither drains nor starts it.",
    explain="Slurm has powered it down; `hpctl status` counts it as `IDLE+POWERED_DOWN`.",
)
def test_a_node_that_is_powered_down_is_left_alone(live: Chaos):
    (node,) = live.victims(1)
    live.mark(node)
    power_down(live, node)
    no_longer_heard(live, node)
    assert "Slurm has powered the node down, and hpctl leaves it alone" in live.explained(node)
    status = live.hpctl("status")
    assert re.search(r"1 IDLE\+POWER(ED|ING)_DOWN", status)
    assert "Nothing is in treatment" in status
    assert " silent" not in status
    assert live.of(node) == []
    assert is_down(live, node)
    assert power_calls(live, "boot-node", node) == 0
    power_up(live)


@story(
    job="Batch job, every other node of whose cluster is powered down",
    act="its node has a fault",
    slurm="The job is requeued, Slurm starts a node for it, and it runs there; the faulty node is "
    "replaced and returns.",
    explain="One recovery of the job, which ends once its new node is up.",
    owner="The job runs again by itself, as soon as a node has booted.",
)
def test_a_job_moves_to_a_node_that_slurm_starts_for_it(live: Chaos):
    job = live.start("sleep 600", header=HEADER)
    (victim,) = live.job(job).nodes
    others = [node for node in live.sandbox.nodes if node != victim]
    power_down(live, *others)
    before = sum(power_calls(live, "boot-node", node) for node in others)
    # Slurm 24.11 schedules some seconds after a reconfigure: the victim must not be back by then.
    live.sandbox.inject_api("stuck-replace")
    live.xid(victim)
    until(lambda: live.running(job, 1), 60, "it runs again")
    (node,) = live.job(job).nodes
    assert node in others
    until(lambda: live.of_job(job)[-1].ended, 60, "its recovery ends")
    assert live.of_job(job)[-1].phase == "resumed"
    assert not live.job(job).configuring
    live.sandbox.inject_api("clear")
    live.returned(victim, 60)
    assert sum(power_calls(live, "boot-node", other) for other in others) == before + 1
    live.sandbox.run(["scancel", str(job)])
    power_up(live)


@story(
    job="Node that Slurm's power saving starts for a batch job",
    act="it has a fault before it has registered",
    slurm="It is not drained, which would requeue the job that waits for it. What its agent finds "
    "once it is up is treated: the job moves to another node and the node is replaced.",
    explain="The gate `power_saving` blocks the recovery until the node is up.",
    owner="The job runs again by itself.",
)
def test_a_fault_of_a_node_that_powers_up_is_treated_once_it_is_up(live: Chaos):
    (node,) = live.victims(1)
    with idle_programs(live):
        live.sandbox.inject(node, "kill-slurmd")
        order_power_down(live, node)
        job = live.submit("sleep 600", f"--nodelist={node}", header=HEADER)
        until(lambda: live.node(node).is_powering_up, 60, "Slurm starts it")
        live.xid(node)
        powers_up = "Slurm powers the node up; it is treated once it is up"
        until(lambda: powers_up in live.explained(node), 60, "the gate blocks it")
        assert not live.node(node).drained
        assert live.job(job).restarts == 0
    # A fault that outlasts the boot is found again.
    live.sandbox.inject(node, "boot-node")
    until(lambda: not live.node(node).is_powering_up, 60, "it registers")
    # Not marked anew: the daemon may have opened the recovery in the moment of the registration.
    live.sandbox.inject(node, "xid", code=79)
    until(lambda: live.job(job).state == "PENDING", 60, "it is requeued")
    live.sandbox.scontrol("update", f"JobId={job}", "ReqNodeList=")
    until(lambda: live.running(job, 1), 60, "it runs elsewhere")
    assert node not in live.job(job).nodes
    live.returned(node, 60)
    end(live, job)


@story(
    job="Node that hpctl replaces",
    act="Slurm powers it down in mid-recovery, as it does with a drained node too",
    slurm="The new instance registers, which ends the power-down, and the node returns.",
    explain="One recovery, which ends as `returned`.",
)
def test_a_node_that_is_powered_down_in_mid_recovery_returns(live: Chaos):
    (node,) = live.victims(1)
    live.sandbox.inject_api("stuck-replace")
    live.xid(node)
    until(lambda: live.phase(node) == "remedying", 60, "it is being replaced")
    power_down(live, node)
    live.sandbox.inject_api("clear")
    live.returned(node, 60)
    assert len(live.of(node)) == 1
    until(lambda: all_up(live), 60, "every node is in service again")


@story(
    job="Node that hpctl has replaced and watches",
    act="Slurm powers it down before it is given back",
    slurm="Its drain is lifted and it stays POWERED_DOWN: Slurm starts it for a job.",
    explain="One recovery, which ends as `returned`.",
)
def test_a_node_that_is_powered_down_while_it_is_verified_is_given_back(live: Chaos):
    (node,) = live.victims(1)
    live.reconfigure(node={"verify_healthy_s": 600.0})
    live.xid(node)
    until(lambda: live.phase(node) == "verifying", 60, "it is verified")
    power_down(live, node)
    live.returned(node, 60)
    assert live.node(node).in_service
    assert live.node(node).is_powered_down
    live.reconfigure(node={"verify_healthy_s": 0.5})
    power_up(live)


@story(
    job="Node that Slurm's power saving starts for a batch job",
    act="it does not register within ResumeTimeout",
    slurm="Slurm sets it DOWN; hpctl leaves it so, and Slurm requeues the job.",
    explain="Slurm powered the node up, and it did not register within ResumeTimeout; a person is "
    "asked to find out why.",
)
def test_a_node_that_does_not_start_is_shown(live: Chaos):
    (node,) = live.victims(1)
    live.mark(node)
    power_down(live, node)
    with power_settings(live, ResumeTimeout=2), idle_programs(live):
        job = live.submit("sleep 600", f"--nodelist={node}", header=HEADER)
        until(lambda: live.node(node).down, 60, "Slurm gives it up")
        shown = f"{node}: Slurm powered the node up, and it did not register within ResumeTimeout"

        def status() -> str:
            """What `hpctl status` prints, on one line."""
            return " ".join(live.hpctl("status", check=False).split())

        until(lambda: shown in status(), 60, "status shows it")
        assert "a person: find out why it did not boot" in live.explained(node)
        assert live.of(node) == []
    live.sandbox.run(["scancel", str(job)])
    live.sandbox.scontrol("update", f"NodeName={node}", "State=RESUME")
    power_up(live)
