"""A kernel line names a process; which job it belongs to, on a real slurmd."""

import time
from datetime import datetime
from pathlib import Path

import pytest

from hpctl.detection.kernel.log import KernelLogAnalyzer
from hpctl.detection.kmsg import KernelRecord
from hpctl.detection.slurm_jobs import ProcessJobFinder
from hpctl.toolkit.compat import UTC
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]

# The batch script, a process of its own below it, and a task that srun starts.
SCRIPT = """\
cd {directory}
echo $$ > batch.new; mv batch.new batch
bash -c 'echo $$ > child.new; mv child.new child; sleep 60' &
srun -n1 bash -c 'echo $$ > task.new; mv task.new task; sleep 60'
"""


def test_processes_of_a_running_job_are_found(slurm, tmp_path):
    args = ["sbatch", "--parsable", "--output=/dev/null", "--wrap"]
    job = slurm.run([*args, SCRIPT.format(directory=tmp_path)]).stdout.strip()
    names = ("batch", "child", "task")
    until(lambda: all((tmp_path / name).exists() for name in names), 30, "the job's processes")
    pids = {name: int((tmp_path / name).read_text()) for name in names}
    jobs = ProcessJobFinder()
    try:
        for name, pid in pids.items():
            assert jobs.of(pid, datetime.now(UTC)) == job, name
        text = f"NVRM: Xid (PCI:0000:c1:00): 31, pid={pids['task']}, name=bash, Ch 0008"
        (finding,) = KernelLogAnalyzer(jobs.of).findings(
            [KernelRecord(0, 1, datetime.now(UTC), text)]
        )
        assert (finding.code, finding.job) == ("31", job)
    finally:
        slurm.run(["scancel", job])
    until(lambda: not Path(f"/proc/{pids['task']}").exists(), 30, "the job's end")
    # Its last lines may be read after its end: what was known is remembered for a while.
    time.sleep(0.1)
    assert jobs.of(pids["task"], datetime.now(UTC)) == job
    assert ProcessJobFinder().of(pids["task"], datetime.now(UTC)) == ""
