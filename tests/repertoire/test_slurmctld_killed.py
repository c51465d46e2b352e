"""A killed slurmctld: every recovery goes on where it was, whatever slurmctld had not saved."""

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import pytest

from hpctl.engine.world_reader import read_world_once
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.assessment import NodeCondition
from hpctl.vocabulary.job_recovery import JobRecoveryPhase
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.accounting import restart_slurmctld
from tests.repertoire.phases import (
    AFTER_JOBS,
    CONFIG,
    HEALTHY_LATE,
    PASSING,
    PROVED_LATE,
    REBOOT,
    REBOOT_LATE,
    REBOOTED_HEALTHY_LATE,
    REBOOTING,
    REMEDY_LATE,
    REPLACE_STUCK,
    await_phase,
)
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER = "#!/bin/sh\n#SBATCH --requeue\n#SBATCH --exclusive\n"
NODES: Final = 4


@pytest.fixture(scope="module")
def live() -> Iterator[Chaos]:
    with cluster(CONFIG, nodes=NODES) as live:
        yield live


NODE_PHASES: Final = {
    NodeRecoveryPhase.OPEN: PASSING,
    NodeRecoveryPhase.VACATED: REMEDY_LATE,
    NodeRecoveryPhase.REMEDYING: REPLACE_STUCK,
    NodeRecoveryPhase.REJOINING: HEALTHY_LATE,
    NodeRecoveryPhase.VERIFYING: HEALTHY_LATE,
}
REBOOT_PHASES: Final = {
    NodeRecoveryPhase.VACATED: REBOOT_LATE,
    NodeRecoveryPhase.REMEDYING: REBOOTING,
    NodeRecoveryPhase.VERIFYING: REBOOTED_HEALTHY_LATE,
}
JOB_PHASES: Final = {
    JobRecoveryPhase.HIT: PASSING,
    JobRecoveryPhase.STOPPING: PASSING,
    JobRecoveryPhase.RELEASED: PASSING,
    JobRecoveryPhase.STARTING: REPLACE_STUCK,
    JobRecoveryPhase.PROVING: PROVED_LATE,
}


def start_saved(live: Chaos, *options: str, body: str = "sleep 600") -> int:
    """Start a job; return once slurmctld has saved that it runs.

    It saves what has changed some seconds later, and a killed one comes back with what it saved.
    """
    job = live.start(body, *options, header=HEADER)
    saved = Path(live.sandbox.state_dir) / "ctld" / "job_state"
    asked = time.time()
    live.sandbox.run(["scontrol", "update", f"jobid={job}", "comment=saved"])
    until(lambda: saved.stat().st_mtime > asked, 60, "slurmctld saves its jobs")
    return job


def crash(live: Chaos) -> None:
    """Kill slurmctld, and start it again once it is gone."""
    restart_slurmctld(live, "SIGKILL")


def faulty(live: Chaos, node: str) -> bool:
    """Whether the daemon has heard of a fault of a node."""
    world = read_world_once(live.config, datetime.now(UTC))
    return not world.computed and world.assessments[node].condition is NodeCondition.FAULTY


def job_phase(live: Chaos, job: int) -> str:
    found = live.of_job(job)
    return found[-1].phase if found else ""


def resumes_once(live: Chaos, job: int, victim: str) -> None:
    """Wait until a job runs again; one recovery of it was enough, and nothing of it is left."""
    until(lambda: job_phase(live, job) == JobRecoveryPhase.RESUMED, 60, "its recovery ends")
    assert len(live.of_job(job)) == 1
    assert live.running(job)
    assert live.job(job).excluded in ((), (victim,))
    assert str(job) not in live.state().holds


def is_replaced_once(live: Chaos, node: str, instance: str) -> None:
    """Wait until a node serves again, as another instance that one order has brought."""
    live.returned(node)
    # A slurmctld that was killed before it had saved the RESUME comes back with the drain, which
    # hpctl lifts by a recovery of its own.
    lifted = [recovery.rule == "drain-restored" for recovery in live.of(node)]
    assert lifted in ([False], [False, True])
    assert live.accepted(instance) == 1
    assert live.instance(node) != instance
    until(lambda: live.node(node).in_service, 60, "it serves again")


@pytest.mark.parametrize("phase", NODE_PHASES)
@story(
    job="Batch job whose node has a fault",
    act="slurmctld is killed and started again in each phase of the node's recovery",
    slurm="The node is replaced, by one order, and returns; the job runs again elsewhere.",
    explain="One recovery of the node and one of the job, both complete.",
    owner="The job runs again by itself.",
)
def test_a_node_s_recovery_continues(live: Chaos, phase: NodeRecoveryPhase) -> None:
    job = start_saved(live)
    (victim,) = live.job(job).nodes
    instance = live.instance(victim)
    NODE_PHASES[phase].begin(live)
    live.xid(victim)
    await_phase(lambda: live.phase(victim), phase, NodeRecoveryPhase)
    crash(live)
    NODE_PHASES[phase].end(live)
    is_replaced_once(live, victim, instance)
    resumes_once(live, job, victim)
    live.sandbox.run(["scancel", str(job)])


@pytest.mark.parametrize("phase", REBOOT_PHASES)
@story(
    job="Batch job whose node has a fault that a reboot treats",
    act="slurmctld is killed and started again before, during and after the reboot",
    slurm="The instance is rebooted, by one order, and the node returns; the job runs again"
    " elsewhere.",
    explain="One recovery of the node and one of the job, both complete.",
    owner="The job runs again by itself.",
)
def test_a_reboot_continues(live: Chaos, phase: NodeRecoveryPhase) -> None:
    job = start_saved(live)
    (victim,) = live.job(job).nodes
    instance = live.instance(victim)
    ordered = live.accepted(instance, REBOOT)
    REBOOT_PHASES[phase].begin(live)
    live.xid(victim)
    await_phase(lambda: live.phase(victim), phase, NodeRecoveryPhase)
    crash(live)
    REBOOT_PHASES[phase].end(live)
    live.returned(victim)
    assert len(live.of(victim)) == 1
    assert live.accepted(instance, REBOOT) == ordered + 1
    assert live.instance(victim) == instance
    resumes_once(live, job, victim)
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Node with a fault that lets its jobs end, and such a job",
    act="slurmctld is killed and started again while hpctl waits for the job",
    slurm="The node stays drained, the job runs to its end, and only then the node is replaced.",
    explain="One recovery of the node, none of the job.",
    owner="Nothing happens to the job.",
)
def test_jobs_are_still_waited_for(live: Chaos) -> None:
    over = Path(live.sandbox.state_dir) / "over"
    job = start_saved(live, body=f"until [ -e {over} ]; do sleep 0.1; done")
    (victim,) = live.job(job).nodes
    instance = live.instance(victim)
    live.xid(victim, code=AFTER_JOBS)
    until(lambda: live.phase(victim) == NodeRecoveryPhase.CORDONED, 60, "the job is waited for")
    crash(live)
    until(lambda: live.node(victim).drained, 60, "slurmctld is back, and the node is drained")
    stays(lambda: live.node(victim).drained and live.running(job), 3, "the job runs on")
    assert live.accepted(instance) == 0
    assert live.job(job).restarts == 0
    over.touch()
    until(lambda: live.job(job).state == "COMPLETED", 60, "the job ends by itself")
    is_replaced_once(live, victim, instance)
    assert live.of_job(job) == []


@story(
    job="Batch job whose node has a fault",
    act="slurmctld is down as the fault comes, and started later",
    slurm="The node is drained and the job leaves it as soon as slurmctld is back.",
    explain="One recovery of the node and one of the job, both complete.",
    owner="The job runs again by itself.",
)
def test_a_fault_while_slurmctld_is_down(live: Chaos) -> None:
    job = start_saved(live)
    (victim,) = live.job(job).nodes
    instance = live.instance(victim)
    live.sandbox.signal_service("slurmctld", "SIGKILL")
    live.xid(victim)
    until(lambda: faulty(live, victim), 60, "the daemon knows the fault")
    live.sandbox.start_service("slurmctld")
    is_replaced_once(live, victim, instance)
    resumes_once(live, job, victim)
    live.sandbox.run(["scancel", str(job)])


@pytest.mark.parametrize("phase", JOB_PHASES)
@story(
    job="Batch job that needs every node, one of which has a fault",
    act="slurmctld is killed and started again in each phase of the job's recovery",
    slurm="The job runs again on all nodes once the node is replaced; it is not held.",
    explain="One recovery of the job, complete.",
    owner="The job runs again by itself.",
)
def test_a_job_s_recovery_continues(live: Chaos, phase: JobRecoveryPhase) -> None:
    job = start_saved(live, f"--nodes={NODES}")
    victim = live.job(job).nodes[0]
    instance = live.instance(victim)
    JOB_PHASES[phase].begin(live)
    live.xid(victim)
    await_phase(lambda: job_phase(live, job), phase, JobRecoveryPhase)
    crash(live)
    JOB_PHASES[phase].end(live)
    is_replaced_once(live, victim, instance)
    resumes_once(live, job, victim)
    live.sandbox.run(["scancel", str(job)])
