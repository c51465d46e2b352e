"""Jobs of `hpctl sbatch` with plain srun or torchrun: why they failed is read and told.

Each job runs tests/jobs/dying_rank.py on two nodes, and its policy lets it end. All are submitted
at once; each test waits for its own. Below Slurm 24.05, srun gets the last lines of a rank for sure
only with hpctl's SPANK plugin.
"""

import sys
from pathlib import Path

import pytest

from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from tests.daemon.chaos import Chaos, cluster
from tests.gpu.recordings import H200
from tests.jobs.last_lines import load_plugin
from tests.live import until
from tests.process import room
from tests.sandbox.test_training import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
PROGRAM = f"{ROOT}/tests/jobs/dying_rank.py"
TORCHRUN = (
    "-m torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d"
    " --rdzv-id $SLURM_JOB_ID --rdzv-endpoint 127.0.0.1:$((20000 + SLURM_JOB_ID)) "
)
ENDS = {
    "exception": ("exception", TroubleKind.CRASH, ": ValueError in die (dying_rank.py): bad batch"),
    "killed": ("killed", TroubleKind.KILLED, ": it was killed by SIGKILL"),
    "gpu": (f"gpu {H200}/deaths/oom.stderr", TroubleKind.GPU_MEMORY, ": GPU out of memory, in oom"),
    "host": (
        f"host {H200}/deaths/host_oom.stderr",
        TroubleKind.HOST_MEMORY,
        ": the host has no memory",
    ),
    "code": ("'exit code'", TroubleKind.CRASH, ": it ended with exit code 3"),
    "timeout": (
        f"timeout {H200}/nccl/nccl_skip.rank0.stderr {H200}/nccl/nccl_skip.rank1.stderr",
        TroubleKind.HANG,
        " did not come to collective 5 of default_pg, where 1 other waits",
    ),
    "syntax": ("", TroubleKind.CRASH, ": SyntaxError in line 2 (unparsed.py): invalid syntax"),
    "disk": (
        "'full disk'",
        TroubleKind.DISK_FULL,
        ": file system full: /fsx/ckpt/step_100/model.pt",
    ),
    "port": ("port", TroubleKind.CRASH, ": its port is in use, in die (dying_rank.py)"),
}


class Ends:
    """Jobs that fail, each in its own way. `launch` stands before the program."""

    def __init__(self, live: Chaos, name: str, launch: str) -> None:
        self.live = live
        self.base = Path(live.sandbox.state_dir) / name
        self.base.mkdir()
        (self.base / "policy.yaml").write_text("restarts: 0\n")
        (self.base / "unparsed.py").write_text("import os\ndef train(:\n    pass\n")
        self.jobs = {name: self.submit(name, launch) for name in ENDS}

    def submit(self, name: str, launch: str) -> int:
        how, *_ = ENDS[name]
        program = f"{PROGRAM} {how}" if how else str(self.base / "unparsed.py")
        script = self.base / f"{name}.sh"
        script.write_text(
            f"#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1\nexec srun {launch} {program}\n"
        )
        options = ["--parsable", f"--policy={self.base}/policy.yaml", f"--output={name}.log"]
        command = [sys.executable, "-m", "hpctl", "sbatch", *options, str(script)]
        done = self.live.sandbox.run(command, env={"PYTHONPATH": ROOT}, cwd=self.base)
        return int(done.stdout.split()[-1])

    def wait_for_report(self, name: str) -> Trouble:
        """What the script of a job told, once it has."""
        job = JobId(self.jobs[name])
        until(lambda: bool(self.found(job)), 60, f"{name} is told")
        return self.found(job)[-1]

    def found(self, job: JobId) -> list[Trouble]:
        reports = self.live.state().reports.get(job, ())
        return [event.report.trouble for event in reports if event.report.trouble is not None]

    def check(self, name: str) -> None:
        """The cause, with the rank that dies and its node, in every place that shows it."""
        _, kind, words = ENDS[name]
        job, trouble = self.jobs[name], self.wait_for_report(name)
        assert trouble.kind is kind
        why = f"rank {trouble.rank} on {trouble.node}{words}"
        assert trouble.why.startswith(why)
        if name != "syntax":  # all ranks of which fail, and any may be the first
            where = (self.base / f"node-{job}-1").read_text()
            assert (trouble.rank, trouble.node) == (1, where)
        log = self.base / f"{name}.log"
        until(lambda: why in log.read_text(errors="replace"), 60, "the log says why")
        until(lambda: why in self.live.explained(str(job)), 60, "explain says why")
        if kind is TroubleKind.DISK_FULL:
            until(lambda: f"hpctl: {why}" in self.live.job(job).comment, 60, "the Comment says why")
            assert self.live.job(job).restarts <= 1, "it is not tried again"
        else:
            held = self.live.state().holds
            until(lambda: why in held[str(job)].why, 60, "the hold says why")
            assert self.live.job(job).state == "FAILED"


@pytest.fixture(scope="module")
def live():
    with room() as base, cluster(nodes=4, slurm_conf=load_plugin(base)) as found:
        yield found


@pytest.fixture(scope="module")
def under_srun(live):
    return Ends(live, "srun", sys.executable)


@pytest.mark.parametrize("name", ENDS)
def test_the_cause_under_plain_srun(under_srun, name):
    under_srun.check(name)


@pytest.fixture(scope="module")
def under_torchrun(live):
    pytest.importorskip("torch")
    return Ends(live, "torchrun", f"{sys.executable} {TORCHRUN}")


@pytest.mark.nightly
@pytest.mark.parametrize("name", ENDS)
def test_the_cause_under_torchrun(under_torchrun, name):
    under_torchrun.check(name)


def test_a_job_without_a_checkpoint_directory_is_restarted_once_and_then_ends(live):
    base = Path(live.sandbox.state_dir) / "again"
    base.mkdir()
    (base / "policy.yaml").write_text("backoff: {first_s: 1}\n")
    script = base / "again.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH -N2\nsrun {sys.executable} {PROGRAM} exception\n")
    options = ["--parsable", "--policy=policy.yaml", "--output=again.log"]
    command = [sys.executable, "-m", "hpctl", "sbatch", *options, str(script)]
    done = live.sandbox.run(command, env={"PYTHONPATH": ROOT}, cwd=base)
    assert "every restart begins at the script's beginning" in done.stderr
    job = int(done.stdout.split()[-1])
    assert live.job(job).comment.startswith("hpctl:{")
    until(lambda: str(job) in live.state().holds, 60, "the job is left to end")
    (first,) = live.of_job(job)
    assert first.trouble.why in live.state().holds[str(job)].why
    assert "ValueError in die (dying_rank.py): bad batch" in first.trouble.why
    assert (live.job(job).state, live.job(job).restarts) == ("FAILED", 1)
    explained = live.explained(str(job))
    assert "the same crash 2 times without progress" in explained
    assert "hpctl sbatch" not in explained, "it was submitted so"


def test_a_task_of_an_array_tells_its_own_cause(live):
    base = Path(live.sandbox.state_dir) / "array"
    base.mkdir()
    (base / "policy.yaml").write_text("restarts: 0\n")
    script = base / "array.sh"
    script.write_text(
        "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1 --array=1-2\n"
        '[ "$SLURM_ARRAY_TASK_ID" = 2 ] || exec srun sleep 600\n'
        f"srun {sys.executable} {PROGRAM} exception\n"
    )
    options = ["--parsable", "--policy=policy.yaml", "--output=%a.log"]
    command = [sys.executable, "-m", "hpctl", "sbatch", *options, str(script)]
    done = live.sandbox.run(command, env={"PYTHONPATH": ROOT}, cwd=base)
    array = done.stdout.split()[-1]
    cause = "ValueError in die (dying_rank.py): bad batch"
    until(lambda: cause in live.explained(f"{array}_2"), 60, "explain says why")
    until(lambda: cause in (base / "2.log").read_text(), 60, "the log says why")
    assert cause not in live.explained(f"{array}_1")
    live.sandbox.run(["scancel", array])


def test_a_run_that_slurm_ends_tells_nothing(live):
    base = Path(live.sandbox.state_dir) / "ended"
    base.mkdir()
    script = base / "long.sh"
    body = "srun sh -c '[ $SLURM_PROCID = 0 ] && echo begun; exec sleep 600'"
    script.write_text(f"#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1\n{body}\n")
    job = live.sbatch(script)
    log = base / "log"
    until(lambda: log.exists() and log.read_text().count("begun") == 1, 60, "it runs")
    live.sandbox.run(["scontrol", "requeue", str(job)])
    until(lambda: live.job(job).state == "PENDING", 60, "it waits")
    live.cleared(job)
    live.sandbox.run(["scontrol", "update", f"jobid={job}", "StartTime=now"])
    until(lambda: log.read_text().count("begun") == 2, 60, "it runs again")
    live.sandbox.run(["scancel", str(job)])
    until(lambda: live.job(job).state == "CANCELLED", 60, "it is cancelled")
    until(lambda: not live.job(job).completing, 60, "it has ended")
    assert "the script ended" not in log.read_text()
    reports = live.state().reports.get(JobId(job), ())
    assert [each for each in reports if each.report.trouble is not None] == []
    assert live.of_job(job) == []
