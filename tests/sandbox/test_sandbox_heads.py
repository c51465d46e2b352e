"""Two head nodes, one database: what breaks while nobody leads is healed once.

Freezes, PostgreSQL, and slurmctld's own fail-over are in test_failover_live.py, at night.
"""

import time
from pathlib import Path

import pytest

from hpctl.sandbox.api import Sandbox
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from tests.conftest import SandboxFactory
from tests.live import EAGER, FAST, Live, until

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.timeout(300)]


def test_the_standby_heals_what_breaks_without_a_leader(sandbox_factory: SandboxFactory) -> None:
    settings = {"heads": 2, "nodes": 3, "daemon": True, "mode": "own", "config": FAST}
    sandbox: Sandbox = sandbox_factory(slurm_conf=EAGER, **settings)
    live = Live(sandbox)
    until(lambda: "standby     ready" in live.hpctl("status", check=False), 40, "a standby")
    job = live.submit("sleep 600")
    until(lambda: live.running(job), 30, "the job runs")
    sandbox.kill_daemon()
    began = time.monotonic()
    sandbox.inject(str(*live.job(job).nodes), "xid", code=79)
    until(lambda: live.running(job, 1), 60, "the job runs again")
    print(f"fault to running: {time.monotonic() - began:.2f} s")
    until(lambda: not live.state().open_nodes, 90, "the node is back")
    assert [rec.phase for rec in live.node_recoveries()] == [NodeRecoveryPhase.RETURNED]
    assert live.calls("BatchReplaceClusterNodes") == 1


def test_two_heads_need_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpctl.sandbox.head.find_spec", lambda _: None)
    with pytest.raises(HpctlError, match="two head nodes need a shared database") as refused:
        Sandbox("none", state_dir=tmp_path / "none", heads=2).up()
    assert "apt-get install" in refused.value.hint
