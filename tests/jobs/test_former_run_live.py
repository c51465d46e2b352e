"""A restarted run says in the job's log why the run before it ended, and where it begins."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from hpctl.checkpoints import hpctl_checkpoint
from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.sandbox.test_training import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.integration]

PROGRAM = """\
import os, sys, time
sys.path.insert(0, sys.argv[1])
import hpctl_checkpoint

def save(step):
    if "HPCTL_CHECKPOINT_DIR" in os.environ:
        with hpctl_checkpoint.saving(step, ranks=1) as saving:
            open(saving.path("state.json"), "w").write(str(step))

if not os.path.exists("begun"):
    save(300)
    open("begun", "w").close()
    time.sleep(600)
print("second run", flush=True)
while not os.path.exists("end"):
    time.sleep(0.1)
save(310)
"""
HOW = {
    "srun": ("srun", "--checkpoint-dir {saves}", "resuming from step 300"),
    "hpctl run": ("{python} -m hpctl run", "--checkpoint-dir {saves}", "resuming from step 300"),
    "no checkpoints": ("srun", "--policy {policy}", ""),
}


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=5) as found:
        yield found


class Job:
    """One job on one node, whose second run goes on until it is told to end."""

    def __init__(self, live: Chaos, name: str) -> None:
        launch, options, self.place = HOW[name]
        self.live = live
        self.base = Path(live.sandbox.state_dir) / name.replace(" ", "-")
        saves = self.base / "run"
        saves.mkdir(parents=True)
        (self.base / "program.py").write_text(PROGRAM)
        (self.base / "policy.yaml").write_text("restarts: 3\n")
        shutil.copy(hpctl_checkpoint.__file__, self.base)
        words = {"saves": saves, "policy": self.base / "policy.yaml", "python": sys.executable}
        script = self.base / "job.sh"
        script.write_text(
            f"#!/bin/bash\n#SBATCH -N1\n#HPCTL {options.format(**words)}\n"
            f"export PYTHONPATH={ROOT}\n"
            f"{launch.format(**words)} {sys.executable} {self.base}/program.py {self.base}\n"
        )
        self.id = live.sbatch(script)

    def text(self) -> str:
        log = self.base / "log"
        return log.read_text() if log.exists() else ""


@pytest.mark.parametrize("name", HOW)
def test_the_second_run_names_the_fault_that_ended_the_first(live, name):
    job = Job(live, name)
    until(lambda: (job.base / "begun").exists(), 60, "the first run saves")
    (node,) = live.job(job.id).nodes
    live.sandbox.inject(str(node), "xid", code=79)
    until(lambda: "second run" in job.text(), 60, "the second run begins")
    until(lambda: "run 1 ended" in job.text(), 60, "the log says why")
    lines = re.findall(r"hpctl: .*run 2: run 1 ended: .*", job.text())
    assert len(lines) == 1, job.text()
    assert re.search(
        rf"its node {node}: .*\(xid-79\){f'; {job.place}' if job.place else ''}$", lines[0]
    )
    (job.base / "end").touch()
    until(lambda: live.job(job.id).state == "COMPLETED", 60, "it ends")
    if name == "hpctl run":
        summary = job.text().rpartition("attempt  ")[2]
        # Slurm may kill the supervisor before it has written down the end of its attempt.
        ended = rf"\n.* 1 .*(it was asked to end: its node {node}|no end was recorded)"
        assert re.search(ended, summary), job.text()
