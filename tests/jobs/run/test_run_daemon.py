"""The supervisor and the daemon on one job: spares first, then a requeue that the daemon makes."""

import re
import sys
import time

import pytest

from tests.jobs.run.test_run_live import SETTLED_S, Job
from tests.live import EAGER, FAST, Live, until
from tests.sandbox.test_training import ROOT, Run, final

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


def test_daemon_and_supervisor_share_the_work(sandbox_factory, shared):
    settings = {"config": FAST, "boot_time": 0.5, "slurm_conf": EAGER}
    live = Live(sandbox_factory(nodes=4, mode="own", daemon=True, **settings))
    args = ("--steps", "120", "--checkpoint-every", "10", "--step-s", "0.05")
    calm = Run(shared / "calm", 2, *args)
    training = f"{sys.executable} -m hpctl.sandbox.training {' '.join(args)}"
    script = shared / "job.sh"
    script.write_text(
        "#!/bin/sh\n#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:8\n"
        f"#HPCTL --checkpoint-dir {shared}/ck --spares 1\nexport PYTHONPATH={ROOT}\n"
        f"exec {sys.executable} -m hpctl run -- {training}\n"
    )
    hpctl = [sys.executable, "-m", "hpctl", "sbatch", "--parsable", "-o", f"{shared}/log"]
    try:
        done = live.sandbox.run([*hpctl, str(script)], env={"PYTHONPATH": ROOT}, cwd=shared)
        job = Job(live.sandbox, shared, int(done.stdout))
        for attempt, step in ((1, 12), (2, 42)):
            until(lambda s=step: f"\nstep {s} " in job.log(), SETTLED_S, f"it trains\n{job.log()}")
            ran_on = re.findall(rf"attempt {attempt} on .*?, (ip\S+), ", job.log())[0]
            names = live.sandbox.scontrol("show", "hostnames", ran_on).split()
            victim = next(name for name in names if name != job.field("BatchHost"))
            at = time.time()
            live.sandbox.inject(victim, "xid", code=79)
            again = f"attempt {attempt + 1} on"
            until(lambda a=again: a in job.log(), SETTLED_S, f"{again}\n{job.log()}")
            print(f"Xid 79 to attempt {attempt + 1}: {time.time() - at:.2f} s")
        # The first node was replaced by the spare; for the second the daemon was asked.
        assert job.field("Restarts") == "1"
        assert "the daemon was asked for a requeue" in job.log()
        job.ended(timeout=60)
        assert calm.wait()[0] == [0, 0]
        assert final(shared / "ck")["sha256"] == final(shared / "calm")["sha256"]
    finally:
        calm.kill()
