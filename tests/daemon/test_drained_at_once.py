"""A proven fault closes its node at once, whatever the budget of remedies is taken by."""

from datetime import datetime

import pytest

from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.recovery import StepKind, find_last_step_attempt
from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.timeout(300)]
HEADER = "#!/bin/sh\n#SBATCH --exclusive\n"
BUDGETS = {"open_min": 2, "partition_min": 2, "open_fraction": 0.0, "partition_fraction": 0.0}


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=10, config={"budgets": BUDGETS}) as live:
        yield live


def return_time(rec: NodeRecovery) -> datetime:
    """When the order to give a node back was sent."""
    returned = find_last_step_attempt(rec.steps, StepKind.RETURN)
    assert returned is not None, rec.steps
    return returned.started


def test_nodes_that_wait_for_jobs_take_no_slot_and_stop_no_drain(live: Chaos):
    jobs = [live.start("sleep 600", "--no-requeue", header=HEADER) for _ in range(2)]
    kept = [live.job(job).nodes[0] for job in jobs]
    for node in kept:
        live.xid(node)
        until(lambda node=node: live.node(node).drained, 60, f"{node} is drained")
    until(lambda: all(live.phase(node) == "cordoned" for node in kept), 60, "both wait")
    faulty = live.victims(3)
    live.xid(*faulty)
    until(lambda: all(live.node(n).drained for n in faulty), 60, "three more are drained")
    others = [n for n in live.sandbox.nodes if n not in (*kept, *faulty)]
    work = [live.start("sleep 600", "--no-requeue", header=HEADER) for _ in others]
    back = {node: return_time(live.returned(node, 120)) for node in faulty}
    for job in map(live.job, work):
        # slurmctld counts whole seconds.
        treated = back.get(job.nodes[0])
        assert treated is None or job.start >= treated.replace(microsecond=0), job
    assert [live.phase(node) for node in kept] == ["cordoned", "cordoned"]
    job, user = jobs[0], live.job(jobs[0]).user
    explained = live.explained(kept[0])
    assert f"Waiting for: job {job} of {user}, not requeueable, has no time limit" in explained
    status = live.hpctl("status", check=False)
    assert f"Waits for job {job} of {user}, not requeueable" in " ".join(status.split())
    live.sandbox.run(["scancel", *map(str, (*jobs, *work))])
    for node in kept:
        live.returned(node, 120)
    live.settle()
