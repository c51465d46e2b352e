"""SIGKILL of the daemon in every phase of a live recovery: it completes, with one replacement."""

import time

import pytest

from hpctl.vocabulary.node_recovery import ENDS, NodeRecoveryPhase
from tests.live import EAGER, FAST, Live, until

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]
# A phase that lasts long enough to be hit: the daemon is killed the moment it is journaled.
PHASES = [p for p in NodeRecoveryPhase if p not in ENDS]
SLOW = {**FAST, "node": {**FAST["node"], "verify_healthy_s": 3.0}}


def test_killed_in_each_phase_it_still_heals_with_one_replacement(sandbox_factory):
    live = Live(
        sandbox_factory(
            nodes=8, mode="own", daemon=True, config=SLOW, boot_time=1.5, slurm_conf=EAGER
        )
    )
    job = live.submit("srun sleep 600", "--nodes=2")
    until(lambda: live.running(job), 20, "job runs")
    victim = str(live.job(job).nodes[-1])
    live.sandbox.inject(victim, "xid", code=79)
    killed: list[str] = []
    limit = time.monotonic() + 120
    while time.monotonic() < limit:
        recoveries = live.node_recoveries()
        if recoveries and recoveries[0].ended:
            break
        phase = recoveries[0].phase if recoveries else None
        if phase is not None and phase not in killed:
            live.sandbox.kill_daemon()
            killed.append(phase)
            live.sandbox.start_daemon()
        time.sleep(0.01)
    (recovery,) = live.node_recoveries()
    assert recovery.phase == "returned", recovery.trail
    assert live.calls("BatchReplaceClusterNodes") == 1
    assert len(killed) >= 4, f"the daemon was only killed in {killed}"
    until(lambda: live.running(job, restarts=1), 30, "the job runs again")
    assert live.job(job).restarts == 1
    until(lambda: all(r.ended for r in live.job_recoveries()), 30, "job recovery ends")
    assert [r.phase for r in live.job_recoveries()] == ["resumed"]
