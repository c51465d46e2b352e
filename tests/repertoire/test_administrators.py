"""Administrators at work during a recovery: hpctl follows what they do, and undoes nothing."""

import pytest

from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER = "#!/bin/sh\n#SBATCH --requeue --exclusive\n"


# Slurm runs it on the node. The test then ends and boots the node, as the machine would.
REBOOT = """#!/bin/sh
touch {base}/rebooting
"""


@pytest.fixture(scope="module")
def live():
    files = {"reboot": REBOOT}
    with cluster(nodes=6, files=files, slurm_conf="RebootProgram={base}/reboot\n") as live:
        yield live


def running_job(live: Chaos) -> tuple[int, str]:
    job = live.start("sleep 600", header=HEADER)
    (node,) = live.job(job).nodes
    return job, node


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
    job="Node with a batch job",
    act="an administrator's `scontrol reboot ASAP nextstate=resume`",
    slurm="The node is drained by Slurm, reboots once the job has ended, and resumes.",
    explain="hpctl treats nothing.",
    owner="The job ends as it would.",
)
def test_a_reboot_of_an_administrator_is_left_alone(live: Chaos):
    job, node = running_job(live)
    live.mark(node)
    booted = live.node(node).boot_time
    ask = ["scontrol", "reboot", "ASAP", "nextstate=resume", "reason=kernel", node]
    live.sandbox.run(ask)
    until(lambda: live.node(node).drained, 60, "Slurm drains it")
    stays(lambda: live.running(job), 3, "the job goes on")
    assert live.of(node) == []
    assert parse_recovery_id_from_reason(live.node(node).reason) is None
    end(live, job)
    rebooting = live.sandbox.state_dir.parent / "rebooting"
    until(rebooting.exists, 90, "Slurm runs RebootProgram")
    live.sandbox.inject(node, "kill-node")
    stays(lambda: not live.of(node), 5, "a node that is down for a reboot is left alone")
    live.sandbox.inject(node, "boot-node")
    until(lambda: live.node(node).in_service, 120, "it resumes")
    assert live.node(node).boot_time != booted
    assert live.of(node) == []
