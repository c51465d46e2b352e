"""Where a job may run: hpctl excludes the faulty node and keeps every other wish of the job."""

from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
CONF = """Licenses=solver:1
PartitionName=second Nodes=ALL State=UP
"""
HEADER = "#!/bin/sh\n#SBATCH --requeue\n"


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=4, slurm_conf=CONF) as live:
        yield live


def resumed(live: Chaos, job: int, victim: str) -> None:
    """Wait for a job to run again and for its recovery to end."""
    until(lambda: live.running(job, 1), 60, f"job {job} runs again")
    until(lambda: live.of_job(job)[0].phase == "resumed", 60, "its recovery ends")
    assert live.of_job(job)[0].bad_nodes == (victim,)


@story(
    job="Three batch jobs on one node, of two partitions",
    act="the node has a fault",
    slurm="All three are requeued at once, exclude the node, and start without the begin delay.",
    explain="One recovery for each job, with the node's as its cause.",
    owner="The jobs run again by themselves.",
)
def test_all_jobs_of_a_shared_node_move(live: Chaos):
    small = "--cpus-per-task=2"
    jobs = [live.start("sleep 600", small, header=HEADER) for _ in range(2)]
    jobs.append(live.start("sleep 600", small, "--partition=second", header=HEADER))
    (victim,) = {node for job in jobs for node in live.job(job).nodes}
    live.xid(victim)
    for job in jobs:
        resumed(live, job, victim)
    causes = {live.of_job(job)[0].cause for job in jobs}
    assert causes == {live.last(victim).id}
    live.sandbox.run(["scancel", *map(str, jobs)])
    live.returned(victim)


@pytest.mark.parametrize("option", ["--nodelist", "--nodefile"])
@story(
    job="Batch job with `--nodelist` or `--nodefile` of one node",
    act="that node has a fault",
    slurm="The job waits for the node's replacement, and then runs on it.",
    explain="What it waits for, with Slurm's reason.",
    owner="The job runs again by itself.",
)
def test_a_pinned_job_waits_for_the_replacement_of_its_node(
    live: Chaos, tmp_path: Path, option: str
):
    (victim,) = live.victims(1)
    (tmp_path / "nodes").write_text(f"{victim}\n")
    value = victim if option == "--nodelist" else str(tmp_path / "nodes")
    job = live.start("sleep 600", "--exclusive", f"{option}={value}", header=HEADER)
    live.sandbox.inject_api("stuck-replace")
    live.xid(victim)
    until(lambda: "(Slurm: " in live.explained(str(job)), 60, "explain says why it waits")
    live.sandbox.inject_api("clear")
    resumed(live, job, victim)
    assert live.job(job).nodes == (victim,)
    assert live.job(job).excluded == ()
    live.returned(victim)
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Batch job with `--constraint`",
    act="one of the two nodes with the feature has a fault",
    slurm="The job runs again on the other node with the feature.",
    owner="The job runs again by itself.",
)
def test_a_constraint_is_kept(live: Chaos):
    some = live.victims(2)
    for node in some:
        feature = ["AvailableFeatures=big", "ActiveFeatures=big"]
        live.sandbox.run(["scontrol", "update", f"NodeName={node}", *feature])
    job = live.start("sleep 600", "--exclusive", "--constraint=big", header=HEADER)
    (victim,) = live.job(job).nodes
    live.xid(victim)
    resumed(live, job, victim)
    assert set(live.job(job).nodes) < set(some)
    live.returned(victim)
    live.sandbox.run(["scancel", str(job)])
    for node in some:
        for features in ("ActiveFeatures=", "AvailableFeatures="):
            live.sandbox.run(["scontrol", "update", f"NodeName={node}", features])


@story(
    job="Batch job in a user's reservation of two nodes",
    act="the node of the job has a fault",
    slurm="The job runs again on the other node of the reservation, which keeps its nodes.",
    owner="The job runs again by itself.",
)
def test_a_job_in_a_reservation_stays_in_it(live: Chaos):
    some = live.victims(2)
    reservation = ["StartTime=now", "Duration=60", "Users=root", f"Nodes={','.join(some)}"]
    live.sandbox.run(["scontrol", "create", "reservation", "ReservationName=mine", *reservation])
    job = live.start("sleep 600", "--exclusive", "--reservation=mine", header=HEADER)
    (victim,) = live.job(job).nodes
    live.xid(victim)
    resumed(live, job, victim)
    assert set(live.job(job).nodes) < set(some)
    live.returned(victim)
    assert set(live.scheduler.reservations()["mine"].nodes) == set(some)
    live.sandbox.run(["scancel", str(job)])
    until(lambda: not live.job(job).running, 60, "it ends")
    live.sandbox.run(["scontrol", "delete", "ReservationName=mine"])


@story(
    job="Batch job with a licence that no other job may hold meanwhile",
    act="its node has a fault",
    slurm="The job gives the licence back, takes it again, and runs elsewhere.",
    owner="The job runs again by itself.",
)
def test_a_licence_is_taken_again(live: Chaos):
    job = live.start("sleep 600", "--exclusive", "--licenses=solver:1", header=HEADER)
    (victim,) = live.job(job).nodes
    live.xid(victim)
    resumed(live, job, victim)
    shown = live.sandbox.run(["scontrol", "show", "license"]).stdout
    assert "Used=1" in shown, shown
    live.returned(victim)
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Batch job on all nodes of the cluster",
    act="one of them has a fault",
    slurm="The job waits for the node's replacement, and then runs on all nodes.",
    owner="The job runs again by itself.",
)
def test_a_job_on_all_nodes_waits_for_the_replacement(live: Chaos):
    until(live.all_idle, 60, "all nodes are idle")
    victim = live.sandbox.nodes[0]
    job = live.start("sleep 600", "--exclusive", "--nodes=4", header=HEADER)
    live.xid(victim)
    resumed(live, job, victim)
    assert set(live.job(job).nodes) == set(live.sandbox.nodes)
    live.returned(victim)
    live.sandbox.run(["scancel", str(job)])
