"""An srun that outlives its step, on a real Slurm: 22.05's does so once in a great while."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.integration.live import until
from tests.integration.test_run_inside import job as job
from tests.integration.test_run_inside import slurm as slurm
from tests.integration.test_run_live import SETTLED_S, Job
from tests.integration.test_training import ROOT

pytestmark = pytest.mark.slurm

SUPERVISOR = """
import sys
from hpctl.cli.main import main
from hpctl.jobs.run.clocks import Clocks
Clocks.POLL_S = 1.0  # half a minute outside of tests
sys.argv[0] = "hpctl"
main()
"""
LINGERS = """
#include <errno.h>
#include <string.h>
#include <unistd.h>
__attribute__((destructor)) static void linger(void)
{
    if (!strcmp(program_invocation_short_name, "srun") && !access(LINGER, F_OK))
        for (;;)
            pause();
}
"""
RANK = """
[ "$HPCTL_ATTEMPT" = 1 ] || exit 0
while [ ! -e "$DIR/end" ]; do sleep 0.1; done
"""


def _started(job: Job, more: str = "") -> None:
    """A job whose ranks wait for a file `end`. With a file `linger`, its srun does all its work
    and does not exit."""
    library, source = job.dir / "linger.so", job.dir / "linger.c"
    source.write_text(f'#define _GNU_SOURCE\n#define LINGER "{job.dir}/linger"\n{LINGERS}')
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    rank, script = job.dir / "rank.sh", job.dir / "job.sh"
    rank.write_text(f'#!/bin/sh\ntouch "$DIR/there.$SLURM_PROCID"{RANK}{more}\n')
    rank.chmod(0o755)
    (job.dir / "supervisor.py").write_text(SUPERVISOR)
    script.write_text(
        f"#!/bin/sh\nexport DIR={job.dir} PYTHONPATH={ROOT} HOME={job.dir} LD_PRELOAD={library}\n"
        f"exec {sys.executable} {job.dir}/supervisor.py run -- {rank}\n"
    )
    words = ["--nodes=2", "--ntasks-per-node=1", f"--output={job.dir}/log", "--parsable"]
    job.id = int(job.slurm.run(["sbatch", *words, str(script)], cwd=job.dir).stdout)
    until(lambda: (job.dir / "there.1").exists(), SETTLED_S, f"its ranks run\n{job.log()}")


@pytest.mark.parametrize("done", [True, False])
def test_a_step_that_ended_is_not_waited_for(job: Job, done: bool) -> None:
    linger = job.dir / "linger"
    linger.touch()
    _started(job, 'touch "$HPCTL_DONE"' if done else "")
    (job.dir / "end").touch()
    said = "Slurm has ended the step, and srun does not end"
    until(lambda: said in job.log(), SETTLED_S, f"{said}\n{job.log()}")
    linger.unlink()
    # Nobody but the program can tell how a step ended whose srun says nothing.
    assert ("attempt 2 on" in job.ended()) is not done


def test_a_silent_step_that_slurm_knows_is_left_alone(job: Job) -> None:
    _started(job)
    until(lambda: job.field("RunTime") >= "00:00:07", SETTLED_S, "several looks")
    (job.dir / "end").touch()
    log = job.ended()
    assert "attempt 2 on" not in log
    assert "srun does not end" not in log
