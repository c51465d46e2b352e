"""Submit and watch jobs from Python: what a job's owner does with the `hpctl` command.

    from hpctl_client import explain, submit, wait      # hpctl.client where hpctl is installed

    job = submit("train.sbatch", checkpoint_dir="/shared/runs/{job_id}", nodes=2)
    end = wait(job)
    print(end.state, end.exit_code, end.cause)

`submit`, `status`, `explain` and `checkpoints` run the `hpctl` command and read its JSON
(docs/cli-json.md); `wait` reads Slurm's queue by squeue. What they return are frozen values; what
they raise are `ClientError`s that say what to do.

This package uses the standard library alone, from Python 3.8 on, and imports nothing else of
hpctl: the distribution `hpctl-client` installs it as `hpctl_client` into the environment of a
training program, with `progress` beside it. Begin with `calls.py`; `waiting.py` decides which end
of a job is its last one.
"""

from .calls import checkpoints, explain, status, submit
from .errors import (
    ClientError,
    CommandFailedError,
    CommandNotFoundError,
    JobNotFoundError,
    WaitTimeoutError,
)
from .values import Checkpoint, Checkpoints, Explanation, Job, JobEnd, RunTrouble, Status, Trouble
from .waiting import wait

__all__ = [
    "Checkpoint",
    "Checkpoints",
    "ClientError",
    "CommandFailedError",
    "CommandNotFoundError",
    "Explanation",
    "Job",
    "JobEnd",
    "JobNotFoundError",
    "RunTrouble",
    "Status",
    "Trouble",
    "WaitTimeoutError",
    "checkpoints",
    "explain",
    "status",
    "submit",
    "wait",
]
