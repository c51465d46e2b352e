"""The client on a real Slurm with a daemon: what a job's owner sees of its restarts."""

import sys
from pathlib import Path

import pytest

from hpctl.client import checkpoints, explain, status, submit, wait
from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
COMES_BACK = '#!/bin/sh\n[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && exit 0\nsleep 600\n'
FAILS = "#!/bin/sh\nexit 3\n"


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=2) as live:
        yield live


@pytest.fixture
def owner(live: Chaos, tmp_path: Path, monkeypatch) -> Path:
    """A directory of one who is on the cluster's head node, with hpctl."""
    for name, value in live.sandbox.exports.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HPCTL_COMMAND", str(Path(sys.executable).with_name("hpctl")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_job_whose_node_is_lost_has_not_ended(live: Chaos, owner: Path):
    (owner / "job.sh").write_text(COMES_BACK)
    job = submit("job.sh", checkpoint_dir=owner / "checkpoints", nodes=1)
    assert any(note.startswith("registered") for note in job.notes)
    until(lambda: live.running(int(job.id)), 60, "it runs")
    live.xid(live.job(int(job.id)).nodes[0])
    end = wait(job, timeout=120)
    assert (end.state, end.exit_code, end.restarts) == ("COMPLETED", 0, 1)
    assert "Xid 79" in explain(job).headline or "xid-79" in str(explain(job).document)
    found = checkpoints(job)
    assert (found.place, found.newest) == (str(owner / "checkpoints"), None)
    assert status().mode == "own"


def test_a_job_that_fails_again_ends_with_exit_code_and_cause(live: Chaos, owner: Path):
    (owner / "fails.sh").write_text(FAILS)
    end = wait(submit("fails.sh"), timeout=120)
    assert (end.state, end.exit_code, end.restarts) == ("FAILED", 3, 1)
    assert "exit code 3" in end.cause
    assert end.todo.startswith("nothing: it has ended")
