"""Two head nodes, two slurmctld, one database: what a leader leaves half done is done once."""

import time
from pathlib import Path

import pytest

from hpctl.core.node_recovery import Phase
from hpctl.errors import HpctlError
from hpctl.sandbox.api import Sandbox
from hpctl.wiring import open_store
from tests.conftest import SandboxFactory
from tests.integration.live import EAGER, FAST, Live, until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]


class Heads(Live):
    """A cluster with two head nodes, and a job on one of its nodes."""

    def leader(self) -> str:
        """The service that leads."""
        store = open_store(self.config)
        try:
            info = store.daemon()
        finally:
            store.close()
        assert info is not None
        return "daemon-2" if info.address.startswith("127.0.0.2") else "daemon"

    def host_of(self, job: int) -> str:
        (node,) = self.job(job).nodes
        return str(node)

    def healed(self, job: int, restarts: int, began: float) -> None:
        """Wait until the job runs elsewhere and every node recovery has ended well."""
        until(lambda: self.running(job, restarts), 60, "the job runs again")
        print(f"fault to running: {time.monotonic() - began:.2f} s")
        until(lambda: not self.state().open_nodes, 90, "the node is back")
        assert {rec.phase for rec in self.node_recoveries()} == {Phase.RETURNED}

    def stands_by(self) -> None:
        until(lambda: "standby     ready" in self.hpctl("status", check=False), 40, "a standby")


def test_the_standby_ends_what_the_leader_began(sandbox_factory: SandboxFactory) -> None:
    settings = {"heads": 2, "nodes": 3, "daemon": True, "mode": "own", "config": FAST}
    sandbox: Sandbox = sandbox_factory(slurm_conf=EAGER, **settings)
    live = Heads(sandbox)
    live.stands_by()
    job = live.submit("sleep 600")
    until(lambda: live.running(job), 30, "the job runs")

    assert live.leader() == "daemon"
    sandbox.kill_daemon()
    began = time.monotonic()
    sandbox.inject(live.host_of(job), "xid", code=79)  # while nobody leads
    live.healed(job, 1, began)
    assert live.leader() == "daemon-2"
    assert (len(live.node_recoveries()), live.calls("BatchReplaceClusterNodes")) == (1, 1)

    sandbox.start_daemon()
    live.stands_by()
    began = time.monotonic()
    sandbox.inject(live.host_of(job), "xid", code=79)
    until(lambda: bool(live.state().open_nodes), 30, "a recovery is open")
    sandbox.signal_service("daemon-2", "SIGSTOP")
    live.healed(job, 2, began)
    assert live.leader() == "daemon"
    sandbox.signal_service("daemon-2", "SIGCONT")
    live.stands_by()  # the thawed one does nothing
    assert (len(live.node_recoveries()), live.calls("BatchReplaceClusterNodes")) == (2, 2)
    assert len(live.job_recoveries()) == 2
    assert live.job(job).restarts == 2

    # slurmctld fails over as well, and the daemon that leads goes on with the backup.
    sandbox.kill_slurmctld()
    until(lambda: "backup" in sandbox.scontrol("ping"), 10, "two controllers")
    until(lambda: live.running(job, 2), 60, "the backup controller answers")


def test_two_heads_need_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpctl.sandbox.database.find_spec", lambda _: None)
    with pytest.raises(HpctlError, match="share a database") as refused:
        Sandbox("none", state_dir=tmp_path / "none", heads=2).up()
    assert "apt-get install" in refused.value.hint
