"""An idle node is tested, and a user's job takes it back at once, without Slurm's preemption; one
that fails is drained."""

import sys
import time

import pytest

from hpctl.vocabulary.change import ChangeKind, ClusterChangePhase
from tests.live import EAGER, FAST, Live, until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


def test_a_users_job_takes_the_node_from_a_burn_in(sandbox_factory, tmp_path):
    script = tmp_path / "test.py"
    log = tmp_path / "log"
    script.write_text(
        f"import sys, time\nopen({str(log)!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
        "time.sleep(float(open(sys.argv[0] + '.s').read()))\n"
    )
    pace = tmp_path / "test.py.s"
    pace.write_text("300")
    idle = {"every_s": 3600, "idle_s": 0, "retry_s": 2}
    accept = {"quick_s": 120, "result_s": 1, "command": f"{sys.executable} {script}"}
    config = {**FAST, "idle": idle, "acceptance": accept}
    live = Live(sandbox_factory(nodes=1, mode="own", daemon=True, config=config, slurm_conf=EAGER))

    def changes(phase=None):
        every = live.state().changes.values()
        return [
            c for c in every if c.opened.kind is ChangeKind.BURN_IN and phase in (None, c.phase)
        ]

    def wait_of_a_job() -> float:
        """How long a user's job waits that comes while the node is tested, in seconds."""
        until(lambda: changes(ClusterChangePhase.TESTING), 60, "an idle node is tested")
        (mine,) = (c.id for c in changes(ClusterChangePhase.TESTING))
        until(lambda: any(j.running for j in live.scheduler.view().jobs.values()), 10, "it runs")
        job = live.submit("sleep 1", header="#!/bin/sh\n#SBATCH --exclusive\n")
        until(lambda: live.job(job).state == "COMPLETED", 30, "the user's job runs and ends")
        # The next one may begin two seconds later.
        until(lambda: live.state().changes[mine].ended, 10, "the test gives way")
        found = live.job(job)
        assert found.start is not None
        return (found.start - found.submit).total_seconds()

    waits = [wait_of_a_job() for _ in range(3)]
    assert {c.phase for c in changes()} == {ClusterChangePhase.CANCELLED}
    pace.write_text("0.1")
    until(lambda: changes(ClusterChangePhase.DONE), 60, "a test ends by itself")
    (done,) = changes(ClusterChangePhase.DONE)
    assert f"--level quick --id {done.id}" in log.read_text()
    time.sleep(5)
    assert len(changes(ClusterChangePhase.DONE)) == 1, "it is not tested again before its time"
    # Slurm tells whole seconds; a test that does not give way takes its two minutes.
    assert sorted(waits)[1] <= 20.0, waits


def test_a_node_that_fails_is_drained_for_a_person(sandbox_factory, tmp_path):
    script, place = tmp_path / "test", tmp_path / "nodes"
    tmp_path.chmod(0o755)
    script.write_text(
        f"#!/bin/sh\nfolder=$(cat {place})/$SLURMD_NODENAME/agent/acceptance now=$(date +%s)\n"
        'printf \'{"id": "%s", "level": "quick", "started": %s, "finished": %s, "results": '
        '[{"test": "gemm", "status": "Failed", "remedy": "replace", "reason": "GPU 3"}]}\' '
        '"$4" $now $now > $folder/.new\nmv $folder/.new $folder/$4.json\nexit 1\n'
    )
    script.chmod(0o755)
    idle = {"every_s": 3600, "idle_s": 10, "retry_s": 2}
    config = {**FAST, "idle": idle, "acceptance": {"command": str(script)}}
    sandbox = sandbox_factory(nodes=2, mode="own", daemon=True, config=config, slurm_conf=EAGER)
    place.write_text(str(sandbox.node_dir(sandbox.nodes[0]).parent))
    live = Live(sandbox)
    until(lambda: live.node_recoveries(), 90, "the result of a test opens a recovery")
    rid = live.node_recoveries()[0].id
    until(lambda: live.state().nodes[rid].ended, 60, "it is handed to a person")
    rec = live.state().nodes[rid]
    assert (rec.rule, rec.phase) == ("burn-in-failed", "escalated"), rec.trail
    assert live.node(rec.node).drained
    assert "GPU 3" in live.hpctl("explain", rec.id)
