"""Heterogeneous jobs whose components end: at a time limit, and with a lost node."""

from pathlib import Path

import pytest

from hpctl.vocabulary.trouble import TroubleKind
from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
BACKFILL = "SchedulerParameters=batch_sched_delay=0,bf_interval=1\n"
"""slurmctld's backfill pass alone starts heterogeneous jobs, by default every 30 s."""
LIMIT_S = 150
"""A minute, slurmctld's look, and KillWait."""


def header(*minutes: int) -> str:
    """Return a script's header with a component of each time limit."""
    each = [f"#SBATCH --requeue --exclusive --time={limit}\n" for limit in minutes]
    return "#!/bin/sh\n" + "#SBATCH hetjob\n".join(each)


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=12, slurm_conf=BACKFILL) as live:
        yield live


@pytest.fixture(scope="module")
def jobs(live: Chaos) -> dict[str, int]:
    """The jobs whose limit is reached, started together: they all wait for the same minute."""
    place = Path(live.sandbox.state_dir) / "ckpt"
    place.mkdir()
    comment = f'--comment=hpctl:{{"ckpt":"{place}"}}'
    return {
        "registered": live.start("sleep 600", comment, header=header(1, 1)),
        "given back": live.start("sleep 600", header=header(60, 1)),
        "kept": live.start("sleep 600", header=header(60, 1)),
        "half": live.start("sleep 600", header=header(60, 1)),
    }


def nodes_of(live: Chaos, job: int, component: int) -> tuple[str, ...]:
    record = live.scheduler.job(job)
    assert record is not None
    return record.components[component].nodes


def component_ends(live: Chaos, job: int) -> None:
    """Wait for the end of the second component of a job that runs on."""

    def ended() -> bool:
        record = live.scheduler.job(job)
        assert record is not None
        second = record.components[1]
        return second.state == "TIMEOUT" and not second.completing

    until(ended, LIMIT_S, "the component reaches its time limit")
    assert live.job(job).state == "RUNNING"


@pytest.mark.parametrize("component", [0, 1])
@story(
    job="Heterogeneous batch job",
    act="a node of one of its components dies",
    slurm="All components are requeued together and run again elsewhere; the node returns.",
    explain="The node is lost: its agent is silent and its slurmd does not answer.",
    owner="The job runs again by itself.",
)
def test_a_lost_node_of_a_component_moves_the_whole_job(
    live: Chaos, jobs: dict[str, int], component: int
):
    job = live.start("sleep 600", header=header(60, 60))
    (victim,) = nodes_of(live, job, component)
    live.mark(victim)
    live.sandbox.inject(victim, "kill-node")
    until(lambda: live.running(job, 1), 120, "all components run again")
    assert [len(nodes_of(live, job, each)) for each in (0, 1)] == [1, 1]
    assert victim not in live.job(job).nodes
    (recovery,) = live.of_job(job)
    assert recovery.bad_nodes == (victim,)
    live.sandbox.run(["scancel", str(job)])
    live.returned(victim, 60)


@story(
    job="Registered heterogeneous batch job with a checkpoint directory",
    act="it reaches its time limit",
    slurm="All components are requeued together and start at slurmctld's next backfill pass.",
    explain="It reached its time limit; one recovery.",
    owner="The job runs again by itself.",
)
def test_a_job_that_reaches_its_time_limit_starts_again(live: Chaos, jobs: dict[str, int]):
    job = jobs["registered"]
    until(lambda: live.running(job, 1), LIMIT_S, "it runs again")
    until(lambda: live.begun(job, 1), 60, "its script begins")
    assert [len(nodes_of(live, job, each)) for each in (0, 1)] == [1, 1]
    assert [each.trouble.kind for each in live.of_job(job)] == [TroubleKind.TIME_LIMIT]
    assert "it reached its time limit" in live.explained(job)
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Heterogeneous batch job a component of which has ended at its own time limit",
    act="a node that the component gave back has a fault",
    slurm="The job runs on; the node is replaced.",
    explain="No recovery of the job opens.",
)
def test_a_node_that_an_ended_component_gave_back_is_not_its_own(live: Chaos, jobs: dict[str, int]):
    job = jobs["given back"]
    (victim,) = nodes_of(live, job, 1)
    component_ends(live, job)
    until(lambda: live.daemon_sees(job), 60, "the daemon sees it run")
    live.xid(victim)
    live.returned(victim)
    stays(lambda: live.running(job), 3, "the job runs on")
    assert live.job(job).restarts == 0
    assert live.of_job(job) == []
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Heterogeneous batch job a component of which has ended at its own time limit",
    act="a node of the component that runs on has a fault",
    slurm="Both components are requeued, and run again elsewhere.",
    explain="One recovery, which names the node.",
    owner="The job runs again by itself, with all components.",
)
def test_an_ended_component_comes_back_with_the_others(live: Chaos, jobs: dict[str, int]):
    job = jobs["kept"]
    component_ends(live, job)
    (victim,) = nodes_of(live, job, 0)
    live.xid(victim)
    until(lambda: live.running(job, 1), 60, "it runs again")
    until(lambda: live.begun(job, 1), 60, "its script begins")
    record = live.scheduler.job(job)
    assert [each.state for each in record.components] == ["RUNNING", "RUNNING"]
    assert victim not in live.job(job).nodes
    (recovery,) = live.of_job(job)
    assert recovery.bad_nodes == (victim,)
    live.sandbox.run(["scancel", str(job)])
    live.returned(victim)


@story(
    job="Heterogeneous batch job a component of which has ended at its own time limit",
    act="a node that the component gave back is set DOWN",
    slurm="Slurm requeues the component that runs, and it alone, which would never start; hpctl"
    " requeues the other, and both run again.",
    explain="Slurm took it off the node.",
    owner="The job runs again by itself, with all components.",
)
def test_a_component_that_slurm_requeues_alone_does_not_wait_forever(
    live: Chaos, jobs: dict[str, int]
):
    job = jobs["half"]
    component_ends(live, job)
    until(lambda: live.daemon_sees(job), 60, "the daemon sees it run")
    (given_back,) = nodes_of(live, job, 1)
    live.sandbox.run(["scontrol", "update", f"NodeName={given_back}", "State=DOWN", "Reason=test"])
    until(lambda: live.running(job, 1), 60, "it runs again")
    until(lambda: live.begun(job, 1), 60, "its script begins")
    record = live.scheduler.job(job)
    assert [each.state for each in record.components] == ["RUNNING", "RUNNING"]
    assert f"Slurm took it off {given_back}" in live.explained(job)
    live.sandbox.run(["scancel", str(job)])
