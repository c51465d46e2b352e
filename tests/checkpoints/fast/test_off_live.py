"""Jobs whose fast saves are off: they save to the checkpoint directory, and their owner is told."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from hpctl.checkpoints import hpctl_checkpoint
from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]

PROGRAM = """\
import os, sys
sys.path.insert(0, sys.argv[1])
import hpctl_checkpoint
place = os.environ.get("HPCTL_FAST_DIR") or os.environ["HPCTL_CHECKPOINT_DIR"]
with hpctl_checkpoint.saving(10, place, ranks=1) as save:
    open(save.path("state.json"), "w").write("10")
print("saved to", place, flush=True)
"""
"""As docs/checkpoints.md has a program choose where it saves."""


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=2) as found:
        yield found


class Job:
    """A job on two nodes with --fast-dir, and its log."""

    def __init__(self, live: Chaos, fast_dir: Path) -> None:
        self.live = live
        self.base = Path(tempfile.mkdtemp(dir=live.sandbox.state_dir))
        self.saves = self.base / "run"
        self.saves.mkdir()
        (self.base / "program.py").write_text(PROGRAM)
        shutil.copy(hpctl_checkpoint.__file__, self.base)
        script = self.base / "job.sh"
        script.write_text(
            "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1\n"
            f"#HPCTL --checkpoint-dir {self.saves} --fast-dir local:{fast_dir}\n"
            f"srun -N1 -n1 {sys.executable} {self.base}/program.py {self.base}\n"
            f"until [ -e {self.base}/end ]; do sleep 0.1; done\n"
        )
        self.id = live.sbatch(script)

    def text(self) -> str:
        log = self.base / "log"
        return log.read_text() if log.exists() else ""

    def check_off(self, why: str) -> None:
        """The program saves to the checkpoint directory, and log and `explain` say why."""
        until(lambda: "saved to" in self.text(), 60, "the program saves")
        told = f"fast saves are off: {why}; the program saves to {self.saves}"
        assert f"saved to {self.saves}\n" in self.text(), self.text()
        assert self.text().count("fast saves are off") == 1, self.text()
        assert "Killed" not in self.text(), self.text()
        assert told in self.text(), self.text()
        until(lambda: "fast saves are off" in self.live.explained(self.id), 60, "explain says it")
        assert told in self.live.explained(self.id)
        assert "its newest complete checkpoint" in self.live.explained(self.id)
        (self.base / "end").touch()
        until(lambda: self.live.job(self.id).state == "COMPLETED", 60, "it ends")


def test_nodes_that_share_the_directory_save_to_the_checkpoint_directory(live, tmp_path):
    first, second = live.sandbox.nodes[:2]
    job = Job(live, tmp_path / "disk")
    until(lambda: "saved to" in job.text(), 60, "the program saves")
    refused = second if f"on {second}, " in job.text() else first
    holds = first if refused == second else second
    why = (
        f"on {refused}, {tmp_path}/disk is the same directory as on {holds}:"
        " fast saves need a disk of each node's own"
    )
    job.check_off(why)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a directory of another user")
def test_a_stranger_s_directory_is_not_saved_to(live, tmp_path):
    stranger = tmp_path / "disk"
    stranger.mkdir(mode=0o777)
    os.chown(stranger, 65534, 65534)
    job = Job(live, stranger)
    until(lambda: "saved to" in job.text(), 60, "the program saves")
    assert f"{stranger} is not a directory of this user" in job.text()
    job.check_off(job.text().partition("fast saves are off: ")[2].partition(";")[0])
    assert list(stranger.iterdir()) == []
