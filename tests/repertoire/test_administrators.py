"""Administrators at work during a recovery: hpctl follows what they do, and undoes nothing."""

import pytest

from hpctl.vocabulary.reason import reason_owner
from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER = "#!/bin/sh\n#SBATCH --requeue --exclusive\n"


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=6, slurm_conf="RebootProgram=/bin/true\n") as live:
        yield live


def running_job(live: Chaos) -> tuple[int, str]:
    job = live.start("sleep 600", header=HEADER)
    (node,) = live.job(job).nodes
    return job, node


def admin(live: Chaos, node: str, *settings: str) -> None:
    """`scontrol update` of a node, as an administrator."""
    live.sandbox.run(["scontrol", "update", f"NodeName={node}", *settings])


def reconfigure(live: Chaos) -> None:
    """`scontrol reconfigure`. slurmctld 24.11.5 may end in it while it requeues a job; it is then
    started again, as systemd does."""
    if live.sandbox.run(["scontrol", "reconfigure"], check=False).returncode == 0:
        return
    if "UP" not in live.sandbox.run(["scontrol", "ping"], check=False).stdout:
        live.sandbox.start_service("slurmctld")
    until(lambda: bool(live.scheduler.view().nodes), 60, "slurmctld is back")


def end(live: Chaos, *jobs: int) -> None:
    live.sandbox.run(["scancel", *map(str, jobs)])


@story(
    job="Batch job whose node has a fault",
    act="slurmctld is killed and started again in mid-recovery",
    slurm="The job runs again elsewhere; the node is replaced and returns.",
    explain="One recovery of the node and one of the job, both complete.",
    owner="The job runs again by itself.",
)
def test_a_restart_of_slurmctld_in_mid_recovery(live: Chaos):
    job, victim = running_job(live)
    live.sandbox.inject_api("stuck-replace")
    live.xid(victim)
    until(lambda: live.job(job).restarts == 1, 60, "it is requeued")
    live.sandbox.signal_service("slurmctld", "SIGKILL")
    live.sandbox.start_service("slurmctld")
    live.sandbox.inject_api("clear")
    # slurmctld may have died before it saved that the job ran: it then counts no restart.
    until(lambda: live.of_job(job)[0].phase == "resumed", 60, "it runs again")
    assert live.running(job)
    assert victim not in live.job(job).nodes
    live.returned(victim)
    assert len(live.of_job(job)) == 1
    assert len(live.of(victim)) == 1
    end(live, job)


@story(
    job="Batch job whose node has a fault",
    act="`scontrol reconfigure` in mid-recovery",
    slurm="The job runs again elsewhere; the node is replaced and returns.",
    owner="The job runs again by itself.",
)
def test_a_reconfigure_in_mid_recovery(live: Chaos):
    job, victim = running_job(live)
    live.xid(victim)
    until(lambda: bool(live.of(victim)), 60, "a recovery opens")
    for _ in range(3):
        reconfigure(live)
    until(lambda: live.running(job, 1), 60, "it runs again")
    live.returned(victim)
    end(live, job)


@story(
    job="Node that hpctl drained for a fault",
    act="an administrator changes its Reason before it is remedied",
    slurm="The node stays drained with the administrator's Reason, and is not replaced.",
    explain="An operator took over the node.",
    owner="The administrator resumes the node; the job runs again elsewhere.",
)
def test_a_changed_reason_takes_the_node_over(live: Chaos):
    job, victim = running_job(live)
    live.sandbox.inject_api("throttle")
    live.xid(victim)
    until(lambda: live.job(job).restarts == 1, 60, "its job is requeued")
    instance = live.instance(victim)
    admin(live, victim, "State=DRAIN", "Reason=rack moves on Monday")
    until(lambda: live.last(victim).ended, 60, "hpctl lets go")
    live.sandbox.inject_api("clear")
    assert live.last(victim).phase == "cancelled"
    until(lambda: live.running(job, 1), 60, "the job runs elsewhere")
    stays(lambda: "rack moves" in live.node(victim).reason, 3, "the Reason stays")
    assert live.accepted(instance) == 0
    end(live, job)


@story(
    job="Node that is replaced",
    act="an administrator drains it with a Reason of their own meanwhile",
    slurm="The new instance stays drained with the administrator's Reason.",
    explain="An operator took over the node.",
    owner="The administrator resumes the node.",
)
def test_a_drain_during_the_replacement_stays(live: Chaos):
    (victim,) = live.victims(1)
    live.sandbox.inject_api("stuck-replace")
    live.xid(victim)
    until(lambda: live.phase(victim) == "remedying", 60, "it is being replaced")
    admin(live, victim, "State=DRAIN", "Reason=keep it out")
    live.sandbox.inject_api("clear")
    until(lambda: live.last(victim).ended, 60, "hpctl lets go")
    stays(lambda: live.node(victim).drained, 3, "it stays drained")
    assert "keep it out" in live.node(victim).reason
    until(lambda: live.node(victim).responding, 60, "the new instance registers")
    admin(live, victim, "State=RESUME")


@story(
    job="Node with a batch job",
    act="an administrator's `scontrol reboot ASAP nextstate=resume`",
    slurm="The node is drained by Slurm, reboots once the job has ended, and resumes.",
    explain="hpctl treats nothing.",
    owner="The job ends as it would.",
)
def test_a_reboot_of_an_administrator_is_left_alone(live: Chaos):
    job, node = running_job(live)
    live.mark(node)
    ask = ["scontrol", "reboot", "ASAP", "nextstate=resume", "reason=kernel", node]
    live.sandbox.run(ask)
    until(lambda: live.node(node).drained, 60, "Slurm drains it")
    stays(lambda: live.running(job), 3, "the job goes on")
    assert live.of(node) == []
    assert reason_owner(live.node(node).reason) is None
    live.sandbox.run(["scontrol", "cancel_reboot", node])
    until(lambda: not live.node(node).drained, 60, "Slurm opens it")
    end(live, job)
