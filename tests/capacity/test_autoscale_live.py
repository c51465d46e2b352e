"""A group shrinks when idle and grows for a job, on a real Slurm and the emulated service."""

import pytest

from hpctl.capacity.history import list_scale_down_recoveries
from hpctl.vocabulary.change import ChangeKind
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from tests.live import EAGER, FAST, Live, until

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]

AUTOSCALE = {
    "enabled": True,
    "groups": {"worker-1": {"min_count": 1, "max_count": 3, "partition": "worker-1"}},
    "up_after_s": 1,
    "down_after_s": 3,
    "cooldown_s": 1,
}


def test_idle_nodes_leave_and_a_job_that_waits_brings_them_back(sandbox_factory):
    config = {**FAST, "autoscale": AUTOSCALE}
    live = Live(
        sandbox_factory(nodes=3, mode="own", config=config, boot_time=0.5, slurm_conf=EAGER)
    )
    busy = live.submit("sleep 600", "--nodes=1", "--partition=worker-1")
    until(lambda: live.running(busy), 20, "job runs")
    (worked,) = live.job(busy).nodes
    live.sandbox.start_daemon()

    def removed() -> int:
        return sum(
            rec.phase is NodeRecoveryPhase.REMOVED
            for rec in list_scale_down_recoveries(live.state())
        )

    until(lambda: removed() == 2, 40, "both idle nodes left")
    assert live.running(busy)
    assert live.job(busy).restarts == 0
    assert live.calls("BatchDeleteClusterNodes") >= 1
    live.sandbox.run(["scancel", str(busy)])

    args = ["--partition=worker-1", "--output=/dev/null", "--wrap", "sleep 600"]
    live.sandbox.run(["sbatch", "--nodes=2", "--exclusive", *args])
    live.sandbox.run(["sbatch", "--array=1-8", "--ntasks=1", "--gres=gpu:1", *args])

    def running():
        return [j for j in live.scheduler.view().jobs.values() if j.state == "RUNNING"]

    until(lambda: len(running()) == 9, 60, "two nodes came back, and eight small jobs share one")
    assert worked in {node for job in running() for node in job.nodes}
    state = live.state()
    added = [c for c in state.changes.values() if c.opened.kind is ChangeKind.ADD]
    assert sum(c.opened.count for c in added) == 2
    assert live.calls("BatchAddClusterNodes") == len(added)
    faults = [rec for rec in live.node_recoveries() if not rec.is_for_capacity_change]
    assert not faults, "a node that left was taken for a lost one"
