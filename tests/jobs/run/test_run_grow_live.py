"""A smaller run on a real Slurm that becomes larger again when a lost node is back."""

import re
import sys
import time

import pytest

from hpctl.checkpoints.save_interval import measure_checkpoint_save_timings
from hpctl.sandbox.api import Sandbox
from tests.jobs.run.test_run_inside import job as job
from tests.jobs.run.test_run_live import SETTLED_S, Job
from tests.live import EAGER, until

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]

SUPERVISOR = """
import sys
from hpctl.cli.main import main
from hpctl.jobs.run.supervise import StepTimers
StepTimers.GROW_S = 1.0  # a minute outside of tests
sys.argv[0] = "hpctl"
main()
"""
SAVES = """
import os, pathlib, time
from hpctl import progress
from hpctl.checkpoints.formats import manifest
ck, rank = pathlib.Path(os.environ["DIR"], "ck"), os.environ["SLURM_PROCID"]
attempt = int(os.environ["HPCTL_ATTEMPT"])
step = 1000 * attempt
while True:
    time.sleep(0.5)
    if pathlib.Path(os.environ["DIR"], "break." + os.environ["SLURMD_NODENAME"]).exists():
        raise SystemExit("RuntimeError: CUDA error: uncorrectable ECC error encountered")
    if rank == "0":
        step += 1
        whole = ck / f"step-{step}"
        whole.mkdir()
        (whole / "data").write_bytes(b"x")
        files = [manifest.make_file_manifest_entry(whole / "data", whole)]
        manifest.write_manifest(whole, step=step, world_size=1, files=files)
        progress.checkpoint(whole, step, seconds=0.25)
"""


@pytest.fixture(scope="module")
def slurm():
    """Three nodes: a fourth would be idle, and worth a requeue."""
    settings = {"agents": False, "emulator": False, "slurm_conf": EAGER}
    with Sandbox("grow", nodes=3, **settings) as sandbox:
        yield sandbox


def _attempt(job: Job, number: int) -> tuple[int, list[str]]:
    """How many nodes it got, and which, once it is under way."""
    found = re.compile(rf"attempt {number} on (\d+) nodes?.*?, (ip\S+), ")
    until(lambda: bool(found.search(job.log())), SETTLED_S, f"attempt {number}:\n{job.log()}")
    seen = found.findall(job.log())[0]
    return int(seen[0]), job.slurm.scontrol("show", "hostnames", seen[1]).split()


def _started(job: Job) -> tuple[str, ...]:
    """A job of three nodes that may go on with two; it has saved. Its nodes."""
    (job.dir / "ck").mkdir()
    rank, supervisor = job.dir / "rank.py", job.dir / "supervisor.py"
    rank.write_text(SAVES)
    supervisor.write_text(SUPERVISOR)
    run = f"run --nodes 2-3 -- {sys.executable} {rank}"
    setting = 'export HPCTL_CHECKPOINT_DIR="$DIR/ck"'
    job.submit_command("-", batch=f"{setting}\nexec {sys.executable} {supervisor} {run}")
    size, nodes = _attempt(job, 1)
    assert size == 3
    until(lambda: any((job.dir / "ck").glob("step-1*")), SETTLED_S, "it saves")
    return tuple(nodes)


def test_a_node_that_hpctl_gave_back_is_used_again_at_a_checkpoint(slurm, job):
    nodes = _started(job)
    victim = next(node for node in reversed(nodes) if node != job.field("BatchHost"))
    node, broken = f"NodeName={victim}", job.dir / f"break.{victim}"
    # A GPU's error is the node's until somebody has looked: without it, though it is healthy yet.
    broken.touch()
    assert _attempt(job, 2) == (2, [node for node in nodes if node != victim])
    broken.unlink()
    until(lambda: any((job.dir / "ck").glob("step-2*")), SETTLED_S, "it saves")
    time.sleep(2.5)
    assert "attempt 3" not in job.log(), "grown over a suspicion"
    # As the daemon does it: closed while its jobs run, found well, and given back.
    slurm.run(["scontrol", "update", node, "State=DRAIN", "Reason=hpctl:r1 xid 48"])
    time.sleep(2.5)
    assert "attempt 3" not in job.log(), "grown onto a node in treatment"
    slurm.run(["scontrol", "update", node, "State=RESUME"])
    assert _attempt(job, 3) == (3, list(nodes))
    assert "3 nodes again instead of 2" in job.log()
    assert measure_checkpoint_save_timings(job.dir / "ck").reported_s[:2] == (0.25, 0.25)
